"""The worked examples of a block, an augmentation, an assigner, a metric and an output format work as written down.

A flag and a family are tested in test_extending_flag.py and tests/training/families/test_third_family.py.
"""

import re
from typing import NamedTuple

import pytest
from torch import nn

from tests.docs.worked_example import ROOT, carry_out, copy_package, lint, patched, run_shown_tests, shown_test
from yolov7fast.nn import model_parser
from yolov7fast.nn.model import Model


class Example(NamedTuple):
    """What a page touches, and how many tests it shows."""

    files: list[str]
    tests: int


EXAMPLES = {
    "extending_block.md": Example(
        ["yolov7fast/nn/blocks.py", "yolov7fast/nn/model_parser.py", "tests/nn/test_separable_conv.py"], 3
    ),
    "extending_augmentation.md": Example(
        [
            "yolov7fast/data/augment/erase.py",
            "yolov7fast/data/dataset.py",
            "yolov7fast/training/hyperparameters.py",
            "tests/data/augment/test_erase.py",
        ],
        2,
    ),
    "extending_assigner.md": Example(
        ["yolov7fast/losses/overlap.py", "yolov7fast/losses/assigners.py", "tests/losses/test_overlap.py"], 5
    ),
    "extending_metric.md": Example(
        [
            "yolov7fast/evaluation/mean_iou.py",
            "yolov7fast/evaluation/eval_result.py",
            "tests/evaluation/test_mean_iou.py",
        ],
        3,
    ),
    "extending_output.md": Example(
        [
            "yolov7fast/evaluation/jsonl_output.py",
            "yolov7fast/evaluation/eval_config.py",
            "yolov7fast/evaluation/eval_outputs.py",
            "yolov7fast/cli/flags/run.py",
            "tests/evaluation/test_jsonl_output.py",
        ],
        2,
    ),
}


class Changed(NamedTuple):
    """One copy of the package with all examples carried out: they touch different lines."""

    touched: dict[str, list[str]]  # by document
    lint: str
    output: str  # of the tests they show


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Changed:
    folder = tmp_path_factory.mktemp("copy")
    copy_package(folder)
    touched = {document: carry_out(document, folder) for document in EXAMPLES}
    files = [file for listed in touched.values() for file in listed]
    output = run_shown_tests(folder, [shown_test(listed) for listed in touched.values()])
    return Changed(touched, lint(folder, files), output)


@pytest.mark.parametrize("document", EXAMPLES)
def test_the_change_is_shown_whole(changed, document):
    example, touched = EXAMPLES[document], changed.touched[document]
    assert touched == example.files
    assert not [line for line in changed.lint.splitlines() if any(file in line for file in touched)], changed.lint
    passed = re.findall(rf"^PASSED {re.escape(shown_test(touched))}::", changed.output, re.M)
    assert len(passed) == example.tests, changed.output


def test_the_rule_that_a_block_may_bring_gives_it_its_width(monkeypatch):
    """The page of a block shows a rule beside its example."""
    page = (ROOT / "docs" / "extending_block.md").read_text()
    shown = vars(model_parser).copy()
    exec(re.search(r"```python\n(def known_width.*?)```", page, re.S)[1], shown)
    made = []

    class Gate(nn.Identity):
        def __init__(self, *args):
            super().__init__()
            made.append(args)

    monkeypatch.setattr(model_parser, "BLOCKS", dict(model_parser.BLOCKS))
    model_parser.register("Gate", Gate, shown["known_width"])
    rows = [[-1, 1, "Conv", [24, 3, 8]], [-1, 1, "Gate", [16]]]
    model = Model({"nc": 1, "anchors": [[4, 5]], "backbone": rows, "head": [[[1], 1, "Detect", ["nc", "anchors"]]]})
    assert made == [(24, 16)] and model.model[-1].m[0].in_channels == 24


def test_a_document_that_no_longer_fits_the_code_is_noticed():
    with pytest.raises(AssertionError, match="not there exactly once"):
        patched("a = 1\n", "-a = 2\n+a = 3\n", "x.py")


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "extending.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("extending_*.md")}
    assert set(re.findall(r"\]\((extending_\w+\.md)\)", index)) == pages and len(pages) == 7
