"""Recurrent cells by torch's kernels, with the loop over positions in C++."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.ops.recurrence.reference import Memory, Weights

KERNELS = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}


def _options() -> tuple[bool, int, float, bool, bool]:
    """Return (has_biases, num_layers, dropout, train, bidirectional); cuDNN's backward pass needs ``train``."""
    return True, 1, 0.0, torch.is_grad_enabled(), False


@contextmanager
def _copied_weights(x: Tensor) -> Iterator[None]:
    """Context manager: ignore cuDNN's warning that each call copies the weights; the copy is short beside the loop."""
    if not x.is_cuda:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


def recur(
    cell: str, x: Tensor, state: Memory, weights: Weights, lengths: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """Return (h at all N >= 1 positions, (B, N, E), state after the last unpadded ones); see ``reference``."""
    if cell == "lstm" and lengths is not None:
        return _ragged(x, state, weights, lengths)
    start = tuple(t[None].contiguous() for t in state)
    with _copied_weights(x):
        hs, *last = KERNELS[cell](x, start if cell == "lstm" else start[0], list(weights), *_options(), True)
    if lengths is None:
        return hs, tuple(t[0] for t in last)
    joined = torch.cat((state[0][:, None], hs), 1)
    return hs, (joined.gather(1, lengths[:, None, None].expand(-1, 1, hs.shape[-1]))[:, 0],)


def _ragged(x: Tensor, state: Memory, weights: Weights, lengths: Tensor) -> tuple[Tensor, Memory]:
    """Run an LSTM over rows of different lengths; the state is from each row's last position, or unchanged if none."""
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    assert order is not None
    assert back is not None
    start = tuple(t[order][None] for t in state)
    with _copied_weights(x):
        data, *last = torch.lstm(packed.data, packed.batch_sizes, start, list(weights), *_options())
    hs, _ = pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=x.shape[1])
    some = (lengths > 0)[:, None]
    return hs, tuple(torch.where(some, new[0][back], old) for new, old in zip(last, state, strict=True))
