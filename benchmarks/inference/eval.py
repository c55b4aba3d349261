"""Cost of evaluation without the network: NMS, matching and AP, compared with plain loops.

    python -m benchmarks.inference.eval [--quick] [--json FILE]

Two inputs: the recorded detections of BCCD val (87 images x 300 boxes, 3 classes), and 5,000 synthetic images x 300
boxes x 80 classes, the size of COCO val (1,000 images with --quick), and a quarter of them, to show how the cost grows.
The loops are in slow_metrics.py; both sides get the same arrays, run in turn in this process and must give the same
results. CPU seconds, medians.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.inference import slow_metrics
from benchmarks.measure import cpu_seconds, in_turn, machine, note, quick_parser, write_json
from benchmarks.photographs import ROOT
from yolov7fast.evaluation.average_precision import ap_by_size, ap_per_class
from yolov7fast.evaluation.detection_matching import Batch, match, native_batch
from yolov7fast.predictors.nms import CLASS_OFFSET, greedy_nms, non_max_suppression

GOLDEN = ROOT / "tests" / "golden" / "eval_bccd.npz"
BATCH = 32  # images that the evaluation loop matches at once
WANTED_AT = 1250  # images from which on the arrays must be 15 times as fast; with fewer, fixed costs weigh more


def recorded() -> list[Batch]:
    """BCCD val as the evaluation loop receives it, in batches."""
    g = np.load(GOLDEN)
    dets = torch.from_numpy(g["det"]).split(g["n_det"].tolist())
    targets = torch.from_numpy(g["targets_img_cls_xywhn"])
    shapes = [((h, w), ((rh, rw), (px, py))) for h, w, rh, rw, px, py in g["h0_w0_rh_rw_padw_padh"].tolist()]
    batches = []
    for start in range(0, len(dets), BATCH):
        own = targets[(targets[:, 0] >= start) & (targets[:, 0] < start + BATCH)].clone()
        own[:, 0] -= start
        part = slice(start, start + BATCH)
        batches.append(native_batch(list(dets[part]), own, shapes[part], tuple(g["letterbox_hw"][0])))
    return batches


def synthetic(images: int, boxes: int = 300, classes: int = 80, seed: int = 0) -> list[Batch]:
    """Batches of 640 px images with 1 to 14 labels of few classes, detected with varying accuracy, among false
    positives."""
    rng = np.random.default_rng(seed)
    batches = []
    for start in range(0, images, BATCH):
        count = min(BATCH, images - start)
        n_labels = rng.integers(1, 15, count)
        label_image = np.repeat(np.arange(count), n_labels)
        present = rng.integers(0, classes, (count, 3))  # an image shows objects of up to three classes
        cls = present[label_image, rng.integers(0, 3, len(label_image))]
        corner, size = rng.uniform(0, 500, (len(cls), 2)), rng.uniform(10, 140, (len(cls), 2))
        labels = np.concatenate((cls[:, None], corner, corner + size), 1)
        det_image = np.repeat(np.arange(count), boxes)
        first = np.cumsum(n_labels) - n_labels
        target = first[det_image] + rng.integers(0, 1 << 30, len(det_image)) % n_labels[det_image]
        near = rng.random(len(det_image)) < 0.5
        xyxy = labels[target, 1:] + rng.normal(0, 1, (len(target), 4)) * np.where(near, 6, 80)[:, None]
        det_cls = np.where(rng.random(len(target)) < 0.7, labels[target, 0], rng.integers(0, classes, len(target)))
        score = -np.sort(-rng.beta(0.4, 4, (count, boxes)), 1).reshape(-1)
        dets = np.concatenate((xyxy, score[:, None], det_cls[:, None]), 1)
        batches.append(Batch(dets.astype(np.float32), det_image, labels.astype(np.float32), label_image))
    return batches


# --- the two sides ----------------------------------------------------------------------------------------------------


def flat(batches: list[Batch], correct: list[np.ndarray]):
    """Arrays over all detections and labels, as AP takes them."""
    score, cls = (np.concatenate([b.detections[:, i] for b in batches]) for i in (4, 5))
    return np.concatenate(correct), score, cls, np.concatenate([b.labels[:, 0] for b in batches])


def fast_side(batches: list[Batch]):
    """Matching as in the evaluation loop."""
    return ap_per_class(*flat(batches, [match(batch).correct for batch in batches]))


def loop_side(images: list[tuple[np.ndarray, np.ndarray]], batches: list[Batch]):
    return slow_metrics.ap_per_class(*flat(batches, [slow_metrics.match_image(*image) for image in images]))


def one_by_one(batches: list[Batch]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(detections, labels) of each image, split beforehand, outside the measured time."""
    return [
        (dets, batch.labels[batch.label_image == i])
        for batch in batches
        for i, dets in enumerate(batch.split(int(batch.det_image[-1]) + 1))
    ]


