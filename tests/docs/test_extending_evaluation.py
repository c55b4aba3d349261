"""The worked examples of a metric and of an output format work as they are written down."""

import pytest

from tests.docs.worked_example import assert_clean, carry_out, patched, run_shown_tests


@pytest.mark.parametrize(
    ("document", "files", "passed"),
    [
        (
            "extending_metric.md",
            [
                "yolov7fast/metrics/mean_iou.py",
                "yolov7fast/evaluation/further_metrics.py",
                "tests/metrics/test_mean_iou.py",
            ],
            "3 passed",
        ),
        (
            "extending_output.md",
            [
                "yolov7fast/evaluation/jsonl_output.py",
                "yolov7fast/evaluation/config.py",
                "yolov7fast/evaluation/outputs.py",
                "yolov7fast/cli/flags/run.py",
                "tests/evaluation/test_jsonl_output.py",
            ],
            "2 passed",
        ),
    ],
)
def test_the_change_is_shown_whole(tmp_path, document, files, passed):
    touched = carry_out(document, tmp_path)
    assert touched == files
    assert_clean(tmp_path, touched)
    assert passed in run_shown_tests(tmp_path, touched)


def test_a_document_that_no_longer_fits_the_code_is_noticed():
    with pytest.raises(AssertionError, match="not there exactly once"):
        patched("a = 1\n", "-a = 2\n+a = 3\n", "x.py")
