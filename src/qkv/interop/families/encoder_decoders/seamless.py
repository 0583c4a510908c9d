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


def _below(start: str, ends: str) -> tuple[str, ...]:
    """Return the config keys that begin with ``start``; ``ends``: their ends, with spaces between them."""
    return tuple(start + end for end in ends.split())


_ENCODER_KEYS = (
    *_below("adaptor_", "dropout kernel_size stride"),
    *_below(
        "",
        "add_adapter conv_depthwise_kernel_size feature_projection_input_dim layer_norm_eps num_adapter_layers "
        "position_embeddings_type max_source_positions num_conv_pos_embedding_groups num_conv_pos_embeddings "
        "rotary_embedding_base left_max_position_embeddings right_max_position_embeddings",
    ),
    *_below(
        "speech_encoder_",
        "attention_heads dropout hidden_act intermediate_size layerdrop layers chunk_size left_chunk_num",
    ),
)
"""Config keys of the encoder of speech."""
_SYNTHESIS_KEYS = (
    *_below(
        "",
        "lang_embed_dim leaky_relu_slope resblock_dilation_sizes resblock_kernel_sizes sampling_rate spkr_embed_dim "
        "unit_embed_dim unit_hifi_gan_vocab_size var_pred_dropout variance_predictor_kernel_size char_vocab_size",
    ),
    *_below(
        "t2u_",
        "bos_token_id decoder_attention_heads decoder_ffn_dim decoder_layers encoder_attention_heads "
        "encoder_ffn_dim encoder_layers eos_token_id max_position_embeddings pad_token_id vocab_size "
        "decoder_start_token_id max_new_tokens variance_pred_dropout variance_predictor_embed_dim "
        "variance_predictor_hidden_dim variance_predictor_kernel_size",
    ),
    *_below("upsample_", "initial_channel kernel_sizes rates"),
    *_below("vocoder_", "num_langs num_spkrs offset"),
)
"""Config keys of the synthesis of speech."""


def _family(name: str, kind: str, model_type: str, longest: int) -> Family:
    words = language_model(tied=True)
    plain = bart_like.family(
        name,
        model_type,
        {
            f"{kind}ForTextToText": words,
            f"{kind}Model": replace(words, kept=_SPEECH, kept_config=(*_ENCODER_KEYS, *_SYNTHESIS_KEYS)),
        },
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
        ignored_config={
            **bart_like.IGNORED_CONFIG,
            **dict.fromkeys(_ENCODER_KEYS, "part of the encoder of speech, which qkv does not read"),
            **dict.fromkeys(_SYNTHESIS_KEYS, "part of the synthesis of speech, which qkv does not read"),
            "max_new_tokens": "settings of generation and of tasks",
        },
        synonyms={**bart_like.SYNONYMS, **_KEYS},
    )
    return replace(plain, prefix="", ignored={_TABLE: "unused if encoder and decoder have separate tables"})


ONE = _family("SeamlessM4T (text)", "SeamlessM4T", "seamless_m4t", 1024)
TWO = _family("SeamlessM4T v2 (text)", "SeamlessM4Tv2", "seamless_m4t_v2", 4096)

register(ONE, TWO)
