"""Configurations of transformers' detectors: sizes of detectors in use pass, sizes beyond memory are one line."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.nn.detr_model import check_sizes

USUAL = {
    "d_model": 256,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "decoder_ffn_dim": 2048,
    "num_queries": 300,
    "positional_encoding_temperature": 10000,
    "id2label": {"0": "a"},
    "backbone_config": {"depths": [3, 4, 23, 3], "hidden_sizes": [256, 512, 1024, 2048], "embedding_size": 64},
}


def test_a_detector_in_use_passes():
    check_sizes(USUAL, "here")


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"d_model": 10**7}, "'d_model' is 10000000; at most 8,192"),
        ({"encoder_layers": 10**7}, "'encoder_layers' is 10000000; at most 100"),
        ({"num_queries": 10**12}, "'num_queries' is 1000000000000; at most 100,000"),
        ({"backbone_config": {"depths": [1, 10**9]}}, "'depths' is 1000000000"),
        ({"d_model": 8192, "encoder_layers": 100}, "layers of 8192 channels would not fit into memory"),
        (None, "not a mapping"),
    ],
)
def test_sizes_beyond_memory_are_refused(change, complaint):
    with pytest.raises(UserError, match=f"^here: .*{complaint}"):
        check_sizes(change and USUAL | change, "here")
