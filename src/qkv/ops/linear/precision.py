"""Precision of matrix products if the user allows bf16: bf16 if it is faster on this device, else fp32.

A processor without bf16 instructions emulates them, which takes up to a hundred times as long as fp32 and rounds in the
same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qkv.ops.linear.choose import linear
from qkv.ops.selection import timing
from qkv.ops.selection.choices import NOISE, Choice, choose, format_race
from qkv.system.optional import turned_off

# (rows, inner, outer). The first sample takes only milliseconds even if bf16 is emulated, and rules bf16 out then.
_TINY = (32, 256, 256)
_SAMPLES = {"cpu": (512, 256, 768)}
_ACCELERATOR = (4096, 1024, 4096)
_CLEAR = 3.0


class _Autocast(torch.autocast):
    """Autocast context whose converted weights are discarded at its end.

    torch keeps them until the outermost autocast context ends. If a notebook has opened one, all steps of a training
    would read the weights of the first.
    """

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.clear_autocast_cache()


def autocast(lowest: str, device: torch.device) -> torch.autocast:
    """Return an autocast context for matrix products in the precision ``runs_in(asked, device)``; weights stay fp32."""
    return _Autocast(device.type, dtype=torch.bfloat16, enabled=runs_in(lowest, device) == "bf16")


def runs_in(lowest: str, device: torch.device) -> str:
    """Return the precision of matrix products, "bf16" or "fp32". ``lowest``: lowest precision that the user allows."""
    return choice(device).twin if lowest == "bf16" else "fp32"


def choice(device: torch.device) -> Choice:
    """Return the faster precision of matrix products on ``device``, for a user who allows bf16; it is timed once."""
    name = device.type if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    case, setting = f"bf16 allowed, {name}", turned_off("bf16")
    if setting:
        return choose("precision", case, lambda: Choice("precision", case, "fp32", f"{setting} turns bf16 off"))
    return choose("precision", case, lambda: _measured(case, device), ("bf16", "fp32"))


def _measured(case: str, device: torch.device) -> Choice:
    """Time a linear layer forward and backward: fp32 by its fastest implementation, bf16 including casts."""
    for size in (_TINY, _SAMPLES.get(device.type, _ACCELERATOR)):
        times = timing.race({name: _run(name, size, device) for name in ("fp32", "bf16")})
        reason = format_race(f"forward and backward at {' × '.join(map(str, size))}", times)
        if len(times.seconds) < 2:
            return Choice("precision", case, "bf16" if "fp32" in times.failed else "fp32", reason)
        gain = times.seconds["fp32"] / times.seconds["bf16"]
        if gain < 1 / _CLEAR:
            break
    twin, gain = ("bf16", gain) if gain > NOISE else ("fp32", max(1.0, 1 / gain))
    return Choice("precision", case, twin, reason, gain)


def _run(precision: str, size: tuple[int, int, int], device: torch.device) -> Callable[[], object]:
    rows, inner, outer = size
    x = torch.ones(rows, inner, device=device, requires_grad=True)
    weight = torch.ones(outer, inner, device=device, requires_grad=True)

    def run() -> None:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                y = linear(x, weight)
            torch.autograd.grad(y, (x, weight), y.detach())
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    return run
