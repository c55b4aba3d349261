"""The OTA study recorded on a rented RTX 5090 (32 GB, PyTorch 2.8 cu128): upstream's code, not measured here.

yolov7-tiny, COCO at 320, batch 64, 100 epochs from scratch, SGD 0.01/0.937, mosaic 1.0, mixup 0.05, no autoanchor.
"""

from typing import Any

WHERE = "RTX 5090, yolov7-tiny, COCO at 320, batch 64, 100 epochs, upstream's code"
RECORDED: dict[str, dict[str, Any]] = {
    "plain": {
        "map50": {10: 0.216, 25: 0.310, 50: 0.365, 75: 0.377, 99: 0.385},  # by epoch
        "final": (0.568, 0.355, 0.385, 0.226),  # precision, recall, mAP@.5, mAP@.5:.95
        "losses": ((0.0963, 0.0602), (0.0460, 0.0398), (0.0830, 0.0295), (0.2254, 0.1295)),  # box, obj, cls, total
        "hours": 1.81, "minutes_an_epoch": 1.09, "dollars": 2.72,
        "stages": (50.2, 11.2, 103.6), "total_ms": 170.9, "busy": 0.900,  # forward, loss, backward of an iteration
    },
    "ota": {
        "map50": {10: 0.247, 25: 0.304, 50: 0.360, 75: 0.395, 99: 0.414},
        "final": (0.558, 0.400, 0.414, 0.251),
        "losses": ((0.0609, 0.0357), (0.0251, 0.0232), (0.0766, 0.0192), (0.1626, 0.0781)),
        "hours": 10.65, "minutes_an_epoch": 6.39, "dollars": 15.98,
        "stages": (50.2, 1016.0, 103.4), "total_ms": 1174.1, "busy": 0.131,
    },
}  # fmt: skip
