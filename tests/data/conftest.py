"""Recorded figures of the data path, read once."""

import pytest


@pytest.fixture(scope="session")
def data(golden):
    """Scalars and hashes."""
    return golden("data.json.gz")


@pytest.fixture(scope="session")
def arrays(golden):
    """Label arrays, matrices and polygons by name."""
    with golden("data_labels.npz") as archive:
        return dict(archive)
