"""Which assigner an epoch has: by name, by `loss_ota`, late, or by a schedule; and what the flags change."""

import pytest

from yolov7fast.cli.checks import check_train
from yolov7fast.cli.parser import parser_for
from yolov7fast.core.errors import UserError
from yolov7fast.losses.assigners import assigner_at, assigner_stages
from yolov7fast.training.hyperparameters import check_hyp, load_hyp, with_assigner

HYP = load_hyp("tiny")


def by_epoch(epochs: int, **change) -> str:
    """First letters of the assigners of all epochs."""
    stages = assigner_stages(check_hyp(HYP | change, "x"), epochs)
    return "".join(assigner_at(stages, epoch)[0] for epoch in range(epochs))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "ooooo"),
        ({"loss_ota": 0}, "ppppp"),
        ({"assigner": "tal"}, "ttttt"),
        ({"loss_ota_from": 0.5}, "pppoo"),
        ({"loss_ota_from": 2}, "ppooo"),
        ({"loss_ota_from": 0.5, "loss_ota": 0}, "ppppp"),
        ({"loss_ota_from": 0.5, "assigner": "tal"}, "ppptt"),
        ({"assigner_schedule": [[0, "plain"], [0.5, "ota"]]}, "pppoo"),
        ({"assigner_schedule": [[0, "plain"], [0.2, "tal"], [4, "ota"]]}, "pttto"),
        ({"assigner_schedule": [[0, "tal"]]}, "ttttt"),
        ({"assigner_schedule": [[0, "plain"], [0.1, "ota"], [0.15, "tal"]]}, "ptttt"),  # both begin in epoch 1
    ],
)
def test_the_assigner_of_each_epoch(change, expected):
    assert by_epoch(5, **change) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("plain", "must be .* rows"),
        ([[True, "plain"]], "must be .* rows"),
        ([[0, "plain"], [0, "ota"]], "0 is not a valid start"),
        ([[0, "plain"], [1.5, "ota"]], r"1\.5 is not a valid start"),
        ([[0, "plain"], [float("nan"), "ota"]], "nan is not a valid start"),
        ([[0, "plain"], [2, "atss"]], "unknown assigner 'atss'; known are ota, plain, tal"),
    ],
)
def test_a_wrong_schedule_is_answered_in_one_line(value, message):
    with pytest.raises(UserError, match=rf"x\.yaml: .*{message}") as error:
        check_hyp(HYP | {"assigner_schedule": value}, "x.yaml")
    assert "\n" not in str(error.value)


def test_a_schedule_stands_alone_and_in_order():
    schedule = {"assigner_schedule": [[0, "plain"], [3, "tal"], [0.2, "ota"]]}
    with pytest.raises(UserError, match="ota would begin in epoch 1, before tal in epoch 3"):
        assigner_stages(check_hyp(HYP | schedule, "x"), 5)
    for other in ({"assigner": "ota"}, {"loss_ota_from": 0.5}):
        with pytest.raises(UserError, match=f"assigner_schedule and {next(iter(other))} both select"):
            check_hyp(HYP | {"assigner_schedule": [[0, "ota"]]} | other, "x")


def test_flags_have_the_last_word():
    scheduled = check_hyp(HYP | {"assigner_schedule": [[0, "plain"], [0.5, "ota"]]}, "x")
    late = check_hyp(HYP | {"loss_ota_from": 0.5}, "x")
    assert with_assigner(scheduled, None, "") == scheduled
    for hyp in (scheduled, late):
        assert assigner_stages(with_assigner(hyp, None, "tal"), 10) == [(0, "tal")]
    assert assigner_stages(with_assigner(scheduled, 1, ""), 10) == [(0, "ota")]
    assert assigner_stages(with_assigner(late, 1, ""), 10) == [(0, "plain"), (5, "ota")]  # as before the flag existed
    with pytest.raises(UserError, match="--assigner: unknown assigner 'atss'"):
        with_assigner(HYP, None, "atss")
    with pytest.raises(UserError, match="--assigner and --loss-ota both select"):
        check_train(parser_for("train").parse_args(["--assigner", "tal", "--loss-ota", "1"]))
