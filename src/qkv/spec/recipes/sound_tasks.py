"""Specs of tasks on sound."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from qkv.spec.base import Spec
from qkv.spec.errors import Problem
from qkv.spec.model import Model
from qkv.spec.recipes.task import Reads, Task


class TextSearch(Spec):
    """Search for the text of the highest score under connectionist temporal classification (CTC).

    score = log p(text | sound) + weight · log p(text | language model) + bonus · number of tokens. With one beam and no
    language model, the most probable token of each frame is taken (greedy).
    """

    beams: int = Field(default=1, ge=1, le=1000, description="number of prefixes that the search keeps; 1: greedy")
    ngram: int = Field(
        default=0, ge=0, le=10, description="tokens of the n-grams counted in the training texts; 0: none"
    )
    weight: float = Field(default=0.5, ge=0, le=100, description="weight of the language model")
    bonus: float = Field(default=0.0, ge=-100, le=100, description="reward of each token, against short texts")
    language_model: str | None = Field(
        default=None,
        min_length=1,
        description="folder of a run whose language model orders the texts that the search has found; default: none",
    )

    def problems(self) -> list[Problem]:
        scored = "ngram" if self.ngram else "language_model" if self.language_model else ""
        if not scored or self.beams > 1:
            return []
        return [Problem((scored,), "a language model needs several beams; give search.beams=8 or more")]


class Transcription(Task, kind="transcription"):
    """Transcription by CTC (Graves et al. 2006): -log Σ p(alignment | sound) over the alignments of the text.

    Each position has one token or the blank; equal neighbours are merged, then blanks are removed. Metrics: word and
    character error rate. Columns: the sound, or another signal, and ``transcript``.
    """

    search: TextSearch = TextSearch()

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    head: ClassVar[str] = "ctc"

    def model_problems(self, model: Model) -> list[Problem]:
        if model.frontend.processor is not None:
            return []
        sentence = (
            f"the task {self.kind!r} reads a sound or another signal, but the front end is {model.frontend.kind!r}"
        )
        kinds = "wave_convolutions, mel_convolutions or series_patches"
        return [Problem(("frontend",), f"{sentence}; use {kinds}")]


class ContrastivePretraining(Task, kind="contrastive_pretraining"):
    """Pretraining on sounds without labels (wav2vec 2.0, Baevski et al. 2020): masked latent vectors are told apart.

    Loss: -log p(quantised latent vector | output at the masked position, wrong candidates), and a term for codes that
    are used evenly. Metrics: accuracy of the choice, use of the codes. Column: the sound.
    """

    share: float = Field(default=0.065, gt=0, le=1, description="fraction of the positions that begin a masked span")
    span: int = Field(default=10, ge=2, le=1000, description="positions of a masked span")
    negatives: int = Field(default=100, gt=0, le=10_000, description="wrong candidates for each masked position")
    diversity: float = Field(default=0.1, ge=0, le=100, description="weight of the term for an even use of the codes")

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    head: ClassVar[str] = "contrastive"

    def model_problems(self, model: Model) -> list[Problem]:
        if getattr(model.frontend, "mask_vector", False):
            return []
        sentence = (
            f"the task {self.kind!r} masks latent vectors of samples; use wave_convolutions with mask_vector=true"
        )
        return [Problem(("frontend",), sentence)]
