"""The commands of the user's documents as text, as they stand there."""

TINY = "--data data/coco320.yaml --img 320 --cfg cfg/training/yolov7-tiny.yaml"
SMALL = f"python train.py --workers 2 --batch-size 2 --epochs 1 --nosave {TINY}"
STUDY = f"python train.py {TINY} --hyp data/hyp.scratch.tiny{{}}.yaml --batch-size 64 --epochs 100 --weights '' "
STUDY += "--noautoanchor --name {}"

HELP = 'python train.py --help | grep -A1 "fast-dataloader"'
WITHOUT_NETWORK = [
    "python train.py --workers 8 --batch-size 64",
    "python train.py --workers 64 --fast-dataloader",
    "python train.py --workers 16 --persistent-workers",
]
TRAINING = [
    SMALL,
    f"{SMALL} --persistent-workers",
    f"{SMALL} --worker-tensor",
    f"{SMALL} --fast-dataloader",
    f"python train.py --workers 8 --batch-size 16 --epochs 1 --nosave {TINY}",
    f"python train.py --workers 64 --batch-size 32 --epochs 3 --name test_fast {TINY}",
    "time python train.py --workers 8 --batch-size 64 --epochs 1 --nosave --data data/coco320.yaml --img 320 "
    "--cfg cfg/training/yolov7.yaml",
    f"python train.py {TINY} --batch-size 64 --epochs 100",
    "python train.py --data data/coco640.yaml --img 640 --cfg cfg/training/yolov7.yaml --batch-size 32 --epochs 100",
    STUDY.format(".noota", "noota_100ep"),
    STUDY.format("", "ota_100ep"),
]
DIAGNOSE = f"DIAGNOSE_COMPILE=1 python train.py --workers 2 --batch-size 2 {TINY}"
COMPILE = f"USE_COMPILE=1 {SMALL}"
TEST = "python test.py --weights runs/train/test_original/weights/last.pt --data data/coco320.yaml --img 320"
PROFILE = "python tests/profile_training_loop.py"

DETR = "python tools/train_detr.py --config configs/detr_{}.yaml"
BASELINE, SMOKE = DETR.format("baseline"), DETR.format("smoke")
BASELINE_RESUMED = [
    f"{BASELINE} --resume outputs/baseline_run/checkpoint_epoch_10.pth",
    f"{BASELINE} --resume outputs/baseline_run/last.pth",
]
SMOKE_RESUMED = f"{SMOKE} --resume outputs/smoke_test/checkpoint_epoch_1.pth"
OVERFIT = [f"{SMOKE} --subset-size 10 --overfit", f"{BASELINE} --subset-size 10 --overfit"]
SUBSET = [f"{BASELINE} --subset-size 100", f"{BASELINE} --subset-size 1000 --max-iter 500 --eval-interval 2"]
TRIALS = [
    "python tools/run_trials.py --base-config configs/detr_baseline.yaml --trials-file experiments/my_trials.json "
    "--output-dir outputs/trials --budget-epochs 5 --budget-subset 1000 --budget-size 640 --early-stop-threshold 0.1",
    "python tools/run_trials.py --base-config configs/detr_baseline.yaml --trials-file experiments/trials_lr_bs.json "
    "--output-dir outputs/trials_lr_bs --budget-epochs 5 --budget-subset 1000",
]
MY_TRIALS = '[{"training.optimizer.lr": 1e-4, "training.batch_size": 4}, {"training.optimizer.lr": 1e-3}]'

RUN_FILES = [
    "training: {batch_size: 4, max_epochs: 50, amp: true, resume: null, subset_size: null, overfit: false, "
    "resize_schedule: null}",
    "training: {batch_size: 2, max_epochs: 2, amp: false, subset_size: 100, overfit: false}",
    "training: {batch_size: 2, max_epochs: 10, amp: false, subset_size: 10, overfit: true}",
    "training: {subset_size: 1000, subset_seed: 42}",
    "training:\n  resize_schedule: [[1, 640], [20, 800], [40, 960]]",
    "training:\n  resize_schedule:\n    - [1, 640]\n    - [20, 800]\n    - [40, 960]",
]
