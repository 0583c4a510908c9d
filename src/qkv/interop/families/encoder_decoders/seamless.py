"""The text model of SeamlessM4T, versions 1 and 2 (Seamless Communication 2023): NLLB with other names.

qkv reads the encoder and the decoder of text; the encoder of speech and the vocoder are written back by an export.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import language_model, written_back
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm

_TABLE = "shared.weight"
_TABLES = ("text_encoder.embed_tokens.weight", "text_decoder.embed_tokens.weight")
_RENAMED = {
    bart_like.TABLE: _TABLE,
    "model.encoder.": "text_encoder.",
    "model.decoder.": "text_decoder.",
    ".encoder_attn.": ".cross_attention.",
    ".encoder_attn_layer_norm.": ".cross_attention_layer_norm.",
    ".final_layer_norm.": ".ffn_layer_norm.",
    ".fc1.": ".ffn.fc1.",
    ".fc2.": ".ffn.fc2.",
}
"""Parts of BART's tensor names -> those of SeamlessM4T."""
_KEYS = {"hidden_size": "d_model", "initializer_range": "init_std"}
"""Config keys of SeamlessM4T -> BART's."""


def _renamed(row: NameRule) -> NameRule:
    """Return the row of BART's name table with the names of SeamlessM4T."""
    return row._replace(
        theirs=tuple(
            reduce(lambda so_far, pair: so_far.replace(*pair), _RENAMED.items(), name) for name in row.published
        )
    )


def _tables(config: Config) -> bart_like.Tables:
    return bart_like.one_table(config, _TABLES[0])


_FORM = bart_like.BartLike("pre", LayerNorm(), bart_like.after_padding, tables=_tables, keys=bart_like.padding_key)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _FORM.config(spec)
    names = {theirs: name for name, theirs in _KEYS.items()}
    return keys and {names.get(key, key): value for key, value in keys.items()}


def _copies(spec: Model) -> dict[str, str]:
    return dict.fromkeys(_TABLES, _TABLE) if bart_like.copies(spec) else {}


_SPEECH = written_back(
    {
        "speech_encoder.*": "part of the encoder of speech, which qkv does not read",
        **dict.fromkeys(("t2u_model.*", "vocoder.*"), "part of the synthesis of speech, which qkv does not read"),
    }
)


def _family(name: str, kind: str, model_type: str, longest: int) -> Family:
    words = language_model(tied=True)
    plain = bart_like.family(
        name,
        model_type,
        {f"{kind}ForTextToText": words, f"{kind}Model": replace(words, kept=_SPEECH)},
        _FORM,
        {
            "vocab_size": 256102,
            "activation_function": "relu",
            "scale_embedding": True,
            "attention_dropout": 0.1,
            "max_position_embeddings": longest,
            "pad_token_id": 0,
            **{f"{stack}_layers": 24 for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": 8192 for stack in ("encoder", "decoder")},
        },
        base="M2M100",
        config=config,
        names=tuple(map(_renamed, bart_like.NAMES)),
        copies=_copies,
        synonyms={**bart_like.SYNONYMS, **_KEYS},
    )
    return replace(plain, prefix="", ignored={_TABLE: "unused if encoder and decoder have separate tables"})


ONE = _family("SeamlessM4T (text)", "SeamlessM4T", "seamless_m4t", 1024)
TWO = _family("SeamlessM4T v2 (text)", "SeamlessM4Tv2", "seamless_m4t_v2", 4096)

register(ONE, TWO)
