"""Links of the documents: files exist, anchors exist, images exist, addresses outside are few and known."""

import re
import unicodedata

import pytest

from tests.docs.shell import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HOSTS = ("https://github.com/WongKinYiu/yolov7/", "https://semver.org")


def prose(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)


def anchors(text: str) -> set[str]:
    """As the site makes them: lower case, punctuation dropped, words joined by hyphens."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if target.startswith("http"):
            assert target.startswith(HOSTS), f"{page.name}: {target} is outside; say in HOSTS why it is needed"
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.is_file() and path.stat().st_size, f"{page.name}: {target} does not exist"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page.name}: {target}: no such heading"


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "page.md").write_text("# A page\n[there](page.md#a-page) [nowhere](page.md#b)")
    with pytest.raises(AssertionError, match="no such heading"):
        test_links_lead_somewhere(tmp_path / "page.md")
