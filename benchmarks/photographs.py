"""What benchmarks train on: the BCCD photographs where they are beside the project, else the project's own data set."""

from pathlib import Path

import yaml

from utils.shapes import NAMES, make_shapes

ROOT = Path(__file__).resolve().parent.parent
BCCD = ROOT.parent / "shared" / "bccd"


def photographs(folder: Path) -> Path:
    """The data yaml, written into `folder`; its stem names the data set."""
    if BCCD.is_dir():
        source, names = BCCD, ["RBC", "WBC", "Platelets"]
    else:
        source, names = make_shapes(folder / "shapes", size=640), list(NAMES)
    path = folder / f"{source.name}.yaml"
    splits = {split: str(source / "images" / split) for split in ("train", "val")}
    path.write_text(yaml.safe_dump({**splits, "nc": len(names), "names": names}))
    return path
