"""Changes of logits that are computed per row, because they depend on the tokens that the row has generated.

With c_v the number of times that token v was generated, prompt excluded, the logit z_v becomes

    z_v + b_v - p [c_v > 0] - f c_v    b: logit_bias    p: presence_penalty    f: frequency_penalty

as OpenAI's interface defines them. While a row has fewer than ``min_tokens`` new tokens, the logits of its
``stop_token_ids`` are -inf. All changes come before the filters (``qkv.generation.logits.filters``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.generation.decode.verify import RowSpan
from qkv.spec.generation import Generation


def adjusted(logits: Tensor, spans: Sequence[RowSpan]) -> Tensor:
    """Return a copy of the logits (M, V) of the spans, with bias and penalties of each row's settings.

    Return the same tensor if no settings change logits.
    """
    changing = [span for span in spans if _changes(span)]
    if not changing:
        return logits
    result = logits.clone()
    for span in changing:
        for line, written in zip(span.lines, span.written, strict=True):
            _adjust(result[line], span.generation, written)
    return result


def _changes(span: RowSpan) -> bool:
    """Return whether the settings of a row may change its logits."""
    settings = span.generation
    waits = bool(settings.min_tokens and settings.stop_token_ids and len(span.text) - span.begin < settings.min_tokens)
    return waits or bool(settings.logit_bias or settings.presence_penalty or settings.frequency_penalty)


def _adjust(logits: Tensor, settings: Generation, written: Sequence[int]) -> None:
    """Apply bias, penalties and ``min_tokens`` to one row of logits (V), in place. Ids of V or above are ignored."""
    size = len(logits)
    if biases := [(index, bias) for index, bias in settings.logit_bias if index < size]:
        ids, values = zip(*biases, strict=True)
        logits[list(ids)] += torch.tensor(values, dtype=logits.dtype, device=logits.device)
    if written and (settings.presence_penalty or settings.frequency_penalty):
        ids, counts = torch.tensor(written, device=logits.device).unique(return_counts=True)
        logits[ids] -= settings.presence_penalty + settings.frequency_penalty * counts.to(logits.dtype)
    if len(written) < settings.min_tokens:
        logits[[index for index in settings.stop_token_ids if index < size]] = -math.inf
