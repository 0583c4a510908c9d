"""Model, tokenizer and settings for generating text, from a run or from a model alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qkv.models.transformer import Transformer
from qkv.runs.inference.end_tokens import writing
from qkv.runs.run import Run, task_of
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tokenizers.absent import AbsentTokenizer
from qkv.tokenizers.convert import convert_tokenizer
from qkv.tokenizers.tokenizer import Tokenizer


class Generator(NamedTuple):
    """Model that generates text, its tokenizer, and its default generation settings ``sample``."""

    model: Transformer
    tokenizer: Tokenizer
    sample: Generation

    @property
    def drawn(self) -> int | None:
        """Number of ids that may be sampled, those with a token in the tokenizer; None without a tokenizer."""
        return None if self.tokenizer.absent else self.tokenizer.vocab_size

    def settings(self, options: Mapping[str, Any], stops: bool = True) -> Generation:
        """Return the default settings with the changes ``options``, and a new seed each time if they set none.

        stops: False leaves out the default stop strings, for token ids and for a text that a constraint ends. Raises
        ``SpecError``.
        """
        sample = self.sample if stops else self.sample.changed(stop=())
        return sample.requested(**{"seed": None, **options})


def generator_of(source: Any, tokenizer: Any = None, special: bool = False) -> Generator:
    """Build the ``Generator`` of a run or of a model alone.

    tokenizer: replaces the tokenizer of the run, if given. special: parse special tokens in prompts. Raises
    ``UserError``.
    """
    generator = _generator_of(source, tokenizer)
    return generator._replace(tokenizer=generator.tokenizer.reading_special) if special else generator


def _generator_of(source: Any, tokenizer: Any) -> Generator:
    if isinstance(source, Run):
        if task_of(source).transcribes:
            raise UserError(f"{source.folder} writes the text of a sound and continues no text; use qkv transcribe")
        if tokenizer is None:
            return Generator(source.model, source.tokenizer, writing(source))
        return Generator(source.model, convert_tokenizer(tokenizer), source.recipe.sample)
    if not isinstance(source, Transformer):
        raise UserError(f"{type(source).__name__} given; allowed: a run, its folder, or a model made by qkv.build")
    absent = AbsentTokenizer("a model made by qkv.build has no tokenizer: give tokenizer=…, or token ids as ids=[…]")
    return Generator(source, absent if tokenizer is None else convert_tokenizer(tokenizer), Generation())
