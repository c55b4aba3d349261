#!/usr/bin/env python3
"""Keep or install the build of torch that fits this machine.

    python3 scripts/choose_torch.py --venv .venv                             make .venv if needed, then torch in it
    pip install -r requirements.txt -c "$(python scripts/choose_torch.py)"   in the environment of this interpreter

An installed torch from 2.6 to 2.13 is kept if it can use the GPU, or if there is none; a new environment then shares
the packages of the interpreter. Otherwise torch is installed: for CUDA 12.8 if the driver is older than 580, else the
pinned version, without a GPU its build for the CPU. Prints the path of a constraints file: with `pip install -c FILE`
no other package can replace torch.

TORCH_INDEX  address to install torch from instead, such as https://download.pytorch.org/whl/cpu
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - older interpreters must print the message
    sys.exit(f"error: Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from yolov7fast.core.torch_build import is_supported, nvidia_gpus, packages_for  # noqa: E402

# Prints the versions that pip knows of torch and torchvision, and whether a kernel runs on the GPU.
PROBE = """
from importlib.metadata import PackageNotFoundError, version
import torch
def installed(name, default):
    try:
        return version(name)
    except PackageNotFoundError:
        return default
try:
    usable = float((torch.ones(8, device="cuda") * 2).sum()) == 16
except Exception:
    usable = False
print(installed("torch", torch.__version__), int(usable), installed("torchvision", ""))
"""


def probe(python: str | Path) -> tuple[str, bool, str]:
    """(torch version, whether it can use a GPU, torchvision version) of an interpreter; empty without torch."""
    done = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True)
    words = done.stdout.split() if done.returncode == 0 else []
    return (words[0], words[1] == "1", "".join(words[2:])) if len(words) >= 2 else ("", False, "")


def run(*command: str | Path) -> None:
    words = [str(word) for word in command]
    print(f"+ {shlex.join(words)}", file=sys.stderr)
    if subprocess.run(words, stdout=sys.stderr).returncode:
        sys.exit(f"error: this command failed: {shlex.join(words)}")


def share_packages(python: Path, venv: Path) -> None:
    """Let `venv` see the packages of the virtual environment that `python` belongs to, if it does: of such a one,
    --system-site-packages shows only what lies below it."""
    parent = python.absolute().parent.parent
    if (parent / "pyvenv.cfg").is_file():
        for folder in parent.glob("lib/python3*/site-packages"):
            shared = venv / folder.relative_to(parent) / "shared_packages.pth"
            shared.parent.mkdir(parents=True, exist_ok=True)
            shared.write_text(f"{folder}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, help="environment to make or complete; default: the interpreter's")
    parser.add_argument("--python", default=sys.executable, help="interpreter to start from (default: this one)")
    parser.add_argument("--torch", default="", metavar="VERSION", help="exactly this version, for tests")
    opt = parser.parse_args()
    gpus, index = nvidia_gpus(), os.environ.get("TORCH_INDEX", "")

    def is_kept(version: str, usable: bool) -> bool:
        if opt.torch:
            return version.split("+")[0] == opt.torch
        return is_supported(version) and (usable or not gpus)

    python, constraints = Path(opt.python), ROOT / ".torch-constraints.txt"
    if opt.venv:
        python, constraints = opt.venv / "bin" / "python", opt.venv / "torch-constraints.txt"
        if not python.exists():
            version, usable, _ = probe(opt.python)
            share = usable and is_kept(version, usable) and not index
            run(opt.python, "-m", "venv", *(["--system-site-packages"] if share else []), opt.venv)
            if share:
                share_packages(Path(opt.python), opt.venv)
    version, usable, vision = probe(python)
    # the first line of the file names the index that torch was installed from
    source = f"# index: {index}" if index else ""
    before = constraints.read_text() if constraints.is_file() else ""
    if not is_kept(version, usable) or (source and not before.startswith(f"{source}\n")):
        packages = packages_for(gpus, index)
        if opt.torch:
            packages = [f"torch=={opt.torch}", "torchvision", *packages[2:]]
        run(python, "-m", "pip", "install", *(["--force-reinstall"] if version else []), *packages)
        version, usable, vision = probe(python)
        if not version:
            sys.exit(f"error: torch was installed, but {python} cannot import it")
        if gpus and not usable:
            print(f"warning: torch {version} cannot use {gpus[0].name} (driver {gpus[0].driver})", file=sys.stderr)
    elif not source:
        source = next(iter(re.findall(r"^# index: .*", before)), "")
    pins = [source, f"torch=={version}", f"torchvision=={vision}" if vision else ""]
    constraints.write_text("".join(f"{line}\n" for line in pins if line))
    print(constraints)


if __name__ == "__main__":
    main()
