"""`make docs`: the site builds without a warning, holds every page, and fetches nothing when it is read."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from yolov7fast.cli.flags import flags_of
from yolov7fast.cli.flags.__main__ import PAGE, filled


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_in_the_navigation(site):
    """Translations are linked from the pages that they translate."""
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page.name
        if page.name.endswith(".zh-TW.md"):
            assert f"({page.name})" in (ROOT / "docs" / page.name.replace(".zh-TW", "")).read_text(), page.name
        else:
            assert page.name in navigation, page.name


def test_the_navigation_has_at_most_25_pages():
    assert (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1].count(".md") <= 25


def test_nothing_is_fetched_from_elsewhere(site):
    """Scripts, styles, fonts, images: all from the site itself. Links that a reader clicks may lead elsewhere."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?([^"'\s>]+)""", text)
        loaded += re.findall(r"""<link[^>]*rel=["']?(?:stylesheet|preconnect|icon)[^>]*href=["']?([^"'\s>]+)""", text)
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style.name


def test_the_page_of_flags_has_every_flag_of_train(site):
    text = (site / "flags.html").read_text()
    for flag in flags_of("train").values():
        assert f">{flag.name}</code>" in text, flag.name


def test_the_tables_of_flags_are_current():
    """After a change of a flag: `python -m yolov7fast.cli.flags`."""
    text = PAGE.read_text()
    assert filled(text) == text
    for command, family in (("train", "yolo"), ("train", "detr"), ("test", "yolo"), ("detect", "yolo")):
        for flag in flags_of(command, family).values():
            assert f"\n| `{flag.name}`" in text, flag.name


def test_pages_of_the_root_are_part_of_it(site):
    assert "Contributing" in (site / "CONTRIBUTING.html").read_text()
    assert 'href="extending.html"' in (site / "CONTRIBUTING.html").read_text()
    assert 'href="resume.html"' in (site / "VAST_SETUP.html").read_text()
