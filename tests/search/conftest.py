"""Fixtures of the tests of the trial runner."""

import json

import pytest

from tests.search.fake_trials import ROOT
from yolov7fast.core.process import child
from yolov7fast.search.trial_training import Budget, YoloTrialTraining


@pytest.fixture
def quick(monkeypatch):
    """From the project's root, and without waiting."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(child, "LOOK_SECONDS", 0.02)


@pytest.fixture
def project_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def trainer(project_root) -> YoloTrialTraining:
    return YoloTrialTraining("configs/tiny_smoke.yaml", Budget(epochs=5, size=320))


@pytest.fixture
def fake(monkeypatch):
    """`fake(trial_003="crash")` makes trials misbehave; see fake_train.py."""
    return lambda **kinds: monkeypatch.setenv("FAKE", json.dumps(kinds))
