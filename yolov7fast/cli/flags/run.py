"""Flags of a run: its folder, checkpoints, devices, randomness, validation and logs."""

from functools import partial

from yolov7fast.cli.flags.row import (
    DETECT,
    DETR,
    DEVICES,
    LOGGING,
    RANDOMNESS,
    RESULTS,
    RESUME,
    TEST,
    TRAIN,
    VALIDATION,
    YOLO,
    Flag,
    chosen,
    refused,
)

EVERY = TRAIN + TEST + DETECT
validation = partial(Flag, group=VALIDATION, where=TRAIN)
measured = partial(validation, where=YOLO + TEST)
resume = partial(Flag, group=RESUME, where=TRAIN)
hook = partial(resume, typed=True, trials=refused("your own script around the trials"))
devices = partial(Flag, group=DEVICES, trials=chosen("--devices"))
processes = partial(devices, where=TRAIN, rare=True)
randomness = partial(Flag, group=RANDOMNESS, where=TRAIN)
seeded = partial(randomness, fixed=True, trials=chosen("--seed and --repeat"))
results = partial(Flag, group=RESULTS)
folder = partial(results, where=EVERY, upstream=EVERY, trials=chosen("--output-dir"))
records = partial(results, where=TEST + DETECT, upstream=TEST + DETECT)
of_test = partial(results, where=TEST, upstream=TEST)
of_detect = partial(results, where=DETECT, upstream=DETECT)
logging = partial(Flag, group=LOGGING, where=TRAIN, upstream=TRAIN)

MAX_SEED = 2**31 - 1  # NumPy's generator takes 32 bits, and every process adds its rank
RESUME_HELP = (
    "resume a run, given its folder, a checkpoint in it or its --mirror; without a value: the newest last*; "
    "auto: start the run of --name, resume it, or do nothing if it is finished"
)
SAVE_EVERY_HELP = "minutes between checkpoints inside an epoch; 0: only at its end; default: 10, with --nosave 0"
CHANGED_DATA_HELP = "resume although images, labels or classes have changed since the checkpoint"
KEEP_EPOCHS_HELP = (
    "keep only the newest N files of single epochs (epoch_*, best_*); more epochs can be added to a finished run "
    "as long as one is kept; default: all of upstream's"
)
MIRROR_HELP = (
    "copy checkpoints, results, log and page after each save: folder, user@host:path (rsync), remote:path (rclone)"
)
ON_SAVE_HELP = "shell command run in the background after each checkpoint; $RUN_DIR, $CHECKPOINT, $EPOCH, $BEST_MAP"
ON_END_HELP = "shell command run once when the run ends, in any way; also $STATUS, $MESSAGE: see VAST_SETUP.md"
DEVICE = "0 or 0,1,2,3 or cpu; empty: the first GPU, else CPU"
DEVICE_TRAIN = {"help": "0 or cpu; empty: the first GPU, else CPU; 0,1,2,3 needs torchrun"}
LOCAL_RANK_HELP = "set by torch.distributed.launch; torchrun sets LOCAL_RANK instead"
DIST_TIMEOUT_HELP = "several processes: minutes that one waits for the others in a step before it ends with a message"
SEED_HELP = "randomness keyed by (seed, epoch, sample): exact resume at any step"
SHUFFLE_HELP = "shuffle the images each epoch, also in a single process (needs --seed)"
HYBRID_HELP = "write labels and detections together, for auto-labelling; the metrics are meaningless then"
JSON_HELP = "write detections as COCO JSON and run pycocotools; always on for a data file named *coco.yaml"
ANNOTATIONS_HELP = (
    "COCO annotation file for --save-json; default: searched next to the images, else built from the labels"
)
TEST_BATCH_HELP = "images per validation batch; default: twice the training batch"
CONFIG_HELP = "run file: yaml of flags, with inheritance by `base:`; the command line wins"
PROJECTS = {
    "train detr": {"default": "outputs"},
    "test": {"default": "runs/test"},
    "detect": {"default": "runs/detect"},
}

