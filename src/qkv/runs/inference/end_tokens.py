"""Settings with which a run generates text: the generation settings of its recipe, and the tokens that end a text."""

from __future__ import annotations

from qkv.runs.run import Run
from qkv.spec.generation import Generation


def end_ids(run: Run) -> tuple[int, ...]:
    """Return the token ids that end a text: the recipe's stop ids (for a published checkpoint, the end ids in its
    files), and the tokenizer's end token.
    """
    eos = None if run.tokenizer.absent else run.tokenizer.special("eos")
    return tuple(dict.fromkeys((*run.recipe.sample.stop_token_ids, *(() if eos is None else (eos,)))))


def writing(run: Run) -> Generation:
    """Return the recipe's generation settings with all end tokens as stop ids. Stop strings that are such a token are
    removed, and ids without a token in the tokenizer are suppressed.
    """
    sample, ends = run.recipe.sample, end_ids(run)
    if run.tokenizer.absent:
        return sample
    stop = tuple(text for text in sample.stop if run.tokenizer.core.token_to_id(text) not in ends)
    absent = dict.fromkeys((*sample.suppress_tokens, *run.tokenizer.absent_ids))
    return sample.changed(stop=stop, stop_token_ids=ends, suppress_tokens=tuple(absent))
