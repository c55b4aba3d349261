"""Imported before the state of the process is recorded: the data set's module sets OpenCV's threads on import."""

import yolov7fast.data.dataset  # noqa: F401
