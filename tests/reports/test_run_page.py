"""The page of a run: complete, within its limit, safe whatever names there are, usable in a browser."""

import json
import re

import cv2
import numpy as np
import pytest

from tests.browser import Browser
from tests.reports.recorded_study import STUDY, write_run
from yolov7fast.reports.run_page import LIMIT, run_page

HOSTILE = "<script>alert(1)</script>\x1b[31m\"'{{ 7*7 }}$\\frac{$"
FILE = "<img src=x onerror=alert(2)>\n\x07.jpg"


def image_file(folder, name: str, noise: bool = False) -> str:
    rng = np.random.default_rng(abs(hash(name)) % 1000)
    pixels = rng.integers(0, 256, (480, 640, 3), np.uint8) if noise else np.full((480, 640, 3), 90, np.uint8)
    ok, data = cv2.imencode(".jpg", pixels)
    assert ok
    (folder / name).write_bytes(data.tobytes())
    return str(folder / name)


def shown_image(path: str, missed: int = 1) -> dict:
    labels = [[0, 0.1, 0.1, 0.4, 0.5, 1, 1.0], [1, 0.5, 0.5, 0.9, 0.9, 0, 1.0]]
    found = [[1, 0.5, 0.5, 0.9, 0.9, 0, 0.93], [0, 0.6, 0.1, 0.8, 0.3, 1, 0.4]]
    counts = {"missed": missed, "false": 1, "wrong": 0}
    return {"path": path, "size": [640, 480], **counts, "labels": labels, "detections": found}


