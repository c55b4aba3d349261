"""How torch's threads wait: chosen before torch is loaded, and left alone where the user has chosen."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from yolov7fast.core.process import waiting


@pytest.fixture
def before_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_a_brief_spin_is_the_default(before_torch):
    environment = {"HOME": "/"}
    assert waiting.wait_briefly(environment)
    assert environment == {"HOME": "/", **waiting.SHORT}


@pytest.mark.parametrize("name", waiting.CHOSEN_BY)
def test_the_users_choice_stays(before_torch, name):
    environment = {name: "1"}
    assert not waiting.wait_briefly(environment) and environment == {name: "1"}


def test_it_is_too_late_once_torch_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    environment = {}
    assert not waiting.wait_briefly(environment) and environment == {}


def test_training_chooses_before_it_loads_torch():
    """The order of imports in a fresh process: flags are parsed, then the choice is made, then torch is loaded."""
    code = (
        "import os, sys\n"
        "from yolov7fast.commands import train\n"
        "assert 'torch' not in sys.modules, 'flags load torch'\n"
        "class Spy:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            sys.exit(0 if 'GOMP_SPINCOUNT' in os.environ else 1)\n"
        "sys.meta_path.insert(0, Spy())\n"
        "train.main(train.parser_for('train').parse_args([]))\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
