"""A choice that is measured disturbs nothing around it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from qkv.ops import choices
from qkv.ops.linear.choose import linear


def test_a_path_may_be_chosen_inside_activation_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial runs backward passes of its own; a checkpoint around it must not take their tensors for its own."""
    monkeypatch.setattr(choices, "_chosen", {})
    x, weight = torch.randn(8, 128, requires_grad=True), torch.randn(256, 128, requires_grad=True)
    checkpoint(lambda x: linear(x, weight).tanh(), x, use_reentrant=False).sum().backward()
    assert [choice.op for choice in choices.all_choices()] == ["linear"], "the weights are large enough to be timed"
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.autograd.grad((x @ weight.t()).tanh().sum(), x)[0])
