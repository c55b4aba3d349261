"""The search for the fastest flags, on trials whose speed is known."""

import pytest

from yolov7fast.core.errors import UserError
from yolov7fast.tuning.dimensions import Dimension, Effect, dimensions, powers_of_two
from yolov7fast.tuning.search import MOST, Search


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class KnownTrial:
    """Takes as long as `seconds_of(flags)` says; every burst lasts a second of the clock."""

    def __init__(self, clock: Clock, seconds: float, log: list, startup: float = 0.0):
        self.clock, self.seconds, self.log, self.startup = clock, seconds, log, startup
        self.closed = False

    def burst(self) -> float:
        assert not self.closed
        self.clock.now += 1
        self.log.append(self.seconds)
        return self.seconds

    def close(self) -> None:
        self.closed = True


def search_with(seconds_of, seconds=1000.0, startup=0.0, images=1000, **options):
    clock, log, trials = Clock(), [], []

    def make(kind, flags):
        trials.append(KnownTrial(clock, seconds_of(flags), log, startup if flags.get("compile") else 0.0))
        return trials[-1]

    search = Search(make, seconds, images, clock=clock, **options)
    search.log, search.trials = log, trials
    return search


SPEED = {"workers": {0: 1.0, 1: 0.8, 2: 0.5}, "channels_last": {True: 0.9}, "fast_augment": {True: 0.1}}
ASKED = [
    Dimension("workers", ({"workers": 1}, {"workers": 2}), Effect.NOISE),
    Dimension("layout", ({"channels_last": True},), Effect.NOISE),
    Dimension("augmentation", ({"fast_augment": True},), Effect.CHANGED),
]


def known_speed(flags) -> float:
    seconds = 1.0
    for name, value in flags.items():
        seconds *= SPEED[name][value]
    return seconds


def test_the_best_of_each_dimension_is_chosen_and_measured_with_the_choices_before_it():
    search = search_with(known_speed)
    assert search.run(ASKED) == {"workers": 2, "channels_last": True}
    rows = {next(iter(row.setting.items())): row for row in search.rows}
    assert rows["workers", 2].speedup == pytest.approx(2.0) and rows["workers", 1].speedup == pytest.approx(1.25)
    assert rows["channels_last", True].speedup == pytest.approx(1 / 0.9)
    assert [row.chosen for row in search.rows] == [False, True, True, False]
    assert all(trial.closed for trial in search.trials)


def test_what_changes_results_is_neither_measured_nor_chosen_unless_allowed():
    search = search_with(known_speed)
    search.run(ASKED)
    assert "--allow-changes" in search.rows[-1].note and search.rows[-1].speedup == 0
    assert search_with(known_speed, allow_changes=True).run(ASKED)["fast_augment"] is True


def test_a_gain_within_the_noise_leaves_the_default():
    assert search_with(lambda flags: 1.0 - 0.02 * bool(flags)).run(ASKED[:2]) == {}


def test_settings_are_measured_in_turn_and_in_changing_order():
    search = search_with(known_speed)
    search.run(ASKED[1:2])
    assert search.log == [1.0, 0.9, 0.9, 1.0] * (MOST // 2)


def test_without_time_a_comparison_has_two_rounds_and_later_ones_none():
    search = search_with(known_speed, seconds=3.0)
    search.run(ASKED[:2])
    assert search.log == [1.0, 0.8, 0.8, 1.0, 1.0, 0.5, 0.5, 1.0]
    assert "more --minutes" in search.rows[-1].note


def test_a_setting_that_loses_its_first_round_is_given_no_second():
    search = search_with(lambda flags: 1.1 if flags else 1.0)
    assert search.run(ASKED[1:2]) == {} and search.log == [1.0, 1.1]
    assert search.rows[0].speedup == pytest.approx(1 / 1.1)


@pytest.mark.parametrize(("images", "chosen"), [(1000, {"compile": True}), (100, {})])
def test_a_start_up_cost_must_be_earned_back_in_the_planned_epochs(images, chosen):
    """0.5 s saved an image: 100 s to start pay after 200 images."""
    search = search_with(lambda flags: 0.5 if flags else 1.0, startup=100.0, images=images)
    assert search.run([Dimension("compile", ({"compile": True},), Effect.NOISE, kind="compile")]) == chosen
    assert search.rows[0].cost == 100.0


def test_a_setting_that_fails_or_takes_too_long_is_a_row_with_its_reason():
    def seconds_of(flags):
        if flags.get("workers") == 1:
            raise UserError("no such thing here")
        if flags.get("workers") == 2:
            raise TimeoutError("not ready in 5 s")
        return 1.0

    search = search_with(seconds_of)
    assert search.run(ASKED[:1]) == {}
    assert [row.note for row in search.rows] == ["no such thing here", "not ready in 5 s"]


def test_a_dimension_that_needs_another_choice_is_skipped_without_it():
    asked = Dimension("micro-batch", ({"micro_batch": 4},), Effect.NOISE, needs={"fast_dataloader": True})
    assert search_with(lambda flags: 1.0).run([asked]) == {} and asked.applies({"fast_dataloader": True})


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_every_flag_that_is_tried_exists_and_its_values_are_allowed():
    from yolov7fast.cli.flags import flags_of
    from yolov7fast.cli.run_file import check_flag_value

    flags = flags_of("train")
    for place in ((2, 16, False, False), (16, 64, True, True), (1, 1, False, True)):
        for dimension in dimensions(*place):
            for setting in dimension.settings:
                assert {n: check_flag_value(flags[n], v, "here") for n, v in setting.items()} == setting


def test_a_cpu_is_asked_about_threads_and_a_gpu_about_precision():
    """The third argument is what the command finds: whether its device is CUDA's."""
    cpu = {d.name: d for d in dimensions(4, 16, False, False)}
    gpu = {d.name: d for d in dimensions(64, 64, True, True)}
    assert [s["torch_threads"] for s in cpu["torch threads"].settings] == [1, 2] and "torch threads" not in gpu
    assert [s["amp"] for s in gpu["precision"].settings] == ["bf16", "off"]
    assert gpu["workers"].settings[-1] == {"workers": 64} and gpu["workers"].effect is Effect.IDENTICAL
    assert cpu["workers"].effect is Effect.NOISE and cpu["cache"].effect is Effect.IDENTICAL
    assert cpu["precision"].effect is cpu["augmentation"].effect is Effect.CHANGED


def test_powers_of_two_end_with_the_limit():
    assert powers_of_two(6) == [1, 2, 4, 6] and powers_of_two(8) == [1, 2, 4, 8] and powers_of_two(1) == [1]
