"""docs/troubleshooting.md: its flags exist, its messages are those that the program prints."""

import re

from tests.docs.shell import ROOT
from yolov7fast.cli.flags import TABLE

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = TEXT.split("## Messages of this project")[1]


def test_its_flags_exist():
    known = {name for flag in TABLE for name in (flag.name, *flag.aliases)}
    known |= {"--cfg", "--deploy-cfg", "--output", "--nms", "--shm-size", "--nproc_per_node", "--hyp", "--name"}
    found = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", TEXT))
    assert {flag for flag in found if not any(name.startswith(flag) for name in known)} == set()


def test_its_messages_are_the_programs():
    source = "".join(path.read_text() for path in (ROOT / "yolov7fast").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that go over several lines
    quoted = re.findall(r'"([^"]+)"', MESSAGES)
    parts = [part.strip() for text in quoted for part in text.split("...") if part.strip()]
    assert len(parts) >= 8
    for part in parts:
        assert part in source, part
