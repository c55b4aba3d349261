"""scripts/choose_torch.py with a fake nvidia-smi on PATH and fake interpreters that log what they are asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CU128 = "torch>=2.6,<2.14 torchvision --index-url https://download.pytorch.org/whl/cu128"
DEFAULT = "torch==2.13.0 torchvision==0.28.0"
CPU = "--extra-index-url https://download.pytorch.org/whl/cpu"  # pip takes 2.13.0+cpu from there if it can

# A python whose torch is what its file `state` says; `-m pip install` replaces that by the file `installs`.
PYTHON = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
case "$1 $2" in
    "-c "*) cat "$here/state" 2>/dev/null ;;
    "-m venv") shift 2; echo "venv $@" >>{log}
        for target; do :; done
        mkdir -p "$target/bin" && cp "$0" "$target/bin/python" && cp "{folder}/installs" "$target/bin/"
        case "$*" in *--system-site-packages*) cp "$here/state" "$target/bin/" ;; esac ;;
    "-m pip") shift 2; echo "$@" >>{log}; cp "$here/installs" "$here/state" ;;
esac
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path):
    """Runs the script on a machine with this driver ("": no GPU) and this torch in its interpreter."""
    log = tmp_path / "log"
    base = program(tmp_path / "base" / "python", PYTHON.format(log=log, folder=tmp_path))

    def choose(
        driver: str, torch: str, *flags: str, installs: str = "2.13.0 1 0.28.0", **environment: str
    ) -> list[str]:
        smi = f"echo '{driver}, NVIDIA GeForce RTX 5090'" if driver else "exit 9"
        program(tmp_path / "bin" / "nvidia-smi", f"#!/bin/sh\n{smi}\n")
        (tmp_path / "installs").write_text(f"{installs}\n")
        if torch:
            (tmp_path / "base" / "state").write_text(f"{torch}\n")
        log.write_text("")
        words = ["--python", str(base), "--venv", str(tmp_path / "venv"), *flags]
        inherited = {name: value for name, value in os.environ.items() if name != "TORCH_INDEX"}
        environment = {**inherited, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environment}
        command = [sys.executable, str(ROOT / "scripts" / "choose_torch.py"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path / 'venv' / 'torch-constraints.txt'}\n"
        return [line.replace(str(tmp_path), "") for line in log.read_text().splitlines()]

    return choose


def pins(tmp_path: Path) -> list[str]:
    return (tmp_path / "venv" / "torch-constraints.txt").read_text().splitlines()


def test_an_installed_torch_that_uses_the_gpu_is_kept(machine, tmp_path):
    assert machine("570.124.06", "2.8.0+cu128 1 0.23.0+cu128") == ["venv --system-site-packages /venv"]
    assert pins(tmp_path) == ["torch==2.8.0+cu128", "torchvision==0.23.0+cu128"]
    assert machine("570.124.06", "") == []  # a second run changes nothing


def test_packages_of_a_virtual_environment_are_shared_too(machine, tmp_path):
    """Rented images have torch in one; --system-site-packages would show the interpreter below it only."""
    packages = tmp_path / "lib/python3.12/site-packages"  # of the environment whose program is tmp_path/base/python
    packages.mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("")
    assert machine("570.124.06", "2.8.0+cu128 1 0.23.0+cu128") == ["venv --system-site-packages /venv"]
    shared = tmp_path / "venv/lib/python3.12/site-packages/shared_packages.pth"
    assert shared.read_text() == f"{packages}\n"


@pytest.mark.parametrize(
    ("driver", "torch", "installed"),
    [
        ("570.124.06", "2.13.0 0 0.28.0", CU128),  # built for CUDA 13, which the driver is too old for
        ("580.65.06", "2.5.1 1 0.20.1", DEFAULT),  # too old for this project
        ("580.65.06", "", DEFAULT),
        ("570.124.06", "", CU128),
        ("", "", f"{DEFAULT} {CPU}"),
        ("", "2.8.0+cu128 0 0.23.0", f"{DEFAULT} {CPU}"),  # without a GPU a new environment shares nothing
    ],
)
def test_the_build_is_chosen_by_the_driver(driver, torch, installed, machine, tmp_path):
    assert machine(driver, torch) == ["venv /venv", f"install {installed}"]
    assert pins(tmp_path) == ["torch==2.13.0", "torchvision==0.28.0"]


def test_a_build_that_cannot_use_the_gpu_is_replaced(machine, tmp_path):
    """The environment was made before: its torch is for the CPU, or for another driver."""
    machine("", "")
    (tmp_path / "venv" / "bin" / "state").write_text("2.13.0+cpu 0 0.28.0\n")
    (tmp_path / "venv" / "bin" / "installs").write_text("2.11.0+cu128 1\n")
    assert machine("570.1", "") == [f"install --force-reinstall {CU128}"]
    assert pins(tmp_path) == ["torch==2.11.0+cu128"]


def test_an_address_and_a_version_can_be_given(machine, tmp_path):
    index = "https://example.org/cpu"
    expected = f"install torch>=2.6,<2.14 torchvision --index-url {index}"
    assert machine("", "", TORCH_INDEX=index) == ["venv /venv", expected]
    assert machine("", "", TORCH_INDEX=index) == machine("", "") == []  # kept by later runs
    expected = f"install --force-reinstall torch==2.8.0 torchvision {CPU}"
    assert machine("", "", "--torch", "2.8.0") == [expected]
