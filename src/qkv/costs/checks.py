"""Check the arguments of cost estimates. Imports no torch."""

from __future__ import annotations

from qkv.spec.model import Encoder, Model, Stack
from qkv.system.errors import UserError, nearest

PRECISIONS = {"fp32": 4, "bf16": 2}
"""Bytes per number in each precision."""


def check(model: Model, batch_size: int, lengths: dict[str, int], precision: str) -> None:
    """Raise ``UserError`` for an unknown precision, a size below 1, or a length that exceeds a position table.

    ``lengths``: length of the model's rows, and of the encoder's inputs, by name.
    """
    if precision not in PRECISIONS:
        raise UserError(f"there is no precision {precision!r}; {nearest(precision, PRECISIONS)}")
    for name, value in {"batch size": batch_size, **lengths}.items():
        if value <= 0:
            raise UserError(f"the {name} is {value}; it must be at least 1")
    for stack, path, length in zip((model, model.encoder), ("model", "model.encoder"), lengths.values(), strict=False):
        assert stack is not None
        _check_frontend(stack, path, length)
    if getattr(model.head, "num_classes", 0) is None:
        raise UserError("model.head.num_classes is unknown without the data; set it, as in head.num_classes=2")


def _check_frontend(stack: Stack, path: str, length: int) -> None:
    reads_tokens = stack.frontend.reads_tokens
    if reads_tokens and stack.vocab_size is None and not (isinstance(stack, Encoder) and stack.share_embedding):
        key = f"{path}.frontend.vocab_size"
        raise UserError(f"{key} is unknown without the tokenizer; set it, as in {key.removeprefix('model.')}=8192")
    limit = stack.position_limit
    if limit is not None and length > limit:
        branch, frontend_limit = stack.limiting_branch, stack.frontend.limit(stack.context_length)
        where = "the learned position table" if branch is None or frontend_limit == limit else f"{branch.kind!r}"
        raise UserError(f"{length} positions are more than the {limit} of {where} ({path}.context_length)")
