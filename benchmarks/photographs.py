"""The data of benchmarks: the BCCD photographs in ../shared/bccd if present, else the project's own data set."""

from pathlib import Path

import yaml

from yolov7fast.data.shapes import NAMES, make_shapes

ROOT = Path(__file__).resolve().parent.parent
BCCD = ROOT.parent / "shared" / "bccd"


def image_folder(scratch: Path) -> Path:
    """The data set: `images/SPLIT` and `labels/SPLIT` for the splits train and val; drawn in `scratch` if need be."""
    return BCCD if BCCD.is_dir() else make_shapes(scratch / "shapes", size=640)


def photographs(scratch: Path) -> Path:
    """Its data yaml, written into `scratch`; the stem names the data set."""
    source = image_folder(scratch)
    names = ["RBC", "WBC", "Platelets"] if source == BCCD else list(NAMES)
    path = scratch / f"{source.name}.yaml"
    splits = {split: str(source / "images" / split) for split in ("train", "val")}
    path.write_text(yaml.safe_dump({**splits, "nc": len(names), "names": names}))
    return path
