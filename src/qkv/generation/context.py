"""Sliding context window for models with a bounded number of positions.

With a learned position table of L rows, the visible part of a text of n tokens begins at token

    s(n) = 0 if n <= L,   else  h · ⌈(n - L) / h⌉   with h = L - ⌊L / 2⌋

When the context is full, its older half is dropped and the rest is encoded again from position 0. s depends on n
alone, so prompt tokens and generated tokens are treated alike. With unbounded positions (sinusoids, RoPE, ALiBi, none)
the context never slides, and the KV cache grows. RoPE accepts positions beyond the training length, but the model was
not trained on them, and quality degrades (Press et al. 2022; Chen et al. 2023).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.system.errors import UserError, dotted


def first_seen(length: int, limit: int | None) -> int:
    """Return s(n), the index of the first token that the model still sees in a text of n = ``length`` tokens.

    ``limit``: number of positions L; None for unbounded positions.
    """
    if limit is None or length <= limit:
        return 0
    hop = limit - limit // 2
    return hop * -(-(length - limit) // hop)


def learned_reach(spec: Model) -> int | None:
    """Return the length in tokens beyond which attention with RoPE meets distances that training did not contain; None
    if there is no such limit.

    The result is the context length of training. It is None if the mask of every branch with RoPE is a window within
    that length, or if positions restart in each segment.
    """
    length, branches = spec.context_length, [branch for block in spec.blocks for branch in block.branches]
    reaches = (
        spec.segmentation.extrapolates(length)
        if spec.segmentation
        else all(branch.extrapolates(length) for branch in branches)
    )
    return None if reaches else length


def check(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    generation: Generation,
    inputs: Sequence[Mapping[str, Signal]] | None = None,
) -> None:
    """Raise ``UserError`` if ``model`` cannot continue these prompts; warn if decoding differs from training.

    ``inputs``: values of the inputs other than text, such as images, of each prompt.
    """
    spec, vocab_size = model.spec, model.vocab_size
    if not spec.decodes:
        path = spec.first_not_decoding()
        advice = spec.decoding_advice(path, "use a causal mask")
        raise UserError(
            f"{dotted(('model', *path))}: this branch sees later positions, so the model cannot generate; {advice}"
        )
    if vocab_size is None:
        raise UserError("the model reads no tokens, so it cannot generate text")
    _check_ids(generation, vocab_size)
    for row, prompt in enumerate(prompts):
        which = f"prompt {row + 1} of {len(prompts)}" if len(prompts) > 1 else "the prompt"
        if not prompt:
            raise UserError(f"{which} has no tokens; give at least one")
        outside = [token for token in prompt if token >= vocab_size or (token < 0 and not inputs)]
        if outside:
            raise UserError(
                f"{which} has the token {outside[0]}, which is outside the vocabulary (0 to {vocab_size - 1})"
            )
        _check_length(model.limit, len(prompt), which, generation, slides=not inputs)
    # The last generated token is not fed back.
    _warn_of_inexactness(model, max(map(len, prompts), default=0) + generation.max_new_tokens - 1)


def _check_ids(generation: Generation, vocab_size: int) -> None:
    """Raise ``UserError`` if ``logit_bias`` or ``stop_token_ids`` name a token outside the vocabulary."""
    named = {"logit_bias": [index for index, _ in generation.logit_bias], "stop_token_ids": generation.stop_token_ids}
    for name, ids in named.items():
        wrong = next((index for index in ids if index >= vocab_size), None)
        if wrong is not None:
            raise UserError(f"{name}: the token {wrong} is outside the vocabulary (0 to {vocab_size - 1})")


def _warn_of_inexactness(model: Transformer, length: int) -> None:
    """Warn if a branch decodes texts of ``length`` tokens only approximately and its spec does not accept that."""
    length = length if model.limit is None else min(length, model.limit)
    path, branch = model.spec.first_inexact(length)
    if branch is not None:
        warnings.warn(
            f"{dotted(('model', *path))}: decoding of {branch.kind!r} is exact for texts of up to "
            f"{branch.exactness.length} tokens, but this text may reach {length}; from there on, outputs differ from "
            "those of training",
            stacklevel=4,
        )


def _check_length(limit: int | None, length: int, which: str, generation: Generation, slides: bool = True) -> None:
    """Raise ``UserError`` if a text needs more than ``limit`` positions and its context must not slide.

    ``slides``: whether the model allows a sliding context; the setting ``overflow`` must allow it too.
    """
    if limit is None or (generation.overflow == "slide" and slides) or not generation.max_new_tokens:
        return
    # The last generated token is not fed back.
    needed = length + generation.max_new_tokens - 1
    if needed > limit:
        raise UserError(
            f"{which} has {length} tokens and needs {needed} positions with {generation.max_new_tokens} new ones, "
            f"but the model has {limit} positions; ask for fewer tokens"
            + (" or set overflow to 'slide'" if slides else "")
        )
