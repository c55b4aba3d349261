"""What counts as a checkout, and when its code counts as known."""

import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.overlay import repairs
from yolov7fast.overlay.checkout import Checkout, normalised
from yolov7fast.overlay.parts import OverlaySettings, refuse_edited


def test_a_folder_that_is_none_is_refused_by_what_it_lacks(tmp_path):
    with pytest.raises(UserError, match=r"not a checkout that the overlay supports: models/yolo\.py was not found"):
        Checkout(tmp_path)
    with pytest.raises(UserError, match="there is no such folder"):
        Checkout(tmp_path / "none")


def test_a_fork_without_the_ota_loss_is_refused_by_it(repo):
    text = (repo / "utils/loss.py").read_text()
    (repo / "utils/loss.py").write_text(text.replace("ComputeLossOTA", "ComputeLossKeypoints"))
    with pytest.raises(UserError, match=r"utils/loss\.py:ComputeLossOTA was not found"):
        Checkout(repo)


def test_a_file_that_is_no_python_is_named(repo):
    (repo / "utils/loss.py").write_text("class ComputeLoss(:\n")
    with pytest.raises(UserError, match=r"utils/loss\.py is not Python that this version can read"):
        Checkout(repo)


def test_layout_and_comments_do_not_count_as_an_edit():
    one = "    def f(x):\n        # why\n        return x  \n\n\n    "
    assert normalised(one) == normalised("def f(x):\n    return x\n")
    assert normalised(one) != normalised("def f(x):\n    return -x\n")


def edit(repo, file, old, new):
    text = (repo / file).read_text()
    assert old in text
    (repo / file).write_text(text.replace(old, new))


def test_an_edited_class_is_named_with_the_switches_that_help(known_repo, inside):
    edit(known_repo, "utils/loss.py", "targets.cuda(), imgs", "targets.cuda() * 1.0, imgs")
    named = r"differs from upstream in utils/loss\.py:ComputeLossOTA: add --no-loss to keep .*--force"
    with pytest.raises(UserError, match=named):
        refuse_edited(Checkout(known_repo), OverlaySettings())
    refuse_edited(Checkout(known_repo), OverlaySettings(loss=False))
    inside(known_repo, force=True)
    assert import_module("utils.loss").ComputeLossOTA.__module__ == "yolov7fast.overlay.replacements"


def test_what_a_fork_never_had_is_no_edit(known_repo):
    edit(known_repo, "utils/loss.py", "class ComputeLossAuxOTA", "class Another")
    refuse_edited(Checkout(known_repo), OverlaySettings())


def test_a_checkout_that_cannot_be_taken_leaves_nothing_replaced(known_repo, inside, monkeypatch):
    monkeypatch.setattr(repairs, "torchvision_loads", lambda: False)
    sys.modules["utils"] = ModuleType("utils")
    sys.modules["utils"].__file__ = "/elsewhere/utils/__init__.py"
    before, names = dict(sys.modules), set(vars(np))
    with pytest.raises(UserError, match=r"`utils` was imported from /elsewhere/utils/__init__\.py already"):
        inside(known_repo)
    assert {n: m for n, m in sys.modules.items() if n.startswith("torchvision")} == {
        n: m for n, m in before.items() if n.startswith("torchvision")
    }
    assert set(vars(np)) == names
