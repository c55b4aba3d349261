"""The device computes the next batch while the host reads the former: what waits for what, and how it ends."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.host_sync_finder import WaitFinder, call_places, is_own
from tests.mini_network import NAMES, mini_model
from tests.simulated_device import SIMULATED, simulated_device
from tests.training.families.detr_commands import NETWORKS, needs_transformers
from yolov7fast.core.device import HostMark
from yolov7fast.core.errors import UserError
from yolov7fast.evaluation.coco_metrics import GroundTruth
from yolov7fast.evaluation.eval_loop import EvaluationStopped, evaluate
from yolov7fast.evaluation.eval_outputs import JsonSink
from yolov7fast.losses.loss_builder import build_loss
from yolov7fast.predictors.predictor import Prediction, PredictOptions
from yolov7fast.predictors.yolo_predictor import YoloPredictor
from yolov7fast.training.hyperparameters import load_hyp, scale_gains

SIZE = 64
SHAPE = ((SIZE, SIZE), ((1.0, 1.0), (0.0, 0.0)))
OPTIONS = PredictOptions(conf_thres=0.001, iou_thres=0.6, multi_label=True)
NOTHING = Prediction([torch.zeros(0, 6)] * 2)


def batches(count: int) -> list[tuple]:
    """As a loader gives them: two images each, with two labels."""
    random = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        images = torch.randint(0, 255, (2, 3, SIZE, SIZE), dtype=torch.uint8, generator=random)
        targets = torch.tensor([[0, 0, 0.5, 0.5, 0.3, 0.3], [1, 2, 0.2, 0.7, 0.1, 0.4]])
        made.append((images, targets, [f"{number}_{i}.jpg" for i in range(2)], [SHAPE] * 2))
    return made


# --- real predictors on a device that is watched ----------------------------------------------------------------------


class Watched(WaitFinder):
    """Notes in `trace` when a network runs and when a line of the package waits for the device; transformers' own
    lines, in the networks of DETR, are left out. Plays the device's queue, too."""

    runs_ahead = True

    def __init__(self, pinned: Callable[[torch.Tensor], bool]):
        super().__init__(pinned)
        self.trace: list[str] = []
        self.networks, self.finished, self.inside = 0, 0, False

    def note(self, why: str, operator: str) -> None:
        if self.inside:
            self.add(f"read {self.finished}")
        elif is_own(next(place for place in call_places() if not place.file.startswith("tests/"))):
            self.add(why)

    def add(self, what: str) -> None:
        if self.trace[-1:] != [what]:
            self.trace.append(what)

    def network(self, *_) -> None:
        self.add(f"network {self.networks}")
        self.networks += 1

    def mark(self) -> HostMark:
        return HostMark()

    @contextmanager
    def beside(self, mark) -> Iterator[None]:
        self.inside = True
        yield
        self.inside, self.finished = False, self.finished + 1


def yolo_with_loss() -> YoloPredictor:
    model = mini_model()
    gains = scale_gains(load_hyp("data/hyp.scratch.tiny.yaml"), levels=3, classes=3, img_size=SIZE, smoothing=0.0)
    model.hyp, model.gr = gains, 1.0
    loss = build_loss(model, "plain")
    return YoloPredictor(model, OPTIONS, loss)


def detr(architecture: str = "detr"):
    from yolov7fast.nn.detr_model import build
    from yolov7fast.predictors.detr_predictor import DetrPredictor

    torch.manual_seed(0)
    return DetrPredictor(build(architecture, NAMES, NETWORKS[architecture]), OPTIONS, img_size=SIZE)


def on_simulated_device(predictor, watched: Watched):
    """The same predictor on the simulated device, once it has sent what is sent once."""
    predictor.model.to(SIMULATED)
    predictor.device, predictor.queue, predictor.runs_ahead = SIMULATED, watched, watched.runs_ahead
    predictor(*pinned(batches(1))[0][::3], batches(1)[0][1])
    predictor.model.register_forward_pre_hook(watched.network)
    watched.finished = 0
    return predictor


def pinned(made: list[tuple]) -> list[tuple]:
    return [(images.pin_memory(), *rest) for images, *rest in made]


@pytest.fixture(autouse=True)
def own_suppression(monkeypatch):
    """The one suppression on all devices, whichever operator is installed."""
    monkeypatch.setattr("yolov7fast.predictors.nms.nms_operator", lambda *_: None)


