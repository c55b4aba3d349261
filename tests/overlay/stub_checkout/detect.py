"""Detection of the stub checkout: weights, one empty image, boxes."""

import sys

import torch

from models.experimental import attempt_load
from utils.general import non_max_suppression

if __name__ == "__main__":
    model = attempt_load(sys.argv[1], map_location=torch.device("cpu"))
    print("boxes", len(non_max_suppression(model(torch.zeros(1, 3, 64, 64))[0], 0.0001, 0.45)[0]))
