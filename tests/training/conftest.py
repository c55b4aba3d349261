"""Trainings in tests draw no curves, unless a test asks for `draws`."""

from pkgutil import resolve_name

import pytest

from tests.drawing import DRAWN_BY, draw_nothing


@pytest.fixture(scope="module", autouse=True)
def quick_curves():
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture
def draws(monkeypatch) -> None:
    """Asks for the curves of this test's own runs."""
    for place, function in DRAWN_BY.items():
        monkeypatch.setattr(place, resolve_name(function))
