"""Trainings in tests draw no curves, unless a test asks for `draws`."""

from tests.training.conftest import draws, quick_curves

__all__ = ["draws", "quick_curves"]
