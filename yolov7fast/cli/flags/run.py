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
validation = partial(Flag, group=VALIDATION)
resume = partial(Flag, group=RESUME, where=TRAIN)
devices = partial(Flag, group=DEVICES, trials=chosen("--devices"))
randomness = partial(Flag, group=RANDOMNESS, where=TRAIN)
results = partial(Flag, group=RESULTS)
folder = partial(results, where=EVERY, upstream=EVERY, trials=chosen("--output-dir"))
logging = partial(Flag, group=LOGGING, where=TRAIN, upstream=TRAIN)

MAX_SEED = 2**31 - 1  # NumPy's generator takes 32 bits, and every process adds its rank
RESUME_HELP = (
    "resume a run, given its folder or a checkpoint in it; without a value: the newest last*; "
    "auto: start the run of --name, resume it, or do nothing where it is finished"
)
SAVE_EVERY_HELP = "minutes between checkpoints inside an epoch; 0: only at its end; default: 10, with --nosave 0"
JSON_HELP = "write detections as COCO JSON and run pycocotools; always on for a data file named *coco.yaml"
ANNOTATIONS_HELP = (
    "COCO annotation file for --save-json; default: searched next to the images, else built from the labels"
)
PROJECTS = {
    "train detr": {"default": "outputs"},
    "test": {"default": "runs/test"},
    "detect": {"default": "runs/detect"},
}

ROWS = [
    results(
        "--config",
        str,
        "",
        "run file: yaml of flags, with inheritance by `base:`; the command line wins",
        where=TRAIN,
        trials=chosen("--base-config"),
    ),
    folder("--project", str, "runs/train", "parent folder of runs", changed=PROJECTS),
    folder("--name", str, "exp", "folder of this run"),
    folder("--exist-ok", bool, False, "write into an existing folder instead of counting up"),
    results("--rate", float, None, "price of the machine per hour: the run's page shows the cost", where=TRAIN, low=0),
    # --- checkpoints and resume ---------------------------------------------------------------------------------------
    resume("--resume", str, False, RESUME_HELP, upstream=TRAIN, nargs="?", const=True, trials=refused("--resume")),
    resume(
        "--allow-changed-data",
        bool,
        False,
        "resume although images, labels or classes are no longer those of the checkpoint",
        trials=refused("--resume"),
    ),
    resume("--nosave", bool, False, "write a checkpoint only after the last epoch", upstream=TRAIN),
    resume("--save-every", float, None, SAVE_EVERY_HELP, low=0),
    resume(
        "--keep-epochs",
        int,
        None,
        "keep only the newest N files of single epochs (epoch_*, best_*); more epochs can be added to a finished run "
        "as long as one is kept; default: all of upstream's",
        low=0,
    ),
    resume("--checkpoint-period", int, 1, "epochs between files checkpoint_epoch_N.pth; 0: none", where=DETR, low=0),
    # --- validation ---------------------------------------------------------------------------------------------------
    validation("--notest", bool, False, "validate only after the last epoch", where=TRAIN, upstream=TRAIN),
    validation(
        "--eval-interval", int, 1, "epochs between validations (the last epoch always has one)", where=TRAIN, low=1
    ),
    validation(
        "--test-batch-size",
        int,
        None,
        "batch of the validation loader; default: twice the training batch",
        where=TRAIN,
        low=1,
    ),
    validation("--v5-metric", bool, False, "AP with recall extended to 1.0", where=YOLO + TEST, upstream=TRAIN + TEST),
    # --- devices and randomness ---------------------------------------------------------------------------------------
    devices(
        "--device",
        str,
        "",
        "0 or 0,1,2,3 or cpu; empty: the first GPU, else CPU",
        where=EVERY,
        upstream=EVERY,
        changed={"train": {"help": "0 or cpu; empty: the first GPU, else CPU; 0,1,2,3 needs torchrun"}},
    ),
    devices(
        "--local_rank",
        int,
        -1,
        "set by torch.distributed.launch; torchrun sets LOCAL_RANK instead",
        where=TRAIN,
        upstream=TRAIN,
        aliases=("--local-rank",),  # what torch.distributed.launch passes since torch 2.0
    ),
    devices(
        "--dist-timeout",
        float,
        10.0,
        "several processes: minutes that one waits for the others in a step",
        where=TRAIN,
        low=0.01,
    ),
    randomness(
        "--seed",
        int,
        None,
        "randomness keyed by (seed, epoch, sample): exact resume at any step",
        low=0,
        high=MAX_SEED,
        fixed=True,
        trials=chosen("--seed and --repeat"),
        changed={"detr": {"default": 0}},
    ),
    randomness(
        "--shuffle",
        bool,
        False,
        "shuffle the images each epoch, also in a single process (needs --seed)",
        where=YOLO,
        fixed=True,
    ),
    randomness("--deterministic", bool, False, "deterministic algorithms, where torch has them"),
    # --- results of test and detect -----------------------------------------------------------------------------------
    results("--save-txt", bool, False, "write detections to labels/*.txt", where=TEST + DETECT, upstream=TEST + DETECT),
    results(
        "--save-conf",
        bool,
        False,
        "add the confidence to the lines of --save-txt",
        where=TEST + DETECT,
        upstream=TEST + DETECT,
    ),
    results(
        "--save-hybrid",
        bool,
        False,
        "write labels and detections together, for auto-labelling; the metrics are meaningless then",
        where=TEST,
        upstream=TEST,
    ),
    results("--save-json", bool, False, JSON_HELP, where=TEST, upstream=TEST),
    results("--annotations", str, None, ANNOTATIONS_HELP, where=TEST),
    results("--save-per-class-ap", str, None, "write mAP and the AP of each class to this JSON file", where=TEST),
    results("--verbose", bool, False, "per-class rows even for 50 classes or more", where=TEST, upstream=TEST),
    results("--nosave", bool, False, "do not save images or videos", where=DETECT, upstream=DETECT),
    results("--save-crop", bool, False, "save every detection as an image in crops/CLASS", where=DETECT),
    results("--save-csv", bool, False, "write all detections to predictions.csv", where=DETECT),
    results("--view-img", bool, False, "show a window; q in it stops", where=DETECT, upstream=DETECT),
    results(
        "--update",
        bool,
        False,
        "strip the checkpoints of all but the network, after detection",
        where=DETECT,
        upstream=DETECT,
    ),
    # --- logging ------------------------------------------------------------------------------------------------------
    logging("--verbose", bool, False, "print the table of layers and all hyper-parameters", where=YOLO, upstream=()),
    logging("--wandb", bool, False, "log to Weights & Biases (must be installed)", upstream=()),
    logging("--entity", str, None, "W&B entity"),
    logging("--upload_dataset", bool, False, "W&B: upload the data set"),
    logging("--bbox_interval", int, -1, "W&B: log prediction images every N epochs (-1: a tenth of the run)"),
    logging("--save_period", int, -1, "W&B: upload the checkpoint every N epochs (-1: never)"),
    logging("--artifact_alias", str, "latest", "W&B: version of the data-set artifact"),
]