def compare(name: str, batches: list[Batch], runs: int) -> dict[str, float]:
    """Seconds of matching and AP, separately and together, by loops and by arrays."""
    images = one_by_one(batches)
    fast_flags = [match(batch).correct for batch in batches]
    loop_flags = [slow_metrics.match_image(*image) for image in images]
    assert np.array_equal(np.concatenate(fast_flags), np.concatenate(loop_flags)), "matching differs"
    for got, want in zip(fast_side(batches), loop_side(images, batches)):
        np.testing.assert_allclose(got, want, atol=1e-9)
    records = flat(batches, fast_flags)
    seconds = in_turn(
        {
            "match_loop": lambda: cpu_seconds(lambda: [slow_metrics.match_image(*image) for image in images]),
            "match": lambda: cpu_seconds(lambda: [match(batch) for batch in batches]),
            "ap_loop": lambda: cpu_seconds(lambda: slow_metrics.ap_per_class(*records)),
            "ap": lambda: cpu_seconds(lambda: ap_per_class(*records)),
            "both_loop": lambda: cpu_seconds(lambda: loop_side(images, batches)),
            "both": lambda: cpu_seconds(lambda: fast_side(batches)),
            "by_size": lambda: cpu_seconds(lambda: _by_size(batches, records)),
        },
        runs,
    )
    for what in ("match", "ap", "both"):
        show(f"{name}: {what}", seconds[f"{what}_loop"], seconds[what])
    print(f"{name + ': AP and AR by size':<44}{seconds['by_size'] * 1e3:9.1f} ms more")
    return seconds


def _by_size(batches, records):
    det = np.concatenate([b.detections for b in batches])
    label = np.concatenate([b.labels for b in batches])
    det_area = (det[:, 2] - det[:, 0]) * (det[:, 3] - det[:, 1])
    label_area = (label[:, 3] - label[:, 1]) * (label[:, 4] - label[:, 2])
    return ap_by_size(*records, det_area, det_area, label_area)


def suppression(runs: int) -> dict[str, float]:
    """NMS of one image: recorded output of a small trained network, and a crowded image of 80 classes."""
    raw = torch.from_numpy(np.load(GOLDEN)["first_raw_pred"])[None]
    found = {}
    for name, prediction in (("recorded, 3 classes", raw), ("synthetic, 80 classes", crowd())):
        rows = candidates_of(prediction)
        boxes, scores = (rows[:, :4] + rows[:, 5:6] * CLASS_OFFSET).numpy(), rows[:, 4].numpy()
        assert np.array_equal(greedy_nms(boxes, scores, 0.65), slow_metrics.nms(boxes, scores, 0.65))
        seconds = in_turn(
            {
                "loop": lambda b=boxes, s=scores: cpu_seconds(lambda: slow_metrics.nms(b, s, 0.65)),
                "ours": lambda b=boxes, s=scores: cpu_seconds(lambda: greedy_nms(b, s, 0.65)),
                "whole": lambda p=prediction: cpu_seconds(
                    lambda: non_max_suppression(p, 0.001, 0.65, multi_label=True)
                ),
            },
            max(runs, 5),
        )
        show(f"suppression, {len(boxes)} boxes, {name}", seconds["loop"], seconds["ours"])
        print(f"{'  with filtering of the raw output':<44}{seconds['whole'] * 1e3:9.1f} ms")
        found[name] = seconds | {"boxes": len(boxes)}
    return found


