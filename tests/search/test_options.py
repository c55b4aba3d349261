"""Flags of tools/run_trials.py that come from the ledger of trials that are resumed."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.search import trial_options as options


@pytest.mark.parametrize(
    "damage, message",
    [
        ({"early_stop_threshold": 7.0}, "--early-stop-threshold is 7.0"),
        ({"trials_file": ""}, "give either --trials-file"),
        ({"base_config": ""}, "give --base-config"),
        ({"repeat": 0}, "--repeat is 0"),
    ],
)
def test_a_damaged_ledger_is_named(tmp_path, damage, message):
    base = ["--base-config", "configs/tiny_smoke.yaml", "--trials-file", "experiments/lr_bs.json"]
    stored = {name: getattr(options.parser().parse_args(base), name) for name in options.STORED_FLAGS}
    asked = options.parser().parse_args(["--output-dir", str(tmp_path), "--resume"])
    options.check(options.resumed(asked, stored))
    with pytest.raises(UserError, match=rf"{message}.*{tmp_path / options.FILE}"):
        options.check(options.resumed(asked, stored | damage))
