"""The import path under which checkpoints name the heads of multi-head networks."""

from yolov7fast.nn.multihead import MultiHeadDetect, MultiHeadDetectAttention

__all__ = ["MultiHeadDetect", "MultiHeadDetectAttention"]
