"""The page: one file, safe whatever files and classes are called, usable in a real browser at two widths."""

import json
import re
import shutil

import pytest

from tests.browser import Browser
from tests.data.formats.drawn_sets import write_voc
from yolov7fast.cli.commands.data import main
from yolov7fast.data.checks.check_findings import place_text
from yolov7fast.data.checks.examine import examine
from yolov7fast.reports.data_check_page import as_page

CFG = "cfg/training/yolov7-tiny.yaml"
HOSTILE = "<script>alert(1)</script>\x1b[31m$\\frac{$"


@pytest.fixture(scope="module")
def page(seeded, tmp_path_factory, request):
    """The page of the set with defects, one class and one file of hostile name."""
    folder = tmp_path_factory.mktemp("page")
    mp = pytest.MonkeyPatch()
    request.addfinalizer(mp.undo)
    mp.setenv("YOLOV7FAST_CACHE", str(folder / "cache"))
    root = shutil.copytree(seeded[0], folder / "set")
    text = (root / "data.yaml").read_text()
    (root / "data.yaml").write_text(text.replace("'ball'", json.dumps(HOSTILE)))  # JSON's escapes are YAML's too
    odd = root / "images" / "train" / "<img src=x onerror=alert(2)>\n\x07.jpg"
    shutil.copy(root / "images" / "train" / "000040.jpg", odd)
    path = folder / "index.html"
    path.write_text(as_page(examine(root, 320, CFG), "Data check: <b>&"), encoding="utf-8")
    return path


def test_names_of_files_and_classes_are_text_and_nothing_else(page):
    text = page.read_text()
    assert len(text) < 1_500_000
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)  # the page needs nothing but itself
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m$\\frac{$" in text
    assert "&lt;img src=x onerror=alert(2)&gt;\\n\\x07.jpg" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


@pytest.mark.parametrize(("width", "mobile"), [(1280, False), (390, True)])
def test_in_a_browser_nothing_overflows_no_error_is_logged_and_tables_sort(page, width, mobile):
    with Browser(width, mobile=mobile) as browser:
        browser.open_fitting(page)
        shown = "return [...document.querySelectorAll('.tile image')].every(i => i.getBBox().width > 0)"
        assert browser.run(shown)
        column = "[...document.querySelectorAll('#classes tbody tr')].map(r => parseInt(r.cells[2].textContent))"
        press = "document.querySelectorAll('#classes th')[2].querySelector('button').click();"
        down, up = browser.run(f"{press} return {column}"), browser.run(f"{press} return {column}")
        assert down == sorted(down, reverse=True)
        assert up == sorted(up)
        severities = browser.run(
            "document.querySelector('#findings th button').click();"
            "return [...document.querySelectorAll('#findings tbody tr')].map(r => r.cells[0].dataset.key)"
        )
        assert severities == sorted(severities)
        assert browser.log() == []


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """`command(data, ...)`: exit code and output of `data check` in an own folder, with a small network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    (tmp_path / "wide.yaml").write_text("anchors:\n  - [4,4, 16,16, 48,48, 160,160, 500,500]\n")

    def run(data, *flags):
        code = main(["check", str(data), "--cfg", "wide.yaml", *flags])
        return code, capsys.readouterr().out

    return run


def test_the_command_writes_table_and_page_and_returns_the_code_of_the_severity(seeded, clean, tmp_path, command):
    code, out = command(seeded[0])
    assert code == 4
    assert re.search(r"error +1 box +class beyond nc\n +\S*000\d+\.txt:\d+: class 7; the data set has 7\n +-> ", out)
    assert "judged at 640 pixels, by the anchors of wide.yaml (assumed: give --img-size of your training)" in out
    assert (tmp_path / "runs" / "check" / "shapes" / "index.html").is_file()
    root = shutil.copytree(clean, tmp_path / "set")
    code, out = command(root, "--output", "page", "--img", "320")
    assert code == 0 and "judged at 320 pixels, by the anchors of wide.yaml\n" in out
    next(p for p in (root / "labels" / "train").iterdir() if p.read_text()).unlink()
    code, out = command(root, "--output", "page")
    assert code == 3 and "missing label" in out


def test_control_characters_never_reach_the_terminal(tmp_path, clean, command):
    root = shutil.copytree(clean, tmp_path / "set")
    names = 'names: ["\\e[2J", crate, cone, star, "a\\nb"]'
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\n{names}\n")
    (root / "images" / "train" / "\x1b]0;x\x07\n.jpg").write_bytes(b"no image")
    _, out = command(root)
    assert "\\x1b]0;x\\x07\\n.jpg" in out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", out)


def test_both_images_of_a_pair_stand_side_by_side_and_places_are_named_from_the_folder_on(page):
    text = page.read_text()
    captions = [" ".join(c.split()) for c in re.findall(r"<figcaption>(.*?)</figcaption>", text, re.DOTALL)]
    reason = '<span class="reason">near duplicates in two splits: '
    first = next(i for i, c in enumerate(captions) if c.startswith("val: near.jpg"))
    partner = re.search(reason + r"(\d+\.jpg)<", captions[first]).group(1)
    assert captions[first + 1].startswith(f"train: {partner}{reason}near.jpg<")
    assert "<li>labels/train/orphan.txt</li>" in text


def test_making_the_page_leaves_the_terminal_to_the_table(clean, tmp_path, capfd):
    """OpenCV complains of a cut-off JPEG without its name, so what was found unreadable is not decoded again."""
    root = shutil.copytree(clean, tmp_path / "set")
    broken = sorted((root / "images" / "train").iterdir())[0]
    broken.write_bytes(broken.read_bytes()[:300])
    examined = examine(root, 320, CFG)
    assert "unreadable image" in [finding.check for finding in examined.report.findings]
    capfd.readouterr()
    text = as_page(examined, "Data check")
    assert capfd.readouterr() == ("", "") and broken.name in text


def test_objects_of_an_xml_file_in_one_line_are_known_by_their_number(tmp_path, monkeypatch):
    """As lines they were all line 1, so that one finding marked every box of the image."""
    monkeypatch.setenv("YOLOV7FAST_CACHE", str(tmp_path / "cache"))
    root = write_voc(tmp_path / "set")
    for path in (root / "Annotations").glob("*.xml"):
        path.write_text(" ".join(path.read_text().split()))
    path = sorted((root / "Annotations").glob("*.xml"))[0]
    (first, *_) = re.findall("<object>.*?</object>", path.read_text())
    other = re.sub(r"<xmax>.*?</xmax>", "<xmax>12</xmax>", first)
    path.write_text(path.read_text().replace(first, first + other + first))
    examined = examine(root, 320, CFG)
    (finding,) = [f for f in examined.report.findings if f.check == "duplicate box"]
    assert [str(place.line) for place in finding.places] == ["3"]
    assert place_text(finding.places[0], examined.report.line_word) == f"{path}, object 3: same as object 1"