def state_of(names: list[str], images: list[str], **more) -> dict:
    figures = {"P": 0.5, "R": 0.6, "F1": 0.55, "AP75": 0.2}
    classes = [
        {"class": i, "name": name, "labels": 10 + i, "AP50": 0.4 + i / 1e4, "AP": 0.9 - i / 1e4, **figures}
        for i, name in enumerate(names)
    ]
    sizes = {"all": {"labels": 30, "ap50": 0.4, "ap": 0.2, "ar": 0.3}}
    sizes["small"] = {"labels": 0, "ap50": None, "ap": None, "ar": None}
    found = {
        "epoch": 99,
        "images": 87,
        "labels": 30,
        "names": names,
        "classes": classes,
        "sizes": sizes,
        "heads": [],
        "matrix": [[0, 0, 9], [1, 0, 1], [len(names), 1, 5], [0, len(names), 3]],
        "curves": {"x": [0.0, 0.5, 1.0], "lines": [[names[0], 0.4, [1.0, 0.8, 0.0]]], "left_out": 0},
        "first": [shown_image(path) for path in images[:2]],
        "worst": [shown_image(path, 30 - i) for i, path in enumerate(images)],
        "ms_per_image": 12.3,
    }
    progress = {"status": "complete", "epoch": 100, "epochs": 100, "batch": 0, "batches": 10, "updated": 1.7e9}
    return {
        "validation": found | more.pop("found", {}),
        "progress": progress,
        "warnings": [["2026-01-01 10:00", f"careful: {names[0]}"]],
        "commands": [["2026-01-01 09:00", f"python train.py --name '{names[0]}'"]],
        "facts": {"Machine": names[0]},
        "settings": {"name": names[0]},
        "next": [["Resume", f"python train.py --resume '{names[0]}'"]],
        "rate": 1.5,
        "stages": {"forward": 10.0, "loss": 2.0},
        "bottleneck": "the network",
        "images_per_epoch": 1000,
        "batches_per_epoch": 100,
        "memory_gb": 3.2,
        **more,
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page of a run, a class, a file and a head of hostile names."""
    folder = tmp_path_factory.mktemp("page")
    run = write_run(folder / HOSTILE.replace("/", "|"), STUDY["ota"])
    images = [image_file(folder, FILE), image_file(folder, "plain.jpg")]
    heads = [{"name": HOSTILE, "classes": 2, "labels": 9, "P": 0.1, "R": 0.2, "AP50": 0.3, "AP": 0.4}]
    heads.append({"name": "empty", "classes": 1, "labels": 0, "P": None, "R": None, "AP50": None, "AP": None})
    state = json.loads(json.dumps(state_of([HOSTILE, "RBC", "WBC"], images, found={"heads": heads})))
    path = folder / "index.html"
    path.write_text(run_page(run, state), encoding="utf-8")
    return path


def test_the_page_needs_nothing_but_itself(hostile):
    text = hostile.read_text()
    assert len(text.encode()) <= LIMIT
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))


def test_names_are_text_and_nothing_else(hostile):
    text = hostile.read_text()
    assert "<script>alert" not in text and "onerror=alert(2)>" not in text.replace("&gt;", "") and "{{ 7*7" in text
    assert text.count("&lt;script&gt;alert(1)") > 8  # class, head, machine, setting, commands, warning, run
    assert "&lt;img src=x onerror=alert(2)&gt;\\n\\x07.jpg" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


def test_the_page_says_what_a_reader_asks(hostile):
    text = hostile.read_text()
    for part in ("best mAP@.5:.95", "$15.98 at $1.5 an hour", "waiting for data", "By head", "By object size"):
        assert part in text, part
    assert "30 missed, 1 false" in text and "Complete" in text and 'id="live"' not in text
    assert "after 100 of 100 epochs" in text


def test_a_running_run_has_its_progress_and_refreshes(tmp_path):
    run = write_run(tmp_path / "exp", STUDY["ota"], epochs=10)
    progress = {"status": "running", "epoch": 10, "epochs": 100, "batch": 5, "batches": 10, "losses": {"box": 0.04321}}
    text = run_page(run, {"progress": progress | {"updated": 1.7e9}})
    assert "epoch 10/99, batch 5 of 10, about 9.53 h left" in text  # 89.5 epochs of 383 s
    assert 'id="live"' in text and "box 0.04321" in text


def test_before_the_first_epoch_there_is_a_page(tmp_path):
    text = run_page(tmp_path, {"progress": {"status": "running", "epoch": 0, "epochs": 3, "batch": 0, "batches": 4}})
    assert "The first epoch is not complete yet" in text and "epoch 0/2" in text


def test_large_images_and_many_classes_keep_to_the_limit(tmp_path):
    run = write_run(tmp_path / "exp", STUDY["ota"])
    images = [image_file(tmp_path, f"{i}.jpg", noise=True) for i in range(20)]
    for i in range(3):
        image_file(run, f"train_batch{i}.jpg", noise=True)
    names = [f"class {i} " + "x" * 60 for i in range(600)]
    cells = [[i, (i * 7) % 600, 5] for i in range(600)]
    text = run_page(run, state_of(names, images, found={"matrix": cells}))
    assert len(text.encode()) <= LIMIT
    assert text.count("<tr><td>class ") >= 600
    assert "Of the true class" in text and "data:image/png" in text


def test_images_that_are_gone_are_left_out(tmp_path):
    run = write_run(tmp_path / "exp", STUDY["ota"])
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    text = run_page(run, state_of(["a", "b"], [str(tmp_path / "gone.jpg"), str(tmp_path / "broken.jpg")]))
    assert 'id="worst"' not in text and 'id="classes"' in text


def test_a_validation_without_a_label_or_detection_has_a_page(tmp_path):
    run = write_run(tmp_path / "exp", STUDY["ota"], epochs=2)
    nothing = {"matrix": [], "curves": {"x": [], "lines": []}, "classes": [], "worst": [], "first": []}
    text = run_page(run, state_of(["a", "b"], [], found=nothing))
    assert "Nothing was labelled or detected" in text


@pytest.mark.parametrize(("width", "mobile"), [(1280, False), (390, True)])
def test_in_a_browser_curves_show_values_and_tables_sort(hostile, width, mobile):
    with Browser(width, mobile=mobile) as page:
        page.open_fitting(hostile)
        column = "[...document.querySelectorAll('#classes tbody')[0].rows].map(r => r.cells[1].textContent)"
        press = "document.querySelectorAll('#classes th')[1].querySelector('button').click();"
        assert page.run(f"{press} return {column}") == ["12", "11", "10"]
        assert page.run(f"{press} return {column}") == ["10", "11", "12"]
        hover = (
            "const f = document.querySelector('.chart'), s = f.querySelector('svg'), r = s.getBoundingClientRect();"
            "const v = () => f.querySelector('.value').textContent, before = v(), height = f.offsetHeight;"
            "s.dispatchEvent(new PointerEvent('pointermove', {clientX: r.left + r.width / 2, clientY: r.top + 50}));"
            "return [before, v(), f.querySelector('.at').textContent, f.offsetHeight === height]"
        )
        before, now, at, same_height = page.run(hover)
        assert before == "0.251" and now != before and re.fullmatch(r"epoch [45]\d", at) and same_height
        drawn = "return [...document.querySelectorAll('.pair image, .pair use')].map(i => i.getBBox().width > 0)"
        assert page.run(drawn) == [True] * 8
        assert page.log() == []


def test_a_reload_keeps_the_order_and_a_button_pauses_refreshing(tmp_path):
    run = write_run(tmp_path / "exp", STUDY["ota"], epochs=3)
    state = state_of(["a", "b", "c"], [])
    state["progress"] |= {"status": "running", "updated": 1.0}
    path = tmp_path / "index.html"
    path.write_text(run_page(run, state))
    with Browser(1280) as page:
        page.open(path)
        page.run("document.querySelectorAll('#classes th')[1].querySelector('button').click()")
        page.run("document.querySelector('#live button').click()")
        page.open(path)
        order = "return [...document.querySelectorAll('#classes tbody')[0].rows].map(r => r.cells[0].textContent)"
        assert page.run(order) == ["c", "b", "a"]
        assert page.run("return document.querySelector('#live button').textContent") == "Refresh again"
        assert "No update for" in page.run("return document.querySelector('#live .stalled').textContent")
