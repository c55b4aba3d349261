"""An unmodified checkout of WongKinYiu/yolov7, or of a fork, with this project's loss, loader and repairs.

`yolov7fast overlay --repo DIR -- train.py ...`, or as the first lines of a script in DIR:

    import yolov7fast.overlay
    yolov7fast.overlay.install()

Everything happens in memory: no file of the checkout is copied or changed.
"""

from yolov7fast.overlay.parts import OverlaySettings, install

__all__ = ["OverlaySettings", "install"]
