"""Scores of texts by the language model of a trained run, which order what a search has found."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qkv.data.pretrained import Pretrained, read_pretrained
from qkv.layers.signal import Signal
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer

KEY = "task.search.language_model"


def read_language_model(folder: str) -> Pretrained:
    """Read the run in ``folder``. Raises ``UserError`` if it is no causal language model of text."""
    run = read_pretrained(folder, KEY)
    spec = run.model.spec
    if not (spec.causal and spec.head.predicts_tokens and spec.encoder is None and run.vocabulary.has_text):
        raise UserError(f"{KEY}: {folder} is no language model that writes text; train one with 'qkv train my.txt'")
    return run


def text_scores(run: Pretrained, texts: Sequence[str]) -> list[float]:
    """Return log p of each text, from a beginning of a text to an end: bos and eos, or line breaks without them."""
    tokenizer = run.vocabulary.tokenizer
    begin, end = (_mark(tokenizer, role) for role in ("bos", "eos"))
    rows = [[*begin, *tokenizer.encode(text), *end] for text in texts]
    read = [row[:-1] or [0] for row in rows]  # a model reads at least one token
    with torch.inference_mode():
        logits = at_least_single(run.model(Signal.of_rows(read, run.model.device))[0])
    chances, scores = logits.log_softmax(-1), list[float]()
    for row, values in zip(rows, chances, strict=True):
        count = max(0, len(row) - 1)
        following = torch.tensor(row[1:], dtype=torch.long, device=values.device)
        scores.append(float(values[torch.arange(count), following].sum()) if count else 0.0)
    return scores


def _mark(tokenizer: Tokenizer, role: str) -> list[int]:
    """Return the ids before or after a text: of the special token, else of a line break; empty if neither exists."""
    special = tokenizer.special(role)
    if special is not None:
        return [special]
    try:
        ids = tokenizer.encode("\n")
    except UserError:
        return []
    return [] if tokenizer.unknown_id in ids else ids
