"""Average precision under the checkout's name."""

from importlib import import_module

import numpy as np


def test_average_precision_is_the_checkouts_with_its_own_plots(known_repo, inside, tmp_path):
    random = np.random.RandomState(0)
    tp = np.sort(random.rand(300, 10) < np.linspace(0.6, 0.1, 10), 1)[:, ::-1]
    # class 3 has labels and no detections, class 4 the reverse
    inputs = tp, random.rand(300), random.choice([0, 1, 2, 4], 300), random.choice([0, 1, 2, 3], 80)
    inside(known_repo, metrics=False)
    theirs = import_module("utils.metrics").ap_per_class(*inputs, plot=True, save_dir=tmp_path)
    plots = {path.name: path.read_text() for path in tmp_path.glob("*_curve.png")}
    inside.leave()
    inside(known_repo)
    ours = import_module("utils.metrics").ap_per_class(*inputs, plot=True, save_dir=tmp_path)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
        assert a.dtype == b.dtype
    assert len(plots) == 4
    assert {name: (tmp_path / name).read_text().split(" of ")[0] for name in plots} == dict.fromkeys(
        plots, "the checkout's own plot"
    )
    assert (tmp_path / "PR_curve.png").read_text() == plots["PR_curve.png"]
