"""Settings with which a run writes text: those of its recipe, and the tokens that end a text."""

from __future__ import annotations

from qkv.runs.run import Run
from qkv.spec.generation import Generation
from qkv.tokenizers.absent import AbsentTokenizer


def end_ids(run: Run) -> tuple[int, ...]:
    """Ids that end a text: those of the recipe, which are those that a published checkpoint names, and the end token of
    the tokenizer.
    """
    own = None if isinstance(run.tokenizer, AbsentTokenizer) else run.tokenizer.special("eos")
    return tuple(dict.fromkeys((*run.recipe.sample.stop_token_ids, *(() if own is None else (own,)))))


def writing(run: Run) -> Generation:
    """Settings of the recipe with all end tokens, of which none is also a stop string, and without ids for which the
    tokenizer has no token.
    """
    sample, ends = run.recipe.sample, end_ids(run)
    if isinstance(run.tokenizer, AbsentTokenizer):
        return sample
    stop = tuple(text for text in sample.stop if run.tokenizer.core.token_to_id(text) not in ends)
    absent = dict.fromkeys((*sample.suppress_tokens, *run.tokenizer.absent_ids))
    return sample.changed(stop=stop, stop_token_ids=ends, suppress_tokens=tuple(absent))