@pytest.mark.parametrize(
    "make",
    [yolo_with_loss, pytest.param(detr, marks=needs_transformers)],
)
def test_a_network_is_launched_before_anything_of_the_former_batch_is_read(make):
    """All reads of a batch come after the launch of the next one, and none in its launch: copies, network, loss."""
    found, expected = (JsonSink(GroundTruth(None, "", [10, 20, 30])) for _ in range(2))
    with simulated_device() as pages:
        watched = Watched(pages.holds)
        predictor, loader = on_simulated_device(make(), watched), pinned(batches(3))
        with watched:
            result = evaluate(predictor, loader, 3, sinks=[found])
        trace = list(watched.trace)
        predictor.runs_ahead = False
        one_by_one = evaluate(predictor, loader, 3, sinks=[expected])
    means = ["copies to the host and waits"] if make is yolo_with_loss else []  # of the losses, at the end
    assert trace == ["network 0", "network 1", "read 0", "network 2", "read 1", "read 2", *means]
    assert result.metrics == one_by_one.metrics and result.seen == 6
    assert len(found.rows) > 10 and found.rows == expected.rows


# --- how it ends ------------------------------------------------------------------------------------------------------


class Ahead:
    """A detector that notes what it is asked for, and the most outputs that were alive at once."""

    runs_ahead = True

    def __init__(self):
        self.trace: list[str] = []
        self.launched, self.most = 0, 0
        self.alive: weakref.WeakSet = weakref.WeakSet()

    def launch(self, images, shapes, targets):
        output, number = torch.zeros(1), self.launched  # kept by `finish` alone
        self.alive.add(output)
        self.most = max(self.most, len(self.alive))
        self.launched += 1
        self.trace.append(f"launch {number}")

        def finish(output=output) -> Prediction:
            self.trace.append(f"finish {number}")
            return NOTHING

        return finish

    def __call__(self, *batch) -> Prediction:
        return self.launch(*batch)()


@pytest.fixture
def waited(monkeypatch) -> list[int]:
    """Grows when the device is waited for."""
    waits: list[int] = []
    monkeypatch.setattr("yolov7fast.evaluation.eval_loop.wait_for_device", lambda: waits.append(1))
    return waits


class Seen(list):
    """A sink that keeps the number of each batch and the first pixel of its image."""

    image_batches = 3

    def __call__(self, batch) -> None:
        self.append((batch.batch_index, int(batch.images[0, 0, 0, 0]), len(batch.targets), float(batch.targets.sum())))


@pytest.mark.parametrize(
    ("count", "trace"),
    [
        (0, []),
        (1, ["launch 0", "finish 0"]),
        (2, ["launch 0", "launch 1", "finish 0", "finish 1"]),
        (4, ["launch 0", "launch 1", "finish 0", "launch 2", "finish 1", "launch 3", "finish 2", "finish 3"]),
    ],
)
def test_all_batches_are_finished_in_order_and_two_outputs_are_alive_at_most(count, trace, waited):
    detector, seen = Ahead(), Seen()
    result = evaluate(detector, batches(count), 3, sinks=[seen])
    assert detector.trace == trace and result.seen == 2 * count
    assert [row[0] for row in seen] == list(range(count))
    assert detector.most <= 2 and not detector.alive and not waited


def test_a_stopped_evaluation_gives_up_what_was_launched_and_waits_for_the_device(waited):
    detector, seen = Ahead(), Seen()
    stops = iter([False, True])
    with pytest.raises(EvaluationStopped):
        evaluate(detector, batches(5), 3, sinks=[seen], should_stop=lambda: next(stops))
    assert detector.trace == ["launch 0", "launch 1", "finish 0", "launch 2", "finish 1"]
    assert waited == [1]


def test_a_loader_that_fails_is_heard_and_the_device_waited_for(waited):
    def failing():
        yield from batches(2)
        raise UserError("no such image")

    detector = Ahead()
    with pytest.raises(UserError, match="no such image"):
        evaluate(detector, failing(), 3)
    assert detector.trace == ["launch 0", "launch 1", "finish 0"] and waited == [1]


def test_a_loader_may_reuse_its_memory_once_the_next_batch_is_asked_for():
    """Except the images, which the device may still be reading: those stay for one batch more."""
    shown, labels = [batch[0].clone() for batch in batches(4)], batches(4)
    memory = torch.zeros(2, *shown[0].shape, dtype=torch.uint8)

    def reusing():
        for number, (images, targets, *rest) in enumerate(labels):
            own = targets.clone()
            yield memory[number % 2].copy_(images), own, *rest
            own.fill_(0)

    seen = Seen()
    evaluate(Ahead(), reusing(), 3, sinks=[seen])
    expected = [(i, int(shown[i][0, 0, 0, 0]), 2, float(labels[i][1].sum())) for i in range(4)]
    assert seen[:3] == expected[:3], "drawn batches"
    assert [row[2:] for row in seen] == [row[2:] for row in expected]
