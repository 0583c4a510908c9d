"""SeamlessM4T: the text model alone, one token table or one each, another padding token."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.bart import sizes
from tests.interop.cases.case import Case
from transformers import (
    SeamlessM4TConfig,
    SeamlessM4TForTextToText,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2ForTextToText,
)


def translator(**changed: Any) -> dict[str, Any]:
    given = sizes(hidden_size=30, pad_token_id=0, decoder_layers=1, **changed)
    return {key: value for key, value in given.items() if key not in ("d_model", "forced_eos_token_id")}


CASES = (
    Case("seamless", SeamlessM4TForTextToText, SeamlessM4TConfig(**translator())),
    Case(
        "seamless-v2",
        SeamlessM4Tv2ForTextToText,
        SeamlessM4Tv2Config(**translator(scale_embedding=False, encoder_layers=1)),
    ),
)
