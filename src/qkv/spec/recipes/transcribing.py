"""Options of transcribing speech."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qkv.spec.base import LARGEST_SEED, Seq, Spec


class Transcribing(Spec):
    """Options of transcribing a sound by an encoder–decoder that reads windows of it (Whisper, Radford et al. 2022).

    A window whose text fails a test is written again at the next temperature: its zlib compression ratio is above
    ``compression`` (repetition), or the mean log probability of its tokens below ``log_probability``. A window is
    skipped if its probability of silence is above ``silence`` and that mean is below ``log_probability``. null: no
    such test.
    """

    language: str | None = Field(default=None, description="code of the spoken language; default: detected")
    task: Literal["transcribe", "translate"] = Field(default="transcribe", description="translate: into English")
    timestamps: bool = Field(default=True, description="let the model write the times of segments")
    word_times: bool = Field(default=False, description="times of words, from cross-attention")
    prompt: str = Field(default="", description="text before that of the first window, such as names that occur")
    previous: bool = Field(default=False, description="let a window read the text of those before it")
    temperatures: Seq[Annotated[float, Field(ge=0, le=10)]] = Field(
        default=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), min_length=1, description="temperatures, tried in order"
    )
    compression: float | None = Field(default=2.4, gt=0, description="highest compression ratio of a window's text")
    log_probability: float | None = Field(default=-1.0, le=0, description="lowest mean log probability of a token")
    silence: float | None = Field(default=0.6, ge=0, le=1, description="highest probability of silence in a window")
    guard: bool = Field(default=True, description="write nothing where the sound has no voice activity")
    batch: int = Field(
        default=1, ge=1, le=256, description="windows at once; above 1, the sound is cut at pauses and not by the text"
    )
    max_new_tokens: int | None = Field(default=None, ge=1, description="tokens of a window; default: as many as fit")
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED, description="seed of temperatures above 0")
