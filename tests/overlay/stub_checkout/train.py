"""Training of the stub checkout, with the calls that the overlay meets in a real one."""

import argparse
import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import torch
import yaml

import test
from models.yolo import Model
from utils.datasets import create_dataloader
from utils.loss import ComputeLoss, ComputeLossOTA
from utils.torch_utils import select_device


def train(hyp, opt):
    rank, world = int(os.environ.get("RANK", -1)), int(os.environ.get("WORLD_SIZE", 1))
    if opt.local_rank != -1:
        torch.distributed.init_process_group("gloo")
    device, out, size = select_device(opt.device), Path(opt.project), opt.img_size[0]
    random.seed(2 + rank), np.random.seed(2 + rank), torch.manual_seed(2 + rank)
    with open(opt.data) as f:
        data = yaml.safe_load(f)
    model = Model(opt.cfg, ch=3, nc=np.int(data["nc"])).to(device)
    model.hyp, model.gr = hyp, 1.0
    net = torch.nn.parallel.DistributedDataParallel(model) if opt.local_rank != -1 else model
    dataloader, dataset = create_dataloader(
        data["train"], size, opt.batch_size, 32, opt, hyp=hyp, augment=True, cache=opt.cache_images,
        rect=opt.rect, rank=rank, world_size=world, workers=opt.workers, image_weights=opt.image_weights,
    )  # fmt: skip
    testloader = create_dataloader(data["val"], size, 8, 32, opt, hyp=hyp, pad=0.5, rect=True, workers=0)[0]
    compute_loss, compute_loss_ota = ComputeLoss(net), ComputeLossOTA(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen = [], hashlib.sha256()
    print(f"Starting training for {opt.epochs} epochs...")
    for epoch in range(opt.epochs):
        model.train()
        if opt.image_weights:
            dataset.indices = random.choices(range(dataset.n), weights=[len(x) for x in dataset.labels], k=dataset.n)
        if rank != -1:
            dataloader.sampler.set_epoch(epoch)
        for imgs, targets, paths, _ in dataloader:
            seen.update(imgs.numpy().tobytes() + np.asarray(targets).tobytes() + "".join(paths).encode())
            imgs = imgs.to(device, non_blocking=True).float() / 255.0
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=opt.amp):
                pred = net(imgs)
                loss, items = compute_loss_ota(pred, targets.to(device), imgs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(items.tolist())
            means = "  ".join(f"{x:.4g}" for x in np.mean(losses, 0))
            print(f"\r   {epoch}/{opt.epochs - 1}  0G  {means}  {len(targets)}  {size}: ", end="")
    if rank in (-1, 0):
        torch.save({"epoch": opt.epochs, "model": model.half(), "optimizer": optimizer.state_dict()}, out / "last.pt")
        checkpoint = torch.load(out / "last.pt", map_location=torch.device("cpu"))
        checkpoint["optimizer"] = None
        torch.save(checkpoint, out / "last.pt")
        results = test.test(data, model=model.float(), dataloader=testloader, save_dir=out, compute_loss=compute_loss)
        report = {"losses": losses, "samples": seen.hexdigest(), "results": results, "workers": dataloader.num_workers}
        print(f"\n{opt.epochs} epochs completed in 0.001 hours.")
        (out / f"{opt.name}.json").write_text(json.dumps(report))
    if opt.local_rank != -1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data.yaml")
    parser.add_argument("--hyp", default="data/hyp.scratch.tiny.yaml")
    parser.add_argument("--cfg", default="cfg/training/yolov7-tiny.yaml")
    parser.add_argument("--weights", default="")
    parser.add_argument("--img-size", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--device", default="")
    parser.add_argument("--name", default="run")
    parser.add_argument("--project", default=".")
    for flag in ("rect", "image-weights", "cache-images", "single-cls", "amp"):
        parser.add_argument(f"--{flag}", action="store_true")
    opt = parser.parse_args()
    with open(opt.hyp) as f:
        train(yaml.safe_load(f), opt)
