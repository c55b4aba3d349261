"""Files, feeding, links, hours: arithmetic against files that were really written and cases done by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.small_network import small_network
from yolov7fast.checkpoint.write import save_checkpoint
from yolov7fast.data.caches.packed import PackedImages
from yolov7fast.data.data_yaml import load_data_yaml
from yolov7fast.data.dataset import LoadImagesAndLabels
from yolov7fast.planning import feeding, files, running
from yolov7fast.planning.feeding import SampleCost
from yolov7fast.training.hyperparameters import load_hyp

HYP = load_hyp("data/hyp.scratch.p5.yaml")


@pytest.fixture
def dataset(shapes_small) -> LoadImagesAndLabels:
    return LoadImagesAndLabels(load_data_yaml(shapes_small / "shapes.yaml").split("train"), 64, augment=True, hyp=HYP)


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_packed_cache_has_the_predicted_size(dataset, tmp_path):
    ram, disk = files.cache_bytes(dataset.shapes, dataset.img_files, 64)
    pack = PackedImages.open_or_build(dataset.img_files, 64, augment=True, cache_dir=tmp_path)
    assert pack.nbytes == disk
    assert ram == sum(pack.get(i).img.nbytes for i in range(len(pack)))


def test_a_checkpoint_has_about_the_predicted_size(tmp_path):
    model = small_network(3, ["a", "b", "c"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    half = small_network(3, ["a", "b", "c"]).half()
    content = {"model": half, "ema": small_network(3, ["a", "b", "c"]).half(), "optimizer": optimizer.state_dict()}
    content["resume"] = {"model": state, "ema": {k: v.clone() for k, v in state.items()}}
    save_checkpoint(content, tmp_path / "last.pt")
    save_checkpoint({"model": half}, tmp_path / "best.pt")
    whole, inside, final, init = files.checkpoint_bytes(model, adam=False)
    overhead = 400_000  # of pickles: names, and a header of each tensor, which count in so small a network alone
    assert 0 <= (tmp_path / "last.pt").stat().st_size - whole < 3 * overhead
    assert 0 <= (tmp_path / "best.pt").stat().st_size - final < overhead
    learnt = sum(p.numel() for p in model.parameters())
    assert inside - whole == 4 * learnt and init == 2 * final
    assert files.checkpoint_bytes(model, adam=True)[0] - whole == 4 * learnt


def test_a_runs_folder_holds_the_checkpoints_that_stay(dataset):
    model = small_network(3, ["a", "b", "c"])
    found = files.file_bytes(model, False, 60, dataset.shapes, dataset.img_files, 64)
    stay = 1 + 2 + 5 + 3  # the first epoch, 25 and 50, the last five; last, previous, best
    assert found.kept == found.checkpoint * stay + found.init


# --- feeding ----------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_sample_is_measured_for_each_kind_of_cache(shapes_small, dataset):
    source = load_data_yaml(shapes_small / "shapes.yaml").split("train")
    before = np.random.get_state()[1].copy()
    costs = feeding.measure_samples(source, 64, HYP, seconds=0)
    assert list(costs) == list(feeding.KINDS) and all(cost.cpu_ms > 0 and cost.samples >= 2 for cost in costs.values())
    assert [cost.read_bytes > 0 for cost in costs.values()] == [True, False, False]
    assert np.array_equal(np.random.get_state()[1], before)


def test_bytes_read_count_the_tiles_of_mosaics_and_of_their_blends(dataset):
    size = np.mean([Path(path).stat().st_size for path in dataset.img_files])
    dataset.hyp = HYP | {"mosaic": 1.0, "mixup": 0.0}
    assert feeding.file_bytes_read(dataset) == pytest.approx(5 * size)  # 0.8 * 4 + 0.2 * 9
    dataset.hyp = HYP | {"mosaic": 0.5, "mixup": 0.5}
    assert feeding.file_bytes_read(dataset) == pytest.approx(0.5 * 7.5 * size + 0.5 * size)


def test_cores_and_disk_for_images_a_second():
    assert feeding.need(SampleCost(5.0, 2e5, 10), 400) == pytest.approx((2.0, 8e7))


# --- several GPUs, hours, money ---------------------------------------------------------------------------------------


def test_the_link_below_which_the_exchange_is_exposed():
    """Batch 64 at 640 images/s: 100 ms a step, 66.7 ms of it backward; a ring of 4 sends 1.5 times the gradients."""
    found = running.exchange(100_000_000, 4, 64, 640.0)
    assert found.sent_bytes == 150_000_000 and found.hidden_from == pytest.approx(2.25e9)
    assert found.exposed_ms[1.25e9] == pytest.approx(120 - 200 / 3) and found.exposed_ms[25e9] == 0
    assert running.exchange(1000, 1, 64, 640.0).sent_bytes == 0


def test_hours_and_money():
    assert running.duration(3600, 100, 50.0, 2, 1.5) == pytest.approx((1.0, 1.5))
    assert running.duration(3600, 100, 50.0, 2, None).cost is None
