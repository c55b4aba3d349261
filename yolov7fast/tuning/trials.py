"""Trials: real training iterations with some flags, a few at a time."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import torch

from yolov7fast.core.device import time_synchronized
from yolov7fast.core.errors import UserError
from yolov7fast.core.files.shipped import PACKAGE
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.families.yolo.family import effective_hyp
from yolov7fast.families.yolo.network import build_model
from yolov7fast.profiling.measure import batches
from yolov7fast.profiling.synthetic import ProfiledFamily
from yolov7fast.training.distributed import World
from yolov7fast.training.hyperparameters import load_hyp
from yolov7fast.training.step import TrainStep, choose_amp
from yolov7fast.tuning.dimensions import Flags

ITERATIONS, TIMED_SECONDS = 6, 2.5  # limits of the timed part of a burst
AHEAD = 2  # batches that a loader process makes ahead of its use: they are used up before the clock starts,
WARM_SECONDS = 1.5  # unless that takes longer: where an iteration is slow, loaders keep up with it
SLOW, FEWEST_IMAGES = 0.7, 2  # seconds of an iteration on a CPU beyond which trials use a smaller batch, and its least


def trial_batch(opt: Namespace, data: DataYaml, device: torch.device) -> int:
    """The batch size of trials: the run's own, or on a CPU one whose iterations are short.

    A CPU takes the same time for each image of a batch; a GPU does not, and is measured with the run's batch.
    """
    if device.type != "cpu":
        return opt.batch_size
    trial = TrainingTrial(opt, data, device, {})
    try:
        seconds = trial.burst() * opt.batch_size
    finally:
        trial.close()
    return opt.batch_size if seconds <= SLOW else max(FEWEST_IMAGES, int(opt.batch_size * SLOW / seconds))


class TrainingTrial:
    """A network with its data and optimizer, as the flags ask for."""

    def __init__(self, opt: Namespace, data: DataYaml, device: torch.device, flags: Flags, iterations: int = 0):
        """opt: all options of a training; flags: those that differ."""
        self.opt = Namespace(**{**vars(opt), **flags})
        self.device, self.iterations = device, iterations or ITERATIONS
        self.scratch = tempfile.TemporaryDirectory()
        self.opt.save_dir, self.opt.evolve = self.scratch.name, True  # a family that draws and keeps nothing
        self.opt.total_batch_size = self.opt.batch_size
        torch.manual_seed(0)
        hyp = effective_hyp(load_hyp(self.opt.hyp), self.opt)
        self.threads = self.opt.torch_threads or torch.get_num_threads()
        model = build_model(self.opt, hyp, data.nc, device)
        self.family = ProfiledFamily(self.opt, data, model, device, World(), hyp=hyp)
        family = self.family
        family.model.train()
        family.assigner = family.assigners[-1].assigner
        amp = choose_amp(self.opt.amp, device)
        self.step = TrainStep(family, family.model, family.net, family.optimizer, family.ema, device, amp=amp)
        self.rates = family.schedule.rates(0, 0, 0)._replace(accumulate=1)
        self.stream: Iterator[Any] = batches(family.loader, sys.maxsize)
        self.startup = 0.0

    def burst(self) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        cv2.setNumThreads(self.opt.opencv_threads)
        try:
            self._iterate(1 + AHEAD * self.family.loader.num_workers, WARM_SECONDS)
            began = time_synchronized()
            images = self._iterate(self.iterations, TIMED_SECONDS)
            return (time_synchronized() - began) / images
        finally:
            torch.set_num_threads(before)
            cv2.setNumThreads(0)

    def _iterate(self, count: int, seconds: float = math.inf) -> int:
        """Train for `count` iterations, of which none begins after `seconds`; returns the number of images."""
        images, until = 0, time.monotonic() + seconds
        for number in range(count):
            if number and time.monotonic() > until:
                break
            batch = next(self.stream)
            self.step(batch, 0, self.rates)
            images += len(batch[0])
        self.step.sync_metrics()
        return images

    def close(self) -> None:
        self.family.close()
        self.scratch.cleanup()


class ValidationTrial(TrainingTrial):
    """The averaged network alone, on batches of the size that validation uses."""

    def burst(self) -> float:
        batch = self.opt.test_batch_size or 2 * self.opt.batch_size
        size = self.family.test_size
        network = self.family.averaged.ema
        images = torch.zeros(batch, 3, size, size, device=self.device)
        with torch.inference_mode():
            network(images)
            began = time_synchronized()
            rounds = math.ceil(self.iterations * self.opt.batch_size / batch)
            for _ in range(rounds):
                network(images)
            return (time_synchronized() - began) / (rounds * batch)


class ChildTrial:
    """A trial in a process of its own: for what must be chosen before torch is loaded, and for what cannot be stopped.

    The first burst starts it; `startup` is what its first iteration took longer than the others.
    """

    def __init__(
        self, options: Mapping[str, Any], flags: Flags, seconds: float, environment: Mapping[str, str] | None = None
    ):
        self.options, self.seconds, self.environment = {**options, **flags}, seconds, dict(environment or {})
        self.startup = 0.0

    def burst(self) -> float:
        command = [sys.executable, "-m", "yolov7fast.tuning.child"]
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))  # from any folder
        try:
            done = subprocess.run(
                command,
                input=json.dumps(self.options),
                capture_output=True,
                text=True,
                timeout=self.seconds,
                env={**os.environ, "PYTHONPATH": path, **self.environment},
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not ready in {self.seconds:.0f} s") from None
        if done.returncode:
            raise UserError(f"it fails: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        first, *others = json.loads(done.stdout.splitlines()[-1])
        usual = sorted(others)[len(others) // 2]
        self.startup = max(first - usual, 0.0) * self.options["batch_size"]
        return usual

    def close(self) -> None:
        """Its process has ended with its burst."""
