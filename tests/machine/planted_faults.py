"""Faults that tests plant in the training step: each wraps a method and marks the faulty line."""

import warnings
from functools import wraps

import torch


def reads_item(method):
    def planted(self, predicted, *rest):
        predicted.box.sum().item()  # the fault
        return method(self, predicted, *rest)

    return planted


def takes_host_index(method):
    def planted(self, plan, given):
        given.matched_gt[torch.arange(2)]  # the fault
        return method(self, plan, given)

    return planted


def copies_pageable(method):
    def planted(self, predicted, *rest):
        torch.ones(3).to(predicted.box.device, non_blocking=True)  # the fault
        return method(self, predicted, *rest)

    return planted


def copies_back(method):
    def planted(self, items, finite):
        items.cpu()  # the fault
        return method(self, items, finite)

    return planted


def warns_as_cuda(method):
    @wraps(method)
    def planted(self, *args):
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        return method(self, *args)

    return planted


def nan_in_half(method):
    def planted(self, *args):
        loss, items = method(self, *args)
        half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.float16
        return (loss * torch.nan, items * torch.nan) if half else (loss, items)

    return planted
