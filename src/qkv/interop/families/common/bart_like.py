"""Common parts of encoder–decoders with the tensor names of BART (Lewis et al. 2019).

Blocks have biases and LayerNorm; there is a norm of the embeddings, or one at the end of each stack. The decoder may be
published alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import language_model, pooled_head, problem_keys, written_back
from qkv.interop.families.common.sinusoids import is_sinusoid
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import COPIED, PAIR, QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, Learned, NoNorm, Norm, Positions, Sinusoidal

TABLE = "model.shared.weight"
_POSITIONS = tuple(f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))
_STATIC = "static_position_embeddings"
"""Config key of early models: False if position vectors are learned."""
_SOURCE, _TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


class Tables(NamedTuple):
    """Number of rows of the source and the target token table, and whether both are one table."""

    source: int
    target: int
    shared: bool = True


_SHARED = "share_encoder_decoder_embeddings"


def one_table(config: Config, encoder: str = _SOURCE) -> Tables:
    """Read the token tables of a family in which source and target share a table, as in every published model.

    Newer versions of transformers give a model with an untied head three tables. If a file contains the encoder's
    table, named ``encoder``, source and target do not share one.
    """
    count, tied = config.size("vocab_size", 50265), config.flag("tie_word_embeddings", True)
    return Tables(count, count, config.flag(_SHARED, tied or not config.beside(encoder)))


def vocabulary(spec: Model) -> dict[str, Any]:
    """Return the config keys of the token tables, the inverse of ``one_table``."""
    apart = spec.encoder is not None and not spec.tied
    return {"vocab_size": spec.vocab_size, **({_SHARED: _shares(spec)} if apart else {})}


@dataclass(frozen=True)
class BartLike:
    """Structure that is the same in all models of a family.

    order: order of the blocks.   last: norm at the end of a stack.   norm: norm of the embeddings. If ``norm_first``,
    the decoder adds positions after that norm, and does not scale embeddings.

    tables: function from a config to its token tables; keys: function from a spec to the config keys of its token
    tables. alone: True for a family without encoder. stored: files contain the table of the sinusoids; the library
    reads it, whatever its values are.
    """

    order: Literal["pre", "post"]
    last: Norm
    positions: Callable[[Config], Positions]
    norm: Norm = field(default_factory=NoNorm)
    norm_first: bool = False
    tables: Callable[[Config], Tables] = one_table
    keys: Callable[[Model], dict[str, Any]] = vocabulary
    alone: bool = False
    stored: bool = False

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec of a config: D = d_model.

        Encoder and decoder have separate numbers of layers, heads and feed-forward features.
        """
        positions, tables = self._positions(config), self.tables(config)
        dropout, length = config.number("dropout", 0.1), config.size("max_position_embeddings", 1024)
        text = Text(
            vocab_size=tables.target,
            positions=positions,
            dropout=dropout,
            scale=config.flag("scale_embedding", False),
            norm=self.norm,
        )
        source = text.changed(vocab_size=tables.source)
        stack = {"context_length": length, "norm": self.last}
        encoder = None if self.alone or decodes_alone(config) else self._encoder(config, source, tables.shared, stack)
        return Model(
            width=config.size("d_model", 1024),
            num_layers=config.layers("decoder_layers", 12),
            frontend=text.changed(norm_first=self.norm_first, scale=text.scale and not self.norm_first),
            blocks=(self._block(config, *_branches(config, "decoder", encoder is not None)),),
            encoder=encoder,
            head=head,
            init_std=config.number("init_std", 0.02),
            **stack,
        )

    def _positions(self, config: Config) -> Positions:
        """Return the family's positions, or learned ones if the config or a stored table says that they differ."""
        positions = self.positions(config)
        if not isinstance(positions, Sinusoidal) or not self.stored:
            return positions
        static = config.flag(_STATIC, True) and all(is_sinusoid(config, positions, name) for name in _POSITIONS)
        return positions if static else Learned(offset=positions.offset)

    def _encoder(self, config: Config, source: Text, shared: bool, stack: Mapping[str, Any]) -> Encoder:
        read, think = _branches(config, "encoder", reads=False)
        return Encoder(
            num_layers=config.layers("encoder_layers", 12),
            frontend=source,
            blocks=(self._block(config, read.changed(mask=Full()), think),),
            share_embedding=shared,
            **stack,
        )

    def _block(self, config: Config, *branches: Branch) -> Block:
        return Block(branches=branches, order=self.order, norm=LayerNorm(), dropout=config.number("dropout", 0.1))

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
        match spec.layers[:1], (spec.encoder or spec).frontend:
            case (Block(branches=(Attention() as read, *_, FeedForward() as think)) as block,), Text() as text:
                pass
            case _:
                return None
        source = _source_keys(spec)
        if source is None:
            return None
        return {
            "d_model": spec.width,
            "decoder_layers": len(spec.layers),
            "decoder_attention_heads": read.num_heads,
            "decoder_ffn_dim": think.hidden_at(spec.width),
            "activation_function": OUTWARD.get(think.activation),
            "max_position_embeddings": spec.context_length,
            "scale_embedding": text.scale,
            "dropout": block.dropout,
            "attention_dropout": read.dropout,
            "activation_dropout": think.dropout,
            "init_std": spec.init_std,
            "forced_eos_token_id": None,
            **({_STATIC: False} if self.stored and isinstance(text.positions, Learned) else {}),
            **source,
            **self.keys(spec),
        }


