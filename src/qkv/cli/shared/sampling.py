"""Options of generation, which are fields of ``Generation``."""

from __future__ import annotations

from collections.abc import Iterable

from qkv.cli.shared.options import SpecOption, SpecOptions
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


def _biases(texts: Iterable[str]) -> dict[int, float]:
    """Parse texts ``ID=BIAS`` to biases by token id. Raises ``UserError``."""
    biases: dict[int, float] = {}
    for text in texts:
        index, _, bias = text.partition("=")
        try:
            biases[int(index)] = float(bias)
        except ValueError:
            raise UserError(f"--logit-bias: {text!r} given; allowed: ID=BIAS, such as 15=-2.5") from None
    return biases


_FORMS: dict[str, SpecOption | str] = {
    "max_new_tokens": SpecOption("N", "Maximum number of new tokens; 0 prints the prompt."),
    "temperature": "T",
    "top_k": "K",
    "top_p": "P",
    "min_p": "P",
    "repetition_penalty": "R",
    "presence_penalty": "P",
    "frequency_penalty": "F",
    "logit_bias": SpecOption("ID=BIAS", "Add BIAS to the logit of token ID; repeatable.", type=list[str], read=_biases),
    "min_tokens": SpecOption("N", "Minimum number of new tokens."),
    "stop_token_ids": SpecOption("ID", "Stop before this token; repeatable.", "--stop-token-id"),
    "stop": SpecOption("TEXT", "Stop before this text; may be given several times."),
    "seed": "N",
    "overflow": "slide|refuse",
    "num_beams": "K",
    "num_return": "N",
    "length_penalty": "A",
    "early_stopping": SpecOption(),
}


GENERATION = SpecOptions(Generation, _FORMS)
"""Options of ``qkv generate`` that replace settings of the recipe's 'sample' section."""