def crowd(rows: int = 6300, classes: int = 80) -> torch.Tensor:
    rng = np.random.default_rng(0)
    centres, sizes = rng.uniform(0, 640, (40, 2)), np.exp(rng.normal(4, 0.5, (40, 2)))
    k = rng.integers(0, 40, rows)
    out = np.zeros((1, rows, 5 + classes), np.float32)
    out[0, :, :2] = centres[k] + rng.normal(0, 8, (rows, 2))
    out[0, :, 2:4] = sizes[k] * np.exp(rng.normal(0, 0.15, (rows, 2)))
    out[0, :, 4], out[0, :, 5:] = rng.beta(0.3, 6, rows), rng.beta(0.1, 8, (rows, classes))
    return torch.from_numpy(out)


def candidates_of(prediction: torch.Tensor) -> torch.Tensor:
    """The candidates of NMS at the settings of test.py: (n, 6)."""
    from yolov7fast.predictors.nms import MAX_CANDIDATES, _candidates

    rows = _candidates(prediction, 0.001, (), True)[1]
    return rows[rows[:, 4].sort(descending=True, stable=True)[1].sort()[1] < MAX_CANDIDATES]


def show(name: str, loop: float, fast: float) -> None:
    print(f"{name:<44}{loop * 1e3:9.1f} ms {fast * 1e3:9.1f} ms {loop / fast:8.1f}x", flush=True)


def ratios(small: dict[str, float], sizes: dict[int, dict[str, float]], runs: int) -> list[dict]:
    """Rows of the final table: loops against arrays, and how the cost of an image grows with their number."""
    few, many = sizes
    speed = {count: seconds["both_loop"] / seconds["both"] for count, seconds in sizes.items()}
    print(f"matching + AP: {speed[many]:.1f}x faster than the loops (wanted: 15x from {WANTED_AT} images on)")
    an_image = {count: seconds["both"] / count for count, seconds in sizes.items()}
    grown = f"matching + AP, cost of an image, {many} / {few} images"
    print(f"{grown}: {an_image[many] * 1e3:.3f} / {an_image[few] * 1e3:.3f} ms")
    bccd = small["both_loop"] / small["both"]
    return [
        {"what": "matching + AP, recorded BCCD, loops / arrays", "value": bccd, "must": "-", "runs": max(runs, 3)},
        *(
            {
                "what": f"matching + AP, {count} x 300 x 80, loops / arrays",
                "value": value,
                "must": ">= 15" if count >= WANTED_AT else "-",
                "runs": runs,
            }
            for count, value in speed.items()
        ),
        {"what": grown, "value": an_image[many] / an_image[few], "must": "-", "runs": runs},
    ]


def main(argv: list[str] | None = None) -> int:
    quick = "1,000 synthetic images instead of 5,000, fewer runs"
    opt = quick_parser("benchmarks.inference.eval", __doc__, quick).parse_args(argv)
    torch.set_num_threads(1)
    runs, images = (1, (250, 1000)) if opt.quick else (3, (1250, 5000))
    print(f"{'':<44}{'loops':>9}    {'arrays':>9}    {'ratio':>9}   ({runs} runs, {images[-1]} synthetic images)")
    results = {"machine": machine(), "runs": runs, "images": images[-1], "nms": suppression(runs)}
    results["recorded"] = compare("recorded BCCD", recorded(), max(runs, 3))
    sizes = {count: compare(f"synthetic {count} x 300 x 80", synthetic(count), runs) for count in images}
    results["synthetic"], results["by_images"] = sizes[images[-1]], sizes
    results["ratios"] = ratios(results["recorded"], sizes, runs)
    crowded = results["nms"]["synthetic, 80 classes"]
    what = f"suppression of {crowded['boxes']:.0f} candidates, loop / ours"
    note(results, what, crowded["loop"] / crowded["ours"], ">= 3", runs)
    write_json(opt.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