def _source_keys(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of the encoder, or those of a decoder alone; None if the encoder's structure differs."""
    if spec.encoder is None:
        return {"is_decoder": True, "is_encoder_decoder": False}
    match spec.encoder.layers[:1]:
        case (Block(branches=(Attention() as read, FeedForward() as think)),):
            pass
        case _:
            return None
    return {
        "encoder_layers": len(spec.encoder.layers),
        "encoder_attention_heads": read.num_heads,
        "encoder_ffn_dim": think.hidden_at(spec.width),
        "is_encoder_decoder": True,
    }


def decodes_alone(config: Config) -> bool:
    """Return True if the config names a causal language model: the decoder without branches that read an encoder."""
    return str(next(iter(config.items("architectures")), "")).endswith("ForCausalLM")


def _branches(config: Config, stack: str, reads: bool) -> tuple[Branch, ...]:
    """Build the branches of a block of ``stack``, "encoder" or "decoder".

    These are self-attention, cross-attention if the stack reads an encoder, and feed-forward.
    """
    sizes = {
        "num_heads": config.size(f"{stack}_attention_heads", 16),
        "dropout": config.number("attention_dropout", 0.0),
    }
    feed_forward = FeedForward(
        hidden=config.size(f"{stack}_ffn_dim", 4096),
        activation=config.word("activation_function", "gelu", INWARD),
        dropout=config.number("activation_dropout", 0.0),
    )
    return (Attention(**sizes), *((CrossAttention(**sizes),) if reads else ()), feed_forward)


def learned(offset: int) -> Callable[[Config], Positions]:
    """Return a function that builds learned positions, whose first row has the index ``offset``."""
    return lambda config: Learned(offset=offset)


def halves(config: Config) -> Positions:
    """Return the positions of Marian and Pegasus: sinusoids, all sines before all cosines."""
    return Sinusoidal(halves=True)


def after_padding(config: Config) -> Positions:
    """Return fairseq's positions: sinusoids, all sines first, with frequencies down to 1 / base.

    The first position is the id of the padding token + 1.
    """
    return Sinusoidal(halves=True, closed=True, offset=config.integer("pad_token_id", 1) + 1)


def padding_key(spec: Model) -> dict[str, Any]:
    """Return the id of the padding token, which determines the first position; inverse of ``after_padding``."""
    match spec.frontend:
        case Text(positions=Sinusoidal(offset=offset) | Learned(offset=offset)) if offset:
            return {**vocabulary(spec), "pad_token_id": offset - 1}
        case _:
            return vocabulary(spec)


def stack_names(ours: str, theirs: str, last: str) -> tuple[NameRule, ...]:
    """Return the name table of one stack.

    ``ours`` and ``theirs``: prefixes of the stack in qkv and in files; ``last``: index of the feed-forward among a
    block's branches.
    """
    slot, layer = f"{ours}blocks.{{layer}}.branches.", f"{theirs}.layers.{{layer}}."
    attention = f"{layer}self_attn."
    return (
        NameRule(f"{ours}frontend.positions.table", f"{theirs}.embed_positions.weight"),
        NameRule(f"{ours}frontend.norm.*", f"{theirs}.layernorm_embedding.*"),
        NameRule(f"{slot}0.norm.*", f"{layer}self_attn_layer_norm.*"),
        NameRule(f"{slot}0.body.qkv.*", (f"{attention}q_proj.*", f"{attention}k_proj.*", f"{attention}v_proj.*"), QKV),
        NameRule(f"{slot}0.body.output.*", f"{attention}out_proj.*"),
        NameRule(f"{slot}{last}.norm.*", f"{layer}final_layer_norm.*"),
        NameRule(f"{slot}{last}.body.up.*", f"{layer}fc1.*"),
        NameRule(f"{slot}{last}.body.down.*", f"{layer}fc2.*"),
        NameRule(f"{ours}norm.*", f"{theirs}.layer_norm.*"),
    )


def _shares(spec: Model) -> bool:
    return spec.encoder is not None and spec.encoder.share_embedding


def _alone(spec: Model) -> bool:
    return spec.encoder is None


_SLOT, _CROSS = "blocks.{layer}.branches.1.", "model.decoder.layers.{layer}.encoder_attn."

NAMES = (
    NameRule("frontend.table", TABLE, where=_shares),
    NameRule("frontend.table", _TARGET),
    NameRule("encoder.frontend.table", (_SOURCE, _TARGET), COPIED, _shares),
    NameRule("encoder.frontend.table", _SOURCE),
    *stack_names("encoder.", "model.encoder", "1"),
    *(row._replace(where=_alone) for row in stack_names("", "model.decoder", "1")),
    *stack_names("", "model.decoder", "2"),
    NameRule(_SLOT + "norm.*", "model.decoder.layers.{layer}.encoder_attn_layer_norm.*"),
    NameRule(_SLOT + "body.query.*", _CROSS + "q_proj.*"),
    NameRule(_SLOT + "body.memory.*", (_CROSS + "k_proj.*", _CROSS + "v_proj.*"), PAIR),
    NameRule(_SLOT + "body.output.*", _CROSS + "out_proj.*"),
)


def copies(spec: Model) -> dict[str, str]:
    """Return each further name under which the shared token table is written -> its first name.

    Newer versions of transformers read three tables for a model with an untied head.
    """
    apart = _shares(spec) and isinstance(spec.head, LanguageModelHead) and not spec.head.tied
    return dict.fromkeys((_SOURCE, _TARGET), TABLE) if apart else {}


ZEROS = {"final_logits_bias": "only a zero bias, as in every published model of the family"}


def writing() -> Architecture:
    """Build the architecture of an encoder–decoder: a language model whose bias of the logits is 0."""
    plain = language_model(tied=True)
    return Architecture(plain.head, plain.config, plain.names, zeros=ZEROS)


_UNREAD = {"model.decoder.layers.{layer}.encoder_attn*": "part of cross-attention, which the model lacks"}


def alone() -> Architecture:
    """Build the architecture of the decoder alone, a causal language model; its files contain cross-attention, too."""
    plain = language_model(tied=True)
    return Architecture(plain.head, plain.config, plain.names, kept=written_back(_UNREAD))


def alone_untied() -> Architecture:
    """Build the architecture of the decoder alone whose head has a matrix of its own, whatever its config says."""

    def write(head: Head) -> dict[str, Any] | None:
        return {} if head == LanguageModelHead(tied=False) else None

    return replace(alone(), head=lambda config: LanguageModelHead(tied=False), config=write)


def _classes(config: Config) -> Head:
    """Build the classification head W dropout(tanh(W_h x + b_h)) + b, where x is the decoder's last vector, at eos.

    The decoder input is the source shifted by one token.
    """
    return pooled_head(
        config, pooling="last", hidden=config.size("d_model", 1024), dropout=config.number("classifier_dropout", 0.0)
    )


def _classes_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "last":
        return None
    return {**problem_keys(head), "classifier_dropout": head.dropout}


CLASSES = Architecture(
    _classes,
    _classes_keys,
    (
        NameRule("head.hidden.*", "classification_head.dense.*"),
        NameRule("head.output.*", "classification_head.out_proj.*"),
    ),
)

SYNONYMS = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
_HEADS = ("tie_word_embeddings", "classifier_dropout", "classif_dropout")
_WRITING = (
    *(
        "num_beams",
        "early_stopping",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "min_length",
        "num_beam_groups",
        "diversity_penalty",
        "bad_words_ids",
    ),
    *("force_bos_token_to_be_generated", "forced_eos_token_id", "prefix", "output_past", "save_step"),
)
_EARLY = (
    "normalize_before",
    "normalize_embedding",
    "add_final_layer_norm",
    "static_position_embeddings",
    "extra_pos_embeddings",
    "add_bias_logits",
    "do_blenderbot_90_layernorm",
)
_OF_ENCODER = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
IGNORED_CONFIG = {
    **dict.fromkeys(_HEADS, "part of a head that this architecture lacks"),
    **dict.fromkeys(_WRITING, "settings of generation and of tasks"),
    **dict.fromkeys(("decoder_start_token_id", "forced_bos_token_id"), "read as start of the output"),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "layer dropout in training, which qkv does not use"),
    **dict.fromkeys(("_num_labels", "is_decoder", *_EARLY), "defined by other keys, or fixed by the family"),
    **dict.fromkeys(_OF_ENCODER, "part of an encoder, which this architecture lacks"),
    "tokenizer_class": "given by the tokenizer",
}
_IGNORED = {
    TABLE: "unused if encoder and decoder have separate tables",
    **{f"model.{stack}.version": "flag of weight tying, which the head defines" for stack in ("encoder", "decoder")},
}
_COMPUTED = {
    f"model.{stack}.embed_positions.{name}": "computed from the config"
    for stack in ("encoder", "decoder")
    for name in ("weight", "weights", "_float_tensor")
}


def family(
    name: str,
    model_type: str,
    architectures: Mapping[str, Architecture],
    form: BartLike,
    defaults: Mapping[str, Any],
    **fields: Any,
) -> Family:
    """Build a family of BART's structure. ``defaults``: values of missing keys that differ from BART's."""
    computed = {} if form.positions(Config({"pad_token_id": 1})).limit(1) else _COMPUTED
    usual: dict[str, Any] = {
        "spec": form.spec,
        "config": form.config,
        "names": NAMES,
        "copies": copies,
        "ignored_config": IGNORED_CONFIG,
        "synonyms": SYNONYMS,
    }
    return Family(
        name=name,
        model_types=(model_type,),
        architectures=architectures,
        prefix="model.",
        defaults=defaults,
        ignored={**_IGNORED, **computed},
        **{**usual, **fields},
    )
