"""Torch's default settings for functions of the package, whatever the caller has set for the whole process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def usual_settings(device: bool = True) -> Generator[None]:
    """Context manager: set torch to its defaults (gradients on, no inference mode, no autocast, default dtype fp32,
    default device CPU) inside, and restore the caller's settings at the end.

    device: False keeps the caller's default device.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:  # nothing can have been changed
        yield
        return
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if device and torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if before != torch.float32:
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float32)
        yield


def with_usual_settings(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``function``, part of the public interface, to run under ``usual_settings``."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        with usual_settings():
            return function(*args, **kwargs)

    return called
