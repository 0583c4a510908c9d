"""Fingerprint of the parts from which a decoding step was made, to notice a change; and whether a call is observed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from qkv.models.frozen_weights import promised


class Fingerprint:
    """Modules and tensors that ``modules`` hold, with the addresses of the tensors."""

    def __init__(self, modules: Sequence[nn.Module]):
        owners = [owner for m in modules for owner in (m._modules, m._parameters, m._buffers)]
        held = list(_entries(owners))
        self._all, self._number = owners, len(held)
        self._owners = [owner for owner, _, _ in held]
        self._names, self._held = [name for _, name, _ in held], [kept for _, _, kept in held]
        self._tensors = [kept for kept in self._held if isinstance(kept, Tensor)]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._compared, self._heard = promised(), any(self._hooks)

    def current(self) -> bool:
        """True if the modules hold the same modules and tensors as before, at the same addresses, and no others.

        Compared once in the time of a promise that models are ``unchanged``.
        """
        given = promised()
        if given is not None and given is self._compared:
            return True
        self._compared, self._heard = given, any(self._hooks)
        return (
            sum(map(len, self._all)) == self._number
            and all(map(operator.is_, map(dict.get, self._owners, self._names), self._held))
            and list(map(Tensor.data_ptr, self._tensors)) == self._addresses
        )

    def heard(self) -> bool:
        """True if a module had a hook, which is called only with the module, when ``current`` last compared."""
        return self._heard


def _entries(owners: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield (owner, name, module, tensor or None) for all that the owners hold."""
    for owner in owners:
        yield from ((owner, name, held) for name, held in owner.items())


def observed(kind: str) -> bool:
    """True if something other than a tap reads what lies between the parts: gradients, a compiler, a mode such as a
    counter. Also under autocast, which the parts alone handle. kind: type of the device.
    """
    return (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled(kind)
        or _python_dispatch._get_current_dispatch_mode() is not None
    )
