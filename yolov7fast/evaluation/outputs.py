"""What an evaluation writes and prints: while it runs by sinks, which are fed with batches, and at its end."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from yolov7fast.core.errors import UserError
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.data.labels import check_class_range
from yolov7fast.evaluation.loop import EvalResult, SeenBatch, Sink
from yolov7fast.evaluation.report import draw_curves, print_coco, print_speed, print_table, write_files
from yolov7fast.metrics.boxes import xyxy2xywh
from yolov7fast.metrics.coco import GroundTruth, ImageList, coco_stats, detection_rows, ground_truth, write_json
from yolov7fast.metrics.confusion import ConfusionMatrix
from yolov7fast.plots import plot_images

log = logging.getLogger(__name__)
PICTURED_BATCHES = 3
PICTURED_IMAGES = 16


class TextSink:
    """`labels/<stem>.txt`: a line for each detection, best first: class, xywh normalised, and the score if wanted.

    A file is begun anew by each run; images of one stem in several folders share it.
    """

    def __init__(self, folder: Path, save_conf: bool):
        self.folder, self.save_conf, self.begun = folder, save_conf, set()
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, batch: SeenBatch) -> None:
        for path, (size, _), dets in zip(batch.paths, batch.shapes, batch.native.split(len(batch.paths))):
            if not len(dets):
                continue
            h, w = size
            xywh = xyxy2xywh(dets[:, :4]) / np.array([w, h, w, h], np.float32)
            columns = [dets[:, 5:6], xywh] + ([dets[:, 4:5]] if self.save_conf else [])
            lines = [" ".join(f"{value:g}" for value in row) for row in np.concatenate(columns, 1).tolist()]
            stem = Path(path).stem
            with (self.folder / f"{stem}.txt").open("a" if stem in self.begun else "w") as f:
                f.write("\n".join(lines) + "\n")
            self.begun.add(stem)


class JsonSink:
    """Collects COCO's rows."""

    def __init__(self, truth: GroundTruth):
        self.truth = truth
        self.rows: list[dict[str, Any]] = []

    def __call__(self, batch: SeenBatch) -> None:
        for path, dets in zip(batch.paths, batch.native.split(len(batch.paths))):
            self.rows += detection_rows(path, dets, self.truth)


class PictureSink:
    """`test_batch{0,1,2}_{labels,pred}.jpg`, drawn by a thread of its own while the evaluation goes on.

    The thread gets copies, since the loader may reuse the batch's memory. `close` waits for it.
    """

    def __init__(self, save_dir: Path, names):
        self.save_dir, self.names = save_dir, names
        self.pool = ThreadPoolExecutor(1)
        self.drawings: list[Future] = []

    def __call__(self, batch: SeenBatch) -> None:
        if batch.index >= PICTURED_BATCHES:
            return
        images = batch.images[:PICTURED_IMAGES].cpu().clone()
        paths = list(batch.paths[: len(images)])
        for kind, targets in (("labels", batch.targets.cpu().clone()), ("pred", detections_as_targets(batch))):
            fname = self.save_dir / f"test_batch{batch.index}_{kind}.jpg"
            self.drawings.append(self.pool.submit(plot_images, images, targets, paths, fname, self.names))

    def close(self) -> None:
        """Wait for the pictures; a failed one is told, but costs no figures."""
        self.pool.shutdown()
        for error in filter(None, (drawing.exception() for drawing in self.drawings)):
            log.warning("a picture of %s could not be drawn: %s", self.save_dir, error)


def detections_as_targets(batch: SeenBatch) -> np.ndarray:
    """(n, 7) image, class, xywh in pixels of the batch, score."""
    rows = [np.zeros((0, 7), np.float32)]
    for i, dets in enumerate(batch.detections):
        dets = dets.cpu().numpy()
        xywh = xyxy2xywh(dets[:, :4])
        rows.append(np.concatenate((np.full((len(dets), 1), i), dets[:, 5:6], xywh, dets[:, 4:5]), 1))
    return np.concatenate(rows)


class Outputs:
    """All that one evaluation writes.

    data_set: the loader's, with img_files, label_files, labels (m, 5) and shapes (n, 2) w, h. alone: a command of its
    own, which tells more than a validation inside training.
    """

    def __init__(self, save_dir: Path, data: DataYaml, single_cls: bool, data_set, alone: bool):
        self.save_dir, self.data, self.data_set, self.alone = save_dir, data, data_set, alone
        self.names = ["item"] if single_cls and data.nc > 1 else data.names
        self.sinks: list[Sink] = []
        self.rows: JsonSink | None = None
        self.matrix: ConfusionMatrix | None = None
        self.pictures: PictureSink | None = None
        save_dir.mkdir(parents=True, exist_ok=True)

    def check_labels(self, needed: bool) -> None:
        """Refuse labels beyond nc. A set without any label is refused too, unless its boxes are what is wanted."""
        files = self.data_set.label_files
        check_class_range(self.data_set.labels, files, len(self.names), self.data.path)
        if not any(map(len, self.data_set.labels)):
            message = f"none of the {len(files)} images has a label"
            message += f" (looked in {Path(files[0]).parent})" if len(files) else ""
            if needed:
                raise UserError(f"{message}: nothing to measure; --save-txt and --save-json write detections without")
            log.warning("%s: all figures will be 0", message)

    def add_text(self, save_conf: bool) -> None:
        self.sinks.append(TextSink(self.save_dir / "labels", save_conf))

    def add_json(self, annotations: str | None, is_coco: bool, file_name: str) -> None:
        images = ImageList(self.data_set.img_files, self.data_set.shapes, self.data_set.labels)
        self.rows = JsonSink(ground_truth(annotations, images, self.names, is_coco))
        self.sinks.append(self.rows)
        self.json_path = self.save_dir / file_name

    def add_pictures(self) -> None:
        self.matrix = ConfusionMatrix(len(self.names))
        self.pictures = PictureSink(self.save_dir, self.names)
        self.sinks += [self.pictures, lambda batch: self.matrix.update(batch.native)]

    def finish(self, result: EvalResult, settings: dict[str, Any], verbose: bool) -> EvalResult:
        """Print and write what follows from the figures; pycocotools' replace ours in the result where it ran."""
        print_table(result, self.names, per_class=verbose or (self.alone and len(self.names) < 50))
        if self.alone:
            print_speed(result, settings["precision"])
        if self.rows is not None:
            result = self._finish_json(result)
        if self.alone or self.matrix is not None:
            write_files(result, self.names, self.save_dir, settings)
        if self.matrix is not None:
            curves = (result, self.matrix.matrix, self.names, self.save_dir)
            self.pictures.drawings.append(self.pictures.pool.submit(draw_curves, *curves))
            self.pictures.close()
        return result

    def _finish_json(self, result: EvalResult) -> EvalResult:
        write_json(self.rows.rows, self.json_path)
        print(f"{len(self.rows.rows)} detections in {self.json_path}; ground truth: {self.rows.truth.source}")
        stats = coco_stats(self.rows.truth, self.rows.rows)
        if stats:
            result = result.with_coco(stats)
            print_coco(result)
        return result
