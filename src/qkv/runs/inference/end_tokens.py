"""Settings with which a run writes text: those of its recipe, and the tokens that end a text."""

from __future__ import annotations

from qkv.runs.run import Run
from qkv.spec.generation import Generation


def end_ids(run: Run) -> tuple[int, ...]:
    """Return the ids that end a text: the recipe's stop ids, which for a published checkpoint are the ids that it
    names, and the tokenizer's end token.
    """
    own = None if run.tokenizer.absent else run.tokenizer.special("eos")
    return tuple(dict.fromkeys((*run.recipe.sample.stop_token_ids, *(() if own is None else (own,)))))


def writing(run: Run) -> Generation:
    """Return the recipe's generation settings with the ids of all end tokens. Stop strings that are such a token are
    removed, and ids for which the tokenizer has no token are suppressed.
    """
    sample, ends = run.recipe.sample, end_ids(run)
    if run.tokenizer.absent:
        return sample
    stop = tuple(text for text in sample.stop if run.tokenizer.core.token_to_id(text) not in ends)
    absent = dict.fromkeys((*sample.suppress_tokens, *run.tokenizer.absent_ids))
    return sample.changed(stop=stop, stop_token_ids=ends, suppress_tokens=tuple(absent))
