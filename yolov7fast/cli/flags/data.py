"""Flags of the data: which images, how they are augmented, loaded and cached."""

from functools import partial

from yolov7fast.cli.flags.row import AUGMENTATION, DATA, DETECT, DETR, SPEED, TEST, TRAIN, YOLO, Flag, Trials

data = partial(Flag, group=DATA)
of_yolo = partial(data, where=YOLO, upstream=TRAIN, fixed=True)
augment = partial(Flag, group=AUGMENTATION, where=DETR, low=0, high=1, fixed=True)
speed = partial(Flag, group=SPEED)

SIZE = Trials(budget="size")
SOURCE_HELP = "image, folder, glob, video, camera number, rtsp/rtmp/http(s) address, or .txt list of these"
CACHE_HELP = "keep resized images: ram (the bare flag) or disk, a packed memory-mapped file"
FAST_HELP = {
    "test": {"help": "workers write samples straight into shared batch buffers"},
    "train detr": {"help": "loader processes that stay and write whole batches into shared memory"},
}

TWO_SIZES = {"nargs": "+", "default": [640, 640], "help": "train and test size; one value serves for both"}
ROWS = [
    data(
        "--data",
        str,
        "data/coco.yaml",
        "data yaml (a file, or a shipped one such as coco320), folder or .zip of YOLO, COCO or VOC, COCO .json, .csv",
        where=TRAIN + TEST,
        upstream=TRAIN + TEST,
        fixed=True,
        changed={"train detr": {"aliases": ("--dataset",), "default": "data/shapes.yaml"}},
    ),
    data(
        "--img-size",
        int,
        640,
        "side of the square that samples are padded to; longer side in validation",
        where=TRAIN,
        upstream=TRAIN,
        low=32,
        fixed=True,
        trials=SIZE,
        changed={"train yolo": TWO_SIZES},
    ),
    data(
        "--img-size",
        int,
        640,
        "longer side, rounded up to the stride; 0: the trained size, the default for DETR (.pth) and exported files",
        where=TEST + DETECT,
        upstream=TEST + DETECT,
        low=0,
    ),
    data("--source", str, "inference/images", SOURCE_HELP, where=DETECT, upstream=DETECT),
    data(
        "--task",
        str,
        "val",
        "train, val or test: the split to measure; speed; study: sizes 256 to 1536",
        where=TEST,
        upstream=TEST,
    ),
    data(
        "--single-cls",
        bool,
        False,
        "treat all labels as one class",
        where=TRAIN + TEST,
        upstream=TRAIN + TEST,
        fixed=True,
    ),
    data(
        "--keep-partial-labels",
        bool,
        False,
        "keep the good lines of a label file with bad or doubled ones, instead of leaving its image out",
        where=TRAIN + TEST,
        fixed=True,
    ),
    data(
        "--strict-labels",
        bool,
        False,
        "stop if an image or a line of a label file would be left out or misread",
        where=TRAIN,
    ),
    data(
        "--allow-download",
        bool,
        False,
        "run the `download:` of the data yaml when its images are missing",
        where=TRAIN + TEST,
    ),
    of_yolo("--rect", bool, False, "rectangular training batches; switches mosaic off"),
    data(
        "--val-fraction",
        float,
        0.0,
        "of a data set without validation images: this fraction of the training images, by a hash of their names",
        where=TRAIN + TEST,
        low=0,
        high=0.9,
        fixed=True,
    ),
    of_yolo("--image-weights", bool, False, "draw images by class weight and last per-class AP"),
    of_yolo("--multi-scale", bool, False, "random size of 0.5x to 1.5x for each batch"),
    of_yolo("--quad", bool, False, "quad collation: four images become one of double side"),
    augment("--fliplr", float, 0.5, "probability of a left-right flip"),
    augment("--flipud", float, 0.0, "probability of an up-down flip"),
    augment("--scale-min", float, 0.6, "smallest longer side of a training image, as a fraction of --img-size"),
    augment("--crop", float, 0.5, "probability of a crop"),
    augment("--crop-min", float, 0.5, "smallest fraction of either side that a crop keeps"),
    speed("--workers", int, 8, "upper limit of loader processes", where=TRAIN + TEST, upstream=TRAIN, low=0),
    speed("--torch-threads", int, 0, "threads of torch on a CPU; 0: as torch chooses", where=TRAIN, low=0),
    speed("--opencv-threads", int, 0, "threads of OpenCV in each loader process; 0: none", where=TRAIN, low=0),
    speed(
        "--fast-dataloader",
        bool,
        False,
        "short for --persistent-workers --worker-tensor",
        where=TRAIN + TEST,
        changed=FAST_HELP,
    ),
    speed("--persistent-workers", bool, False, "loader processes live through the whole run", where=YOLO),
    speed(
        "--worker-tensor",
        bool,
        False,
        "micro-collate: workers write samples straight into shared batch buffers",
        where=YOLO,
    ),
    speed(
        "--micro-batch", int, 0, "samples of one worker task of --worker-tensor; 0: chosen for you", where=YOLO, low=0
    ),
    speed(
        "--cache-images",
        str,
        False,
        CACHE_HELP,
        where=TRAIN + TEST,
        upstream=TRAIN,
        aliases=("--cache",),  # an abbreviation in the wild that --cache-dir would make ambiguous
        nargs="?",
        const="ram",
        choices=("ram", "disk"),
    ),
    speed("--cache-dir", str, "", "folder for --cache-images disk; empty: next to the labels", where=TRAIN + TEST),
]
