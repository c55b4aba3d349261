"""Flags of the optimisation: hyper-parameters, batches, learning rates, precision, shorter trainings, search."""

from functools import partial

from yolov7fast.cli.flags.row import (
    DETECT,
    DETR,
    OPTIMISATION,
    SEARCH,
    SHORTER,
    SPEED,
    TEST,
    TRAIN,
    YOLO,
    Flag,
    Trials,
    chosen,
    count_or_auto,
    file_or_mapping,
    refused,
    schedule_text,
)

optimisation = partial(Flag, group=OPTIMISATION)
training = partial(optimisation, where=TRAIN)
batches = partial(optimisation, where=TRAIN + TEST + DETECT, upstream=TRAIN + TEST, low=1, fixed=True)
of_yolo = partial(optimisation, where=YOLO, fixed=True)
of_detr = partial(optimisation, where=DETR, low=0, fixed=True)
shorter = partial(Flag, group=SHORTER, where=TRAIN)
search = partial(Flag, group=SEARCH, where=YOLO, upstream=TRAIN, rare=True)

HYP_HELP = "hyper-parameter yaml: a file, or the name of a shipped one such as tiny"
BATCH_HELP = (
    "images per batch, over all GPUs; auto: the largest batch that fits into memory, up to the nominal batch, and half "
    "of it if the first steps run out of memory"
)
BATCHES = {
    "train detr": {"default": 4},
    "train yolo": {"type": count_or_auto, "help": BATCH_HELP},
    "test": {"default": 32, "help": "images per batch; for DETR checkpoints (.pth) 8"},
    "detect": {"default": 1, "help": "images of one shape per batch; files are read and written in background threads"},
}
OVERFIT_HELP = (
    "memorise the first N images (default: --subset-size, else 10) without augmentation, with train = val and, unless "
    "given, suitable epochs and learning rates; exit code 0: the loss has clearly fallen"
)
LR_DROP_HELP = "step: epoch after which rates are a tenth; 0: after four fifths of the epochs"
AMP_HELP = "mixed precision; auto: fp16 on CUDA, off on CPU; off: validations are in single precision, too"
SKIP_HELP = "skip up to N batches whose loss is not finite, instead of stopping"
RESIZE_HELP = 'EPOCH:SIZE[:BATCH] steps, e.g. "1:320,20:480"'
EPOCHS = {"detr": {"default": 50, "aliases": ("--max-epochs",)}}
BARE_AMP = {"detr": {"nargs": "?", "const": "auto"}}  # also `amp: true`
EVOLVE_HELP = (
    "evolve the hyper-parameters: 300 generations, each a whole training; table and best set in PROJECT/evolve"
)
BUCKET_HELP = "gs:// bucket that evolve keeps evolve.txt in (needs gsutil)"
PROFILED = refused("tools/train_detr.py --profile N, which trains nothing")

ROWS = [
    of_yolo("--hyp", file_or_mapping, "data/hyp.scratch.p5.yaml", HYP_HELP, upstream=TRAIN),
    training(
        "--epochs", int, 300, "number of epochs", upstream=TRAIN, low=1, trials=Trials(budget="epochs"), changed=EPOCHS
    ),
    batches("--batch-size", int, 16, "images per batch, over all GPUs", changed=BATCHES),
    of_yolo("--adam", bool, False, "Adam instead of SGD", upstream=TRAIN),
    of_yolo("--linear-lr", bool, False, "linear instead of cosine decay", upstream=TRAIN, rare=True),
    of_yolo("--label-smoothing", float, 0.0, "label smoothing epsilon, below 1", upstream=TRAIN, low=0, rare=True),
    of_yolo("--auto-lr", bool, False, "scale lr0 by the square root of batch/64 for batches above 64"),
    of_yolo("--loss-ota", int, None, "1: OTA, 0: plain; overrides the hyp file", choices=(0, 1)),
    of_yolo("--assigner", str, "", "plain, ota or tal: which candidates become positives; overrides the hyp file"),
    optimisation("--sync-bn", bool, False, "synchronised batch norm, in distributed runs", where=YOLO, upstream=TRAIN),
    of_detr("--lr", float, 1e-4, "learning rate"),
    of_detr("--backbone-lr", float, 1e-5, "learning rate of the backbone"),
    of_detr("--weight-decay", float, 1e-4, "AdamW's weight decay"),
    of_detr("--clip-norm", float, 0.1, "largest norm of the gradient; 0: not clipped", rare=True),
    of_detr("--schedule", str, "step", "decay of the learning rates", choices=("step", "cosine"), low=None),
    of_detr("--lr-drop", int, 0, LR_DROP_HELP, rare=True),
    of_detr("--final-lr", float, 0.01, "cosine: final learning rate, as a fraction", high=1, rare=True),
    of_detr("--warmup-iters", int, 0, "iterations of linear warm-up from zero"),
    training("--amp", str, "auto", AMP_HELP, choices=("auto", "off", "fp16", "bf16"), changed=BARE_AMP),
    training("--skip-nonfinite", int, 0, SKIP_HELP, low=0, rare=True),
    shorter("--subset-size", int, 0, "train on N images; 0: all", low=0, fixed=True, trials=Trials(budget="subset")),
    shorter("--subset-seed", int, 0, "which images --subset-size draws", fixed=True),
    shorter("--overfit", int, 0, OVERFIT_HELP, nargs="?", const=True, low=0, fixed=True),  # `with_overfit`: True
    shorter("--max-iter", int, 0, "stop after N iterations in all, and end their epoch there; 0: no limit", low=0),
    shorter("--patience", int, 0, "stop after N epochs without a better fitness; 0: never", low=0),
    # trials: it would override the budget's size
    training("--resize-schedule", schedule_text, "", RESIZE_HELP, fixed=True, trials=Trials(budget="size", reset=True)),
    search("--evolve", bool, False, EVOLVE_HELP, trials=refused("--search")),
    search("--bucket", str, "", BUCKET_HELP, trials=chosen("--search")),
    Flag("--profile", int, 0, "print the stage times of N steps and exit", SPEED, DETR, low=0, trials=PROFILED),
]
