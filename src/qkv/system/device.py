"""Choice of the torch device: named by the caller or by ``QKV_DEVICE``, such as "cpu", "cuda" or "cuda:1"."""

from __future__ import annotations

import os

import torch

from qkv.system.errors import UserError

VARIABLE = "QKV_DEVICE"


def accelerator() -> torch.device | None:
    """Return the accelerator of this machine that torch can use, such as a GPU; None if there is none."""
    return torch.accelerator.current_accelerator(check_available=True)


def named_device(name: str | None = None) -> torch.device | None:
    """Return the device ``name``, or by default the device that ``QKV_DEVICE`` names; None if neither is set.

    Raises ``UserError`` for a device that this machine does not have.
    """
    text, origin = (name, "device") if name else (os.environ.get(VARIABLE, ""), VARIABLE)
    if not text:
        return None
    device = accelerator()
    count = 0 if device is None else torch.accelerator.device_count()
    present = ["cpu", *([] if device is None else [device.type, *(f"{device.type}:{i}" for i in range(count))])]
    if text not in present:
        raise UserError(f"{origin}: there is no device {text!r} on this machine; choose from {', '.join(present)}")
    return torch.device(text)


def training_device() -> torch.device:
    """Return the device to train on: as ``QKV_DEVICE`` names it, else the accelerator if there is one, else the CPU."""
    return named_device() or accelerator() or torch.device("cpu")


def inference_device(name: str | None = None) -> torch.device:
    """Return the device on which a loaded model computes: ``named_device(name)``, else the CPU."""
    return named_device(name) or torch.device("cpu")
