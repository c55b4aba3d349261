"""The suite itself: what a test file leaves changed is found, and tests without a browser say so in one line."""

import signal
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.browser import NO_BROWSER
from tests.conftest import pytest_terminal_summary
from tests.process_state import changes, loaded_modules, process_state
from yolov7fast.core import errors
from yolov7fast.overlay import repairs
from yolov7fast.overlay.checkout import Patches


def test_what_is_left_changed_is_named(monkeypatch, tmp_path):
    before = process_state(), loaded_modules()
    assert changes(*before) == []
    threads = torch.get_num_threads()
    handler = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("LEFT_BEHIND", "1")
        patch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
        patch.setitem(sys.modules, "json", ModuleType("json"))
        patch.setattr(errors, "LONGEST", 7)
        torch.set_num_threads(threads + 1)
        found = "\n".join(changes(*before))
    torch.set_num_threads(threads)
    signal.signal(signal.SIGUSR2, handler)
    for name in ("working directory", "environment LEFT_BEHIND: None -> '1'", "sys.modules['json']", "errors.LONGEST"):
        assert name in found
    assert f"torch threads: {threads} -> {threads + 1}" in found and "signal SIGUSR2" in found
    assert changes(*before) == []


def test_the_reason_of_tests_without_a_browser_is_one_line():
    lines: list[str] = []
    reports = [SimpleNamespace(longrepr=("file", 1, f"Skipped: {reason}")) for reason in (NO_BROWSER, "x", NO_BROWSER)]
    for skipped in (reports, reports[1:2], []):
        pytest_terminal_summary(SimpleNamespace(stats={"skipped": skipped}, write_line=lines.append))
    assert lines == [f"2 of the skipped tests: {NO_BROWSER}"]


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_stub_that_is_left_is_found(monkeypatch, is_hidden):
    """Also where the module was hidden before, as it is on a machine whose torchvision does not load."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    if not is_hidden:
        monkeypatch.delitem(sys.modules, "torchvision")
    before = process_state(), loaded_modules()
    patches = Patches()
    repairs.put_in_torchvision(patches)
    assert any("sys.modules['torchvision']" in line for line in changes(*before))
    patches.close()
    assert changes(*before) == []
