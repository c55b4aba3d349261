"""Draw the project's own small data set (data/shapes.yaml): python tools/make_shapes.py"""

from shlex import quote

import yaml

from yolov7fast.cli.programs import program
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.atomic import write_atomically
from yolov7fast.data.shapes import NAMES, make_shapes


def main() -> None:
    parser = program("make-shapes").parser(__doc__)
    parser.add_argument("folder", nargs="?", default="data/shapes", help="where to write it (default: %(default)s)")
    parser.add_argument("--train", type=int, default=200, help="training images (default: %(default)s)")
    parser.add_argument("--val", type=int, default=60, help="validation images (default: %(default)s)")
    parser.add_argument("--size", type=int, default=400, help="longer side of the largest (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other images (default: %(default)s)")
    opt = parser.parse_args()
    if min(opt.train, opt.val) < 1 or opt.size < 64 or opt.seed < 0:
        raise UserError("--train and --val must be at least 1, --size at least 64, --seed at least 0")
    folder = make_shapes(opt.folder, opt.train, opt.val, opt.size, opt.seed)
    if opt.folder == parser.get_default("folder"):
        data = "data/shapes.yaml"
    else:
        data = str(folder / "data.yaml")
        splits = {split: str((folder / "images" / split).resolve()) for split in ("train", "val")}
        write_atomically(data, yaml.safe_dump({**splits, "nc": len(NAMES), "names": list(NAMES)}, sort_keys=False))
    print(f"shapes: {folder}; train on it with --data {quote(str(data))}")
