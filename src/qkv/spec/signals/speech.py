"""Specs of speech as codes of a neural codec, after a text: processor, front end and head."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import WIDEST, Frontend, Placed
from qkv.spec.heads import Head
from qkv.spec.models.quantizers import MOST_CODEBOOKS
from qkv.spec.processors import Processor
from qkv.spec.signals.sound import Sounds


class SpeechCodes(Processor, kind="speech_codes"):
    """Codes of sounds by a trained neural codec (task ``autoencoding``), which follow the characters of a text.

    A row: the voice, the characters, a mark, then one position for each vector of the codec, with the codes of its
    first ``codebooks`` codebooks. With ``delay``, those of codebook k come k - 1 positions later, so that each code
    follows those of earlier codebooks (Copet et al. 2023).
    """

    role = Sounds.role
    pretrained: ClassVar[str] = "run"
    run: str = Field(min_length=1, description="folder of the codec's run")
    codebooks: int | None = Field(
        default=None, gt=0, le=MOST_CODEBOOKS, description="number of first codebooks; default: all of the codec"
    )
    delay: bool = True
    codes: int | None = Field(default=None, gt=0, le=WIDEST, description="codes of a codebook; default: the codec's")
    characters: Seq[str] | None = Field(default=None, description="characters of texts; default: those of the data")
    voices: Seq[str] | None = Field(default=None, description="names of voices; default: those of the data")
    digest: str | None = Field(
        default=None, description="SHA-256 of the codec's weights; default: the digest of the run's weights"
    )

    @property
    def symbols(self) -> int | None:
        """Number of characters, voices and the mark before the sound; None until fitted."""
        if self.characters is None or self.voices is None:
            return None
        return len(self.characters) + len(self.voices) + 1


class SpeechTokens(Placed, kind="speech_codes"):
    """Sum of the embeddings of a character, voice or mark, and of the codes of a vector, with position vectors.

    x = E_0[symbol] + Σ_k E_k[code k]; what a position does not have adds nothing.
    """

    processor: ClassVar[type[Processor] | None] = SpeechCodes
    symbols: int | None = Field(default=None, gt=0, le=WIDEST, description="default: the processor's")
    codebooks: int | None = Field(default=None, gt=0, le=MOST_CODEBOOKS, description="default: the processor's")
    codes: int | None = Field(
        default=None, gt=0, le=WIDEST, description="codes of a codebook; default: the processor's"
    )

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, SpeechCodes)
        sizes = {name: getattr(processor, name) for name in ("symbols", "codebooks", "codes")}
        wrong = next((name for name, size in sizes.items() if getattr(self, name) not in (None, size)), None)
        if wrong is not None:
            sentence = f"{getattr(self, wrong)} given, but the processor has {sizes[wrong]}; leave the key out"
            raise SpecError([Problem((wrong,), sentence)])
        return self.changed(**sizes)

    def unsized(self) -> Self:
        return self.changed(symbols=None, codebooks=None, codes=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)


class SpeechHead(Head, kind="speech_codes"):
    """Logits of the next code of each codebook, and of the end of the sound: W_k x + b_k, (B, N, K, codes + 1)."""

    per_position = True
    weighs: ClassVar[bool] = False
    codebooks: int | None = Field(default=None, gt=0, le=MOST_CODEBOOKS, description="default: the front end's")
    codes: int | None = Field(
        default=None, gt=0, le=WIDEST, description="codes of a codebook; default: the front end's"
    )

    def reading(self, frontend: Frontend) -> Self:
        sizes = {name: getattr(frontend, name, None) for name in ("codebooks", "codes")}
        for name, size in sizes.items():
            if size is not None and getattr(self, name) not in (None, size):
                sentence = f"{getattr(self, name)} given, but the front end has {size}; leave the key out"
                raise SpecError([Problem((name,), sentence)])
        return self.changed(**{name: size for name, size in sizes.items() if size is not None})

    def unsized(self) -> Self:
        return self.changed(codebooks=None, codes=None)
