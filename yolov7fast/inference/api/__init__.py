"""The Python interface: `yolov7fast.load` and `yolov7fast.train`, and what they return."""
