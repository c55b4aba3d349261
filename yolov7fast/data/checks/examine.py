"""All checks of a data set: images are read once (facts of unchanged files come from the cache), then the labels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from yolov7fast.data.checks.check_findings import CheckReport, Findings
from yolov7fast.data.checks.dataset_checks import DEFAULT_CFG, anchors_of, check_classes, check_sizes, count
from yolov7fast.data.checks.image_checks import check_duplicates, check_images
from yolov7fast.data.checks.label_checks import Objects, check_labels, collect
from yolov7fast.data.formats.annotated_set import AnnotatedSet, Sample
from yolov7fast.data.formats.recognise import recognise
from yolov7fast.data.image_facts import look_at


@dataclass
class Examined:
    """A report with the data that it was made from."""

    report: CheckReport
    annotated: AnnotatedSet
    samples: list[Sample]  # of all splits
    objects: Objects
    facts: np.ndarray  # FACTS (n,) of the samples' images


def examine(path: str | Path, img_size: int = 640, cfg: str = DEFAULT_CFG) -> Examined:
    """Check a data set in any format.

    Args:
        path: data YAML, folder, .zip, COCO .json or .csv.
        img_size: the training size in pixels by which boxes are judged.
        cfg: the network whose anchors the boxes are judged by.
    """
    found = recognise(path)
    anchors = anchors_of(cfg)
    annotated = found.read()
    samples, objects = collect(annotated)
    facts = look_at([sample.image for sample in samples], str(found.root))
    findings, splits = Findings(), list(annotated.splits)
    figures = count(samples, objects, splits, annotated.names, img_size)
    check_labels(annotated, samples, objects, findings)
    check_classes(figures, splits, found.yolo.path if found.yolo else str(found.root), findings)
    check_images(samples, facts, findings)
    check_duplicates(samples, objects.split, splits, facts, findings)
    check_sizes(samples, objects, facts, anchors, figures, findings)
    ordered, summary = findings.sorted(), annotated.counts()
    report = CheckReport(
        str(path), found.kind, found.evidence, annotated.line_word, summary, annotated.notes, ordered, figures
    )
    return Examined(report, annotated, samples, objects, facts)
