"""Transcription of speech by an encoder–decoder, with teacher forcing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.model import Role
from qkv.spec.register import implements
from qkv.spec.tasks import SpeechToText
from qkv.tasks.metrics.speech_metrics import error_rates
from qkv.tasks.pairs.signal_to_text import SignalToTextTask
from qkv.tasks.task import Evaluation


@implements(SpeechToText)
class SpeechToTextTask(SignalToTextTask):
    """Transcription: the encoder reads a sound, the decoder writes its text; evaluated by word error rate."""

    roles = (
        Role("sound", "sound", ("sound", "audio", "file", "path")),
        Role(
            "target",
            "text",
            ("target", "text", "transcript", "transcription", "sentence", "words", "answer"),
            written=True,
        ),
    )
    asks = ("sound",)
    transcribes = True
    metric = "wer"

    def compare(self, written: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Evaluation:
        return Evaluation(error_rates([row["target"] for row in rows], written))
