"""A network with what the losses ask of one: three levels, three anchors each."""

import torch
from torch import nn

from models.common import Conv

ANCHORS = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))


class Detect(nn.Module):
    def __init__(self, nc, channels):
        super().__init__()
        self.nc, self.no, self.nl, self.na = nc, nc + 5, 3, 3
        self.stride = torch.tensor([8.0, 16.0, 32.0])
        self.register_buffer("anchors", torch.tensor(ANCHORS).float().view(3, 3, 2) / self.stride.view(3, 1, 1))
        self.m = nn.ModuleList(nn.Conv2d(channels, self.no * self.na, 1) for _ in range(3))

    def forward(self, x):
        maps = []
        for i in range(3):
            y = self.m[i](nn.functional.avg_pool2d(x, 2**i) if i else x)
            b, _, ny, nx = y.shape
            maps.append(y.view(b, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous())
        return maps if self.training else (self.decode(maps), maps)

    def decode(self, maps):
        rows = []
        for y, stride, anchors in zip(maps, self.stride, self.anchors):
            ny, nx = y.shape[2:4]
            gy, gx = torch.meshgrid(torch.arange(ny), torch.arange(nx))
            y = y.sigmoid()
            xy = (y[..., :2] * 2 - 0.5 + torch.stack((gx, gy), 2)) * stride
            wh = (y[..., 2:4] * 2) ** 2 * anchors.view(1, 3, 1, 1, 2) * stride
            rows.append(torch.cat((xy, wh, y[..., 4:]), -1).flatten(1, 3))
        return torch.cat(rows, 1)


class Model(nn.Module):
    def __init__(self, cfg="cfg/training/yolov7-tiny.yaml", ch=3, nc=80):
        super().__init__()
        self.model = nn.Sequential(Conv(ch, 8, 3, 8), Conv(8, 8), Detect(nc, 8))
        self.stride, self.nc = self.model[-1].stride, nc

    def forward(self, x):
        return self.model(x)