ROWS = [
    results("--config", str, "", CONFIG_HELP, where=TRAIN, trials=chosen("--base-config")),
    folder("--project", str, "runs/train", "parent folder of runs", changed=PROJECTS),
    folder("--name", str, "exp", "folder of this run"),
    folder("--exist-ok", bool, False, "write into an existing folder instead of appending a number"),
    results("--rate", float, None, "price of the machine per hour: the run's page shows the cost", where=TRAIN, low=0),
    # --- checkpoints and resume ---------------------------------------------------------------------------------------
    resume("--resume", str, False, RESUME_HELP, upstream=TRAIN, nargs="?", const=True, trials=refused("--resume")),
    resume("--allow-changed-data", bool, False, CHANGED_DATA_HELP, trials=refused("--resume"), rare=True),
    resume("--nosave", bool, False, "write a checkpoint only after the last epoch", upstream=TRAIN),
    resume("--save-every", float, None, SAVE_EVERY_HELP, low=0),
    resume("--keep-epochs", int, None, KEEP_EPOCHS_HELP, low=0),
    hook("--mirror", str, "", MIRROR_HELP),
    hook("--on-save", str, "", ON_SAVE_HELP),
    hook("--on-end", str, "", ON_END_HELP),
    resume("--checkpoint-period", int, 1, "epochs between files checkpoint_epoch_N.pth; 0: none", where=DETR, low=0),
    # --- validation ---------------------------------------------------------------------------------------------------
    validation("--notest", bool, False, "validate only after the last epoch", upstream=TRAIN),
    validation("--eval-interval", int, 1, "epochs between validations (the last epoch always has one)", low=1),
    validation("--test-batch-size", int, None, TEST_BATCH_HELP, low=1, rare=True),
    measured("--v5-metric", bool, False, "AP with recall extended to 1.0", upstream=TRAIN + TEST, rare=True),
    # --- devices and randomness ---------------------------------------------------------------------------------------
    devices("--device", str, "", DEVICE, where=EVERY, upstream=EVERY, changed={"train": DEVICE_TRAIN}),
    # --local-rank: what torch.distributed.launch passes since torch 2.0
    processes("--local_rank", int, -1, LOCAL_RANK_HELP, upstream=TRAIN, aliases=("--local-rank",)),
    processes("--dist-timeout", float, 10.0, DIST_TIMEOUT_HELP, low=0.01),
    seeded("--seed", int, None, SEED_HELP, low=0, high=MAX_SEED, changed={"detr": {"default": 0}}),
    randomness("--shuffle", bool, False, SHUFFLE_HELP, where=YOLO, fixed=True, rare=True),
    randomness("--deterministic", bool, False, "deterministic algorithms, where torch provides them", rare=True),
    # --- results of test and detect -----------------------------------------------------------------------------------
    records("--save-txt", bool, False, "write detections to labels/*.txt"),
    records("--save-conf", bool, False, "add the confidence to the lines of --save-txt"),
    of_test("--save-hybrid", bool, False, HYBRID_HELP, rare=True),
    of_test("--save-json", bool, False, JSON_HELP),
    results("--annotations", str, None, ANNOTATIONS_HELP, where=TEST, rare=True),
    results("--save-per-class-ap", str, None, "write mAP and the AP of each class to this JSON file", where=TEST),
    of_test("--verbose", bool, False, "per-class rows even for 50 classes or more"),
    of_detect("--nosave", bool, False, "do not save images or videos"),
    results("--save-crop", bool, False, "save every detection as an image in crops/CLASS", where=DETECT),
    results("--save-csv", bool, False, "write all detections to predictions.csv", where=DETECT),
    of_detect("--view-img", bool, False, "show a window; q in it stops"),
    of_detect("--update", bool, False, "strip the checkpoints of all but the network, after detection", rare=True),
    # --- logging ------------------------------------------------------------------------------------------------------
    logging("--verbose", bool, False, "print the table of layers and all hyper-parameters", where=YOLO, upstream=()),
    logging("--wandb", bool, False, "log to Weights & Biases (must be installed)", upstream=()),
    logging("--entity", str, None, "W&B entity", rare=True),
    logging("--upload_dataset", bool, False, "W&B: upload the data set", rare=True),
    logging("--bbox_interval", int, -1, "W&B: log images every N epochs (-1: a tenth of the run)", rare=True),
    logging("--save_period", int, -1, "W&B: upload the checkpoint every N epochs (-1: never)", rare=True),
    logging("--artifact_alias", str, "latest", "W&B: version of the data-set artifact", rare=True),
]
