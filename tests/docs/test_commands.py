"""Every command of the documents: its program and flags exist, and it runs at a reduced size unless it says why not."""

import re
from pathlib import Path

import pytest

from tests.docs.shell import DOCUMENTS, ROOT, blocks_of, check, commands
from tests.docs.workplace import Workplace

BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
# pages whose commands a test of their own runs
RUN_BY = {
    "docs/data.md": "tests/docs/test_data_guide.py",
    "docs/detr.md": "tests/training/families/test_detr_guide.py",
    "docs/extending.md": "tests/training/families/test_third_family.py",
    "docs/export.md": "tests/docs/test_export_guide.py",
    "docs/python.md": "tests/docs/test_python_guide.py",
    "docs/resume.md": "tests/docs/test_resume_guide.py",
    "docs/search.md": "tests/search/test_guide.py",
}
FAST = ("README.md",)  # run by `make test`; the others are slow
RUN_HERE = sorted({b.document for b in BLOCKS if not b.why and ".zh-TW" not in b.document} - set(RUN_BY))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_programs_and_flags_exist(document, monkeypatch):
    monkeypatch.chdir(ROOT)
    for block in blocks_of(document):
        assert block.commands, f"{document}: a block without a command"
        for command in block.commands:
            check(command)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_running_text_exist(document, monkeypatch):
    """`python train.py --resume RUN` in a sentence or a table is checked like a block; indented blocks are not used."""
    monkeypatch.chdir(ROOT)
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.S | re.M)
    for span in re.findall(r"`((?:python|yolov7fast|torchrun|make) [^`]+)`", text):
        if " --" in span:  # else it only names a program
            for command in commands(document, " ".join(span.replace("\\|", " ").split())):
                check(command)
    assert not re.search(r"^ {4,}(python|yolov7fast|torchrun) ", text, re.M), "put commands into blocks of bash"


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "docs/extending.md"])
def test_commands_stand_in_blocks_of_bash(document):
    """Else none of these tests would see them."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for language, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.S | re.M):
        if language in ("", "text", "sh", "console"):
            found = re.search(r"^ *(python3? \S|yolov7fast [a-z]|torchrun |make [a-z])", body, re.M)
            assert not found, f"{document}: `{found[0]}` stands in a block of {language or 'no language'}"


def test_a_page_with_a_test_of_its_own_is_read_by_it():
    for document, test in RUN_BY.items():
        text = (ROOT / test).read_text()
        assert Path(document).name in text, f"{test} does not read {document}"


def test_a_flag_that_does_not_exist_is_noticed():
    (wrong,) = commands("x.md", "python train.py --img 320 --no-such-flag 1")
    with pytest.raises(AssertionError, match="no-such-flag"):
        check(wrong)
    for text in ("python no_such.py", "make no-such-target", "no_such_program"):
        (wrong,) = commands("x.md", text)
        with pytest.raises(AssertionError):
            check(wrong)


@pytest.mark.parametrize(
    "document", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in RUN_HERE]
)
def test_the_commands_of_a_page_run_in_order(document, tmp_path, shapes_small):
    workplace = Workplace(tmp_path, shapes_small)
    ran = [command for block in blocks_of(document) if not block.why for command in workplace.run(block)]
    assert ran, f"{document}: nothing was run; mark its blocks or leave it out of this test"
