"""What the tests of export share."""

import pytest

from tests.inference.export.networks import mini_source
from yolov7fast.inference.export.network import Source


@pytest.fixture(scope="session")
def mini(tmp_path_factory) -> Source:
    """The trained small network in a folder of its own; files of other tests may stand beside it."""
    return mini_source(tmp_path_factory.mktemp("mini"))
