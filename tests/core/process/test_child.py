"""A training in a process of its own: why it failed, in one line."""

import pytest

from yolov7fast.core.process.child import OUTPUT, explain, last_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Epoch 1\r 10%\r 20%\nerror: the GPU has no memory left: lower --batch-size\n", "the GPU has no memory left"),
        (
            "Traceback (most recent call last):\n  x\nValueError: too small\nfarewell\n",
            "ValueError: too",
        ),
        ("nothing like an error\nbye\n", "bye"),
        ("", "ended with code 1 and said nothing"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(tmp_path, text, words):
    (tmp_path / OUTPUT).write_text(text)
    assert explain(1, tmp_path / OUTPUT).startswith(words)
    assert len(last_words(tmp_path / OUTPUT, limit=30)) <= 30
