"""Evaluation of the stub checkout: one image after the other, one detection after the other."""

import argparse
from pathlib import Path

import numpy as np
import torch
import yaml

from models.experimental import attempt_load
from utils.datasets import create_dataloader
from utils.general import box_iou, non_max_suppression, xywh2xyxy
from utils.metrics import ConfusionMatrix, ap_per_class


def test(data, weights=None, batch_size=8, imgsz=64, model=None, dataloader=None, save_dir=".", compute_loss=None):
    device = torch.device("cpu")
    if model is None:
        model = attempt_load(weights, map_location=device)
    if dataloader is None:
        opt = argparse.Namespace(single_cls=False)
        dataloader = create_dataloader(data["val"], imgsz, batch_size, 32, opt, pad=0.5, rect=True, workers=0)[0]
    model.eval()
    iouv, stats, loss, confusion = torch.linspace(0.5, 0.95, 10), [], torch.zeros(3), ConfusionMatrix(model.nc)
    for img, targets, _, _ in dataloader:
        img, targets = img.to(device).float() / 255, targets.to(device)
        h, w = img.shape[2:]
        with torch.no_grad():
            out, maps = model(img)
        if compute_loss:
            loss += compute_loss([x.float() for x in maps], targets)[1][:3]
        targets[:, 2:] *= torch.tensor([w, h, w, h]).float().to(device)
        for si, pred in enumerate(non_max_suppression(out, 0.001, 0.6, multi_label=True)):
            labels = targets[targets[:, 0] == si, 1:]
            correct = torch.zeros(len(pred), 10, dtype=torch.bool)
            tbox = xywh2xyxy(labels[:, 1:5])
            confusion.process_batch(pred, torch.cat((labels[:, :1], tbox), 1))
            for cls in torch.unique(labels[:, 0]):
                ti, pi = (cls == labels[:, 0]).nonzero().view(-1), (cls == pred[:, 5]).nonzero().view(-1)
                if len(pi):
                    ious, i = box_iou(pred[pi, :4], tbox[ti]).max(1)
                    detected = set()
                    for j in (ious > iouv[0]).nonzero():
                        if ti[i[j]].item() not in detected:
                            detected.add(ti[i[j]].item())
                            correct[pi[j]] = ious[j] > iouv
            stats.append((correct.numpy(), pred[:, 4].numpy(), pred[:, 5].numpy(), labels[:, 0].numpy()))
    stats = [np.concatenate(x, 0) for x in zip(*stats)]
    p, r, ap, _, _ = ap_per_class(*stats, plot=True, save_dir=save_dir)
    return (float(p.mean()), float(r.mean()), float(ap[:, 0].mean()), float(ap.mean())), loss.tolist(), confusion.seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="last.pt")
    parser.add_argument("--data", default="data.yaml")
    opt = parser.parse_args()
    print("results", *test(yaml.safe_load(Path(opt.data).read_text()), opt.weights, save_dir=Path(opt.weights).parent))
