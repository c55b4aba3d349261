"""The small network of the tests as a file, for steps that take a moment."""

from pathlib import Path

import pytest
import yaml

from tests.small_network import NETWORK


@pytest.fixture
def small_cfg(tmp_path) -> str:
    path = Path(tmp_path) / "small.yaml"
    path.write_text(yaml.safe_dump(NETWORK))
    return str(path)
