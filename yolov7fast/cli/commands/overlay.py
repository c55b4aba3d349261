"""Run a script of a YOLOv7 checkout with this project's loss, loader, metrics and repairs."""

import argparse
import os
import runpy
import sys
from typing import NoReturn

from yolov7fast.core.errors import UserError
from yolov7fast.core.programs import program
from yolov7fast.overlay.checkout import Checkout
from yolov7fast.overlay.parts import OverlaySettings, put_in
from yolov7fast.overlay.repairs import with_rank

USAGE = "--repo DIR [switches] -- train.py [arguments of the script]"


class OverlayParser(argparse.ArgumentParser):
    """One line that says where flags of the overlay and of the script go, in place of argparse's usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; flags of the script follow its name: {self.prog} {USAGE}")


def overlay_parser() -> argparse.ArgumentParser:
    row = program("overlay")
    parser = OverlayParser(prog=row.invocation, usage=f"%(prog)s {USAGE}", description=__doc__)
    parser.add_argument("--repo", required=True, metavar="DIR", help="checkout of WongKinYiu/yolov7 or of a fork")
    parts = parser.add_argument_group("parts, on by default; same samples bit by bit, same losses to 1e-5")
    for name, text in (
        ("loss", "ComputeLoss, ComputeLossOTA and ComputeLossAuxOTA without loops over images"),
        ("repairs", "what stops on NumPy 2, torch >= 2.6, a torchvision that does not load, devices named by hand"),
        ("fast-dataloader", "samples written straight into shared batches by workers that stay"),
        ("metrics", "suppression, matching and average precision"),
    ):
        parts.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=True, help=text)
    more = parser.add_argument_group("off by default: they change pixels, files or timing")
    more.add_argument("--cache-images", metavar="disk", help="decode and resize once, into one file next to the labels")
    more.add_argument("--compile", action="store_true", help="torch.compile the network while it trains")
    more.add_argument(
        "--seed", type=int, help="samples follow from (seed, epoch, index); resumed runs begin again at epoch 0's"
    )
    care = parser.add_argument_group("care")
    care.add_argument(
        "--check", type=batches, nargs="?", const=3, default=0, metavar="N", help="compare both sides on N batches (3)"
    )
    care.add_argument("--force", action="store_true", help="replace code of a fork that is not upstream's")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script in DIR and its arguments")
    return parser


def batches(text: str) -> int:
    """The number of `--check`; without a number and without `--`, the script's name is taken for it."""
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--check {text}: not a number of batches; a script begins after `--`: {USAGE}") from None


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    end = argv.index("--") if "--" in argv else len(argv)
    opt = vars(overlay_parser().parse_args(argv[:end]))
    repo, command = opt.pop("repo"), [*opt.pop("script"), *argv[end + 1 :]]
    if not command:
        raise UserError(f"no script was given: {program('overlay').invocation} {USAGE}")
    script, arguments = command[0], command[1:]
    settings, checkout = OverlaySettings(**opt), Checkout(repo)
    path = checkout.script(script)
    os.chdir(checkout.root)
    put_in(checkout, settings, path)
    sys.argv = [str(path), *(with_rank(script, arguments) if settings.repairs else arguments)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        raise checkout.without(error) from error
    return 0
