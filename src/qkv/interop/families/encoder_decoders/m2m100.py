"""M2M-100 (Fan et al. 2020), NLLB (NLLB Team 2022), and FSMT, the translation models of Ng et al. 2019.

These are encoder–decoders with fairseq's sinusoids, whose positions start after the id of the padding token. M2M-100
and NLLB are pre-norm and have one token table; FSMT is post-norm and has three.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import body, language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, NoNorm


def _tables(config: Config) -> bart_like.Tables:
    shared = config.flag("tie_word_embeddings", False)
    return bart_like.Tables(config.size("src_vocab_size", 42024), config.size("tgt_vocab_size", 42024), shared)


def _keys(spec: Model) -> dict[str, Any]:
    source = spec.encoder or spec
    padding = {name: value for name, value in bart_like.padding_key(spec).items() if name != "vocab_size"}
    return {
        **padding,
        "src_vocab_size": source.vocab_size,
        "tgt_vocab_size": spec.vocab_size,
        "langs": ["en", "de"],
    }


_NAMES = (
    NameRule("frontend.table", "model.decoder.embed_tokens.weight"),
    NameRule("encoder.frontend.table", "model.encoder.embed_tokens.weight"),
    *bart_like.NAMES,
)
_BOTH = {"activation_function": "relu", "scale_embedding": True}
M2M100 = bart_like.family(
    "M2M100",
    "m2m_100",
    {"M2M100ForConditionalGeneration": language_model(tied=True), "M2M100Model": body(bart_like.TABLE)},
    bart_like.BartLike("pre", LayerNorm(), bart_like.after_padding, keys=bart_like.padding_key),
    {**_BOTH, "vocab_size": 128112, "attention_dropout": 0.1},
)
FSMT = bart_like.family(
    "FSMT",
    "fsmt",
    {
        "FSMTForConditionalGeneration": language_model(tied=False, theirs="model.decoder.output_projection.weight"),
        "FSMTModel": language_model(tied=False, theirs="model.decoder.output_projection.weight"),
    },
    bart_like.BartLike("post", NoNorm(), bart_like.after_padding, tables=_tables, keys=_keys, stored=True),
    _BOTH,
    names=_NAMES,
    ignored_config={**bart_like.IGNORED_CONFIG, "langs": "languages of the tokenizer"},
    synonyms={**bart_like.SYNONYMS, "vocab_size": "tgt_vocab_size"},
)

register(M2M100, FSMT)
