"""Marian, Pegasus, M2M100, FSMT and BlenderBot: one token table or one each, each form of positions, decoders alone."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.bart import sizes
from tests.interop.cases.case import Case
from transformers import (
    BlenderbotConfig,
    BlenderbotForCausalLM,
    BlenderbotForConditionalGeneration,
    BlenderbotSmallConfig,
    BlenderbotSmallForCausalLM,
    BlenderbotSmallForConditionalGeneration,
    FSMTConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianForCausalLM,
    PegasusConfig,
    PegasusForConditionalGeneration,
)


class MarianMTModel(transformers.MarianMTModel):
    """With a bias of the logits other than 0, as published models have."""

    def __init__(self, config: MarianConfig):
        super().__init__(config)
        self.final_logits_bias.copy_(torch.linspace(-1, 1, self.final_logits_bias.shape[1])[None])


class FSMTForConditionalGeneration(transformers.FSMTForConditionalGeneration):
    """With sinusoids that are no parameters to that class either, so that they have no gradients."""

    def __init__(self, config: FSMTConfig):
        super().__init__(config)
        for stack in (self.model.encoder, self.model.decoder):
            stack.embed_positions.weight.requires_grad = False


class Moved:
    """With position vectors other than the sinusoids, which that library writes, and reads as they are."""

    def __init__(self, config: Any):
        super().__init__(config)
        for table in (self.model.encoder.embed_positions.weight, self.model.decoder.embed_positions.weight):  # type: ignore[attr-defined]
            table.data += torch.linspace(-1, 1, table.shape[1])


class MovedPegasus(Moved, PegasusForConditionalGeneration):
    """Without noise in the tables, which have no gradients."""


class MovedFSMT(Moved, FSMTForConditionalGeneration):
    """Likewise."""


MovedPegasus.__name__, MovedFSMT.__name__ = "PegasusForConditionalGeneration", "FSMTForConditionalGeneration"
SINUSOIDS = ("embed_positions.weight",)


def translator(**changed: Any) -> dict[str, Any]:
    return {**sizes(**{"pad_token_id": 1, "decoder_layers": 1, **changed})}


def fsmt(**changed: Any) -> FSMTConfig:
    given = {name: value for name, value in translator(**changed).items() if name != "vocab_size"}
    # With a cache, that library reads whole rows without a causal mask.
    return FSMTConfig(**given, langs=["en", "de"], src_vocab_size=61, tgt_vocab_size=47, use_cache=False)


CASES = (
    Case("marian", MarianMTModel, MarianConfig(**translator(scale_embedding=True, activation_function="swish"))),
    Case(
        "marian-two-tables",
        MarianMTModel,
        MarianConfig(**translator(vocab_size=61, decoder_vocab_size=47), share_encoder_decoder_embeddings=False),
    ),
    Case(
        "marian-alone", MarianForCausalLM, MarianConfig(**translator(decoder_layers=2)), left=False, computed=SINUSOIDS
    ),
    Case(
        "pegasus",
        PegasusForConditionalGeneration,
        PegasusConfig(**translator(scale_embedding=True)),
        computed=SINUSOIDS,
    ),
    Case("pegasus-own-positions", MovedPegasus, PegasusConfig(**translator())),
    Case("m2m100", M2M100ForConditionalGeneration, M2M100Config(**translator(d_model=33, activation_function="gelu"))),
    Case("m2m100-padded-by-3", M2M100ForConditionalGeneration, M2M100Config(**translator(pad_token_id=3)), steps=6),
    Case("fsmt", FSMTForConditionalGeneration, fsmt(encoder_attention_heads=5), steps=16, computed=SINUSOIDS),
    Case("fsmt-own-positions", MovedFSMT, fsmt(pad_token_id=3), steps=6),
    Case(
        "blenderbot", BlenderbotForConditionalGeneration, BlenderbotConfig(**translator(encoder_no_repeat_ngram_size=0))
    ),
    Case(
        "blenderbot-alone",
        BlenderbotForCausalLM,
        BlenderbotConfig(**translator(decoder_layers=2, encoder_no_repeat_ngram_size=0)),
        left=False,
    ),
    Case("blenderbot-small", BlenderbotSmallForConditionalGeneration, BlenderbotSmallConfig(**translator())),
    Case("blenderbot-small-alone", BlenderbotSmallForCausalLM, BlenderbotSmallConfig(**translator()), left=False),
)
