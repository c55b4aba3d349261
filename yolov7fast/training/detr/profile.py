"""--profile N: where the time of DETR's training steps goes."""

from statistics import median

from tqdm import tqdm

from yolov7fast.losses.detr_loss import SetLoss, matcher_timed
from yolov7fast.training.family import Family
from yolov7fast.training.step import Amp, TrainStep
from yolov7fast.training.timing import STAGES, StageTimer

WARM_STEPS = 3  # steps before a measurement


def profile(family: Family, loss: SetLoss, steps: int, amp: Amp) -> None:
    """Run a few steps on the real loader and print where their time goes; the matcher is `assignment`."""
    device, global_step = family.device, 0
    timer, total = StageTimer(device), WARM_STEPS + steps
    step = TrainStep(
        family,
        *(family.model.train(), family.net, family.optimizer, family.ema, device),
        amp=amp,
        clip_norm=family.clip_norm,
    )
    try:
        with matcher_timed(loss), tqdm(total=total, desc="profile") as bar:
            while global_step < total:
                for batch in family.loader:
                    if global_step == WARM_STEPS:
                        timer = StageTimer(device)
                    step(batch, global_step, family.rates(global_step, 0, global_step), timer)
                    global_step += 1
                    bar.update()
                    if global_step == total:
                        break
    finally:
        family.close()
    middle = {stage: median(times) for stage, times in timer.totals().items()}
    whole = sum(middle.values())
    print(f"{'stage':>12s}{'ms':>10s}{'fraction':>10s}   median of {steps} steps on {device.type}")
    for stage in (stage for stage in STAGES if stage in middle):
        print(f"{stage:>12s}{middle[stage]:10.2f}{middle[stage] / whole:10.1%}")
    print(
        f"{'step':>12s}{whole:10.2f}   assignment is the matcher: cost matrix, its copy to the host, SciPy's assignment"
    )
