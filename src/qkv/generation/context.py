"""Which part of a text the model sees, where its positions are bounded.

A learned position table of L rows ends after L positions. Of a text of n tokens the model then sees the tokens from

    s(n) = 0 if n <= L,   else  h · ⌈(n - L) / h⌉   with h = L - ⌊L / 2⌋

onwards: when the context is full, its older half is forgotten and the rest is read again from position 0. s depends on n
alone, so it makes no difference which tokens were the prompt and which were generated. Positions that are not bounded
(sinusoids, rotations, ALiBi, none) never slide: the model goes on with its state. Nothing ends there, but what rotations make of a
distance that no training text had was never learned, and the text gets worse (Press et al. 2022; Chen et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention
from qkv.spec.errors import UserError, dotted
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.spec.parts import Rope


def first_seen(length: int, limit: int | None) -> int:
    """s(n), the first token that is seen of a text of ``length`` tokens; ``limit`` is L, None where positions have no end."""
    if limit is None or length <= limit:
        return 0
    hop = limit - limit // 2
    return hop * -(-(length - limit) // hop)


def learned_reach(spec: Model) -> int | None:
    """Positions after which rotated queries meet keys at distances that training never showed; None where there are none.

    That is the longest sequence in training, unless every rotation is in a branch whose mask sees no farther back than that.
    """
    rotated = [b for block in spec.layers for b in block.branches if isinstance(b, Attention) and isinstance(b.relative, Rope)]
    far = [b for b in rotated if b.mask.first_visible or b.mask.reach is None or b.mask.reach > spec.context_length]
    return spec.context_length if far else None


def check(model: Transformer, prompts: Sequence[Sequence[int]], generation: Generation) -> None:
    """Raise UserError if ``model`` cannot generate from these prompts."""
    spec, known = model.spec, model.frontend.table.shape[0]
    if not spec.decodes:
        path = dotted(("model", *spec.first_not_decoding()))
        raise UserError(f"{path}: this branch sees later positions, so the model cannot generate; use a causal mask")
    for row, prompt in enumerate(prompts):
        which = f"prompt {row + 1} of {len(prompts)}" if len(prompts) > 1 else "the prompt"
        if not prompt:
            raise UserError(f"{which} holds no token; give at least one to start from")
        outside = [token for token in prompt if not 0 <= token < known]
        if outside:
            raise UserError(f"{which} holds the token {outside[0]}, but the model knows the tokens 0 to {known - 1}")
        _check_length(model.frontend.limit, len(prompt), which, generation)


def _check_length(limit: int | None, length: int, which: str, generation: Generation) -> None:
    if limit is None or generation.overflow == "slide" or not generation.max_new_tokens:
        return
    # The last token is drawn and not read again.
    needed = length + generation.max_new_tokens - 1
    if needed > limit:
        raise UserError(
            f"{which} has {length} tokens, and with {generation.max_new_tokens} new ones {needed} positions are needed, "
            f"but the model's positions end at {limit}; ask for fewer tokens or set overflow to 'slide'"
        )
