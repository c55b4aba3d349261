"""Flags of the data: which images, how they are augmented, loaded and cached."""

from functools import partial

from yolov7fast.cli.flags.row import AUGMENTATION, DATA, DETECT, DETR, SPEED, TEST, TRAIN, YOLO, Flag, Trials

data = partial(Flag, group=DATA)
both = partial(data, where=TRAIN + TEST)
of_yolo = partial(data, where=YOLO, upstream=TRAIN, fixed=True)
augment = partial(Flag, group=AUGMENTATION, where=DETR, low=0, high=1, fixed=True, rare=True)
speed = partial(Flag, group=SPEED)
loading = partial(speed, where=TRAIN + TEST)
trained_size = partial(data, where=TRAIN, upstream=TRAIN, low=32, fixed=True, trials=Trials(budget="size"))
cached = partial(loading, nargs="?", const="ram", choices=("ram", "disk"))

DATA_HELP = (
    "data yaml (a file, or a shipped one such as coco320), folder or .zip of YOLO, COCO or VOC, COCO .json, .csv"
)
DATA_DETR = {"train detr": {"aliases": ("--dataset",), "default": "data/shapes.yaml"}}
SIZE_HELP = "side of the square that samples are padded to; longer side in validation"
TWO_SIZES = {"nargs": "+", "default": [640, 640], "help": "train and test size; one value serves for both"}
TEST_SIZE_HELP = (
    "longer side, rounded up to the stride; 0: the trained size, the default for DETR (.pth) and exported files"
)
SOURCE_HELP = "image, folder, glob, video, camera number, rtsp/rtmp/http(s) address, or .txt list of these"
TASK_HELP = "train, val or test: the split to measure; speed; study: sizes 256 to 1536"
PARTIAL_HELP = "keep the valid lines of a label file with invalid or duplicate lines, instead of leaving out its image"
STRICT_HELP = "stop if an image or a line of a label file would be left out or misread"
FRACTION_HELP = "fraction of the training images used for validation if the data set has none, by a hash of their names"
FAST_HELP = {
    "test": {"help": "workers write samples directly into shared batch buffers"},
    "train detr": {"help": "loader processes that stay and write whole batches into shared memory"},
}
TENSOR_HELP = "micro-collate: workers write samples directly into shared batch buffers"
MICRO_HELP = "samples of one worker task of --worker-tensor; 0: automatic"
CACHE_HELP = "keep resized images: ram (the bare flag) or disk, a packed memory-mapped file"

ROWS = [
    both("--data", str, "data/coco.yaml", DATA_HELP, upstream=TRAIN + TEST, fixed=True, changed=DATA_DETR),
    trained_size("--img-size", int, 640, SIZE_HELP, changed={"train yolo": TWO_SIZES}),
    data("--img-size", int, 640, TEST_SIZE_HELP, where=TEST + DETECT, upstream=TEST + DETECT, low=0),
    data("--source", str, "inference/images", SOURCE_HELP, where=DETECT, upstream=DETECT),
    data("--task", str, "val", TASK_HELP, where=TEST, upstream=TEST),
    both("--single-cls", bool, False, "treat all labels as one class", upstream=TRAIN + TEST, fixed=True),
    both("--keep-partial-labels", bool, False, PARTIAL_HELP, fixed=True),
    data("--strict-labels", bool, False, STRICT_HELP, where=TRAIN),
    both("--allow-download", bool, False, "run the `download:` of the data yaml when its images are missing"),
    of_yolo("--rect", bool, False, "rectangular training batches; switches mosaic off", rare=True),
    both("--val-fraction", float, 0.0, FRACTION_HELP, low=0, high=0.9, fixed=True),
    of_yolo("--image-weights", bool, False, "draw images by class weight and last per-class AP", rare=True),
    of_yolo("--multi-scale", bool, False, "random size of 0.5x to 1.5x for each batch"),
    of_yolo("--quad", bool, False, "quad collation: four images become one of double side", rare=True),
    augment("--fliplr", float, 0.5, "probability of a left-right flip"),
    augment("--flipud", float, 0.0, "probability of an up-down flip"),
    augment("--scale-min", float, 0.6, "smallest longer side of a training image, as a fraction of --img-size"),
    augment("--crop", float, 0.5, "probability of a crop"),
    augment("--crop-min", float, 0.5, "smallest fraction of either side that a crop keeps"),
    loading("--workers", int, 8, "upper limit of loader processes", upstream=TRAIN, low=0),
    loading("--fast-dataloader", bool, False, "short for --persistent-workers --worker-tensor", changed=FAST_HELP),
    speed("--persistent-workers", bool, False, "loader processes live through the whole run", where=YOLO),
    speed("--worker-tensor", bool, False, TENSOR_HELP, where=YOLO),
    speed("--micro-batch", int, 0, MICRO_HELP, where=YOLO, low=0, rare=True),
    # --cache: an abbreviation in use that --cache-dir would make ambiguous
    cached("--cache-images", str, False, CACHE_HELP, upstream=TRAIN, aliases=("--cache",)),
    loading("--cache-dir", str, "", "folder for --cache-images disk; empty: next to the labels"),
]
