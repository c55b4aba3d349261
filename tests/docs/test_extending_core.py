"""The worked examples of a block and of an assigner work as they are written down."""

import pytest

from tests.docs.worked_example import assert_clean, carry_out, run_shown_tests


@pytest.mark.parametrize(
    ("document", "files", "passed"),
    [
        (
            "extending_block.md",
            ["yolov7fast/nn/blocks.py", "yolov7fast/nn/parser.py", "tests/nn/test_separable_conv.py"],
            "3 passed",
        ),
        (
            "extending_assigner.md",
            ["yolov7fast/assign/overlap.py", "yolov7fast/assign/registry.py", "tests/assign/test_overlap.py"],
            "5 passed",
        ),
    ],
)
def test_the_change_is_shown_whole(tmp_path, document, files, passed):
    touched = carry_out(document, tmp_path)
    assert touched == files
    assert_clean(tmp_path, touched)
    assert passed in run_shown_tests(tmp_path, touched)
