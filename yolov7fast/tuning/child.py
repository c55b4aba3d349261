"""A few iterations in a process of its own: options as JSON on the standard input, seconds an image of each iteration
as JSON on the last line of the standard output."""

import json
import sys
import time
from argparse import Namespace

from yolov7fast.core.device import select_device
from yolov7fast.data.data_yaml import DataYaml
from yolov7fast.tuning.trials import TrainingTrial


def main() -> None:
    options = json.load(sys.stdin)
    names, iterations = options.pop("class_names"), options.pop("iterations")
    opt = Namespace(**options)
    device = select_device(opt.device)
    data = DataYaml("synthetic", len(names), names)
    trial = TrainingTrial(opt, data, device, {"synthetic": True})
    times = []
    for _ in range(iterations):
        began = time.perf_counter()
        trial._iterate(1)
        times.append((time.perf_counter() - began) / opt.batch_size)
    trial.close()
    print(json.dumps(times))


if __name__ == "__main__":
    main()
