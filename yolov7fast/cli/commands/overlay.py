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
    """Reports errors in one line that shows where the flags of the script belong."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; flags of the script follow its name: {self.prog} {USAGE}")


def overlay_parser() -> argparse.ArgumentParser:
    row = program("overlay")
    parser = OverlayParser(prog=row.invocation, usage=f"%(prog)s {USAGE}", description=__doc__)
    parser.add_argument("--repo", required=True, metavar="DIR", help="checkout of WongKinYiu/yolov7 or of a fork")
    parts = parser.add_argument_group("parts, on by default: same samples bit for bit, same losses within 1e-5")
    for name, text in (
        ("loss", "ComputeLoss, ComputeLossOTA and ComputeLossAuxOTA without loops over images"),
        ("repairs", "for NumPy 2, torch >= 2.6, a torchvision that cannot be imported, hard-coded devices"),
        ("fast-dataloader", "persistent workers write samples into shared memory"),
        ("metrics", "NMS and average precision"),
    ):
        parts.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=True, help=text)
    more = parser.add_argument_group("off by default: they change pixels, files or timing")
    more.add_argument("--cache-images", metavar="disk", help="decode and resize images once, into a file")
    more.add_argument(
        "--seed", type=int, help="samples depend on (seed, epoch, index); a resumed run restarts at epoch 0"
    )
    care = parser.add_argument_group("checks")
    care.add_argument(
        "--check",
        type=batches,
        nargs="?",
        const=3,
        default=0,
        metavar="N",
        help="compare with the checkout's code on N batches (3)",
    )
    care.add_argument("--force", action="store_true", help="replace code of a fork that is not upstream's")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script in DIR and its arguments")
    return parser


def batches(text: str) -> int:
    """The number of `--check`; without `--` argparse takes the script's name for it."""
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
    sys.argv = [str(path), *(with_rank(script, arguments) if settings.repairs else arguments)]
    with put_in(checkout, settings):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except ModuleNotFoundError as error:
            raise checkout.without(error) from error
    return 0
