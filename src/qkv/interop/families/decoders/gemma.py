"""Text models Gemma 1, 2 and 3 (Gemma Team 2024, 2024, 2025): embeddings times √D, norms with scale 1 + weight, wide
heads.

Gemma 2 adds norms after branches, soft caps of scores and logits, and a window in every other layer. Gemma 3 has norms
of queries and keys instead of caps; its layers with a window have a different RoPE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, capped_language_model, language_model, of_decoder, vectors
from qkv.interop.families.common.rope import layer_ropes, rope_config, rope_of
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal, Full, Mask, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.system.errors import UserError, nearest

SLIDING, FULL = "sliding_attention", "full_attention"
BOTH_WAYS = "use_bidirectional_attention"

SANDWICH_NAMES = (
    NameRule("blocks.{layer}.branches.0.norm_after.weight", "model.layers.{layer}.post_attention_layernorm.weight"),
    NameRule("blocks.{layer}.branches.1.norm.weight", "model.layers.{layer}.pre_feedforward_layernorm.weight"),
    NameRule("blocks.{layer}.branches.1.norm_after.weight", "model.layers.{layer}.post_feedforward_layernorm.weight"),
    *gated.NAMES,
)
"""Name table of Gemma 2 and 3. The first match applies, so the row of the feed-forward's norm precedes Llama's."""


def spec_of_gemma(config: Config, head: Head) -> Model:
    """Build the spec of Gemma 1: pre-norm blocks, all alike.

    ``hidden_act`` "gelu" is read as the tanh approximation, with which the models were trained.
    """
    config.fixed(BOTH_WAYS, False, "the attention mask")
    attention = _attention(config, num_heads=16, num_kv_heads=16).changed(relative=rope_of(config))
    activation = config.word("hidden_act", "gelu_pytorch_tanh", {**INWARD, "gelu": "gelu_tanh"})
    if config.has("hidden_activation") and config.word("hidden_activation", allowed=INWARD) != activation:
        settings = (
            f"hidden_activation is {config.word('hidden_activation')!r} and hidden_act "
            f"{config.word('hidden_act', 'gelu_pytorch_tanh')!r}"
        )
        raise UserError(
            f"{config.source}: {settings}; versions of the published code read one or the other, so both must agree"
        )
    feed_forward = GatedFeedForward(hidden=config.size("intermediate_size", 24576), activation=activation, bias=False)
    blocks = [Block(branches=(attention, feed_forward), norm=_norm(config))] * config.layers("num_hidden_layers", 28)
    return _model(config, head, blocks, width=3072, length=8192)


def spec_of_gemma2(config: Config, head: Head) -> Model:
    """Build the spec of Gemma 2: sandwich blocks.

    Without ``layer_types``, every second block has full attention, and the others have a sliding window.
    """
    config.fixed(BOTH_WAYS, False, "the attention mask")
    rope, cap = rope_of(config), config.optional("attn_logit_softcapping", 50.0)
    attention = _attention(config, num_heads=8, num_kv_heads=4, scaled=True).changed(softcap=cap)
    return _layered(config, head, attention, {SLIDING: rope, FULL: rope}, pattern=2, length=8192)


def spec_of_vaultgemma(config: Config, head: Head) -> Model:
    """Build the spec of VaultGemma: like Gemma 2, but with pre-norm blocks."""
    return gated.with_blocks(spec_of_gemma2(config, head), order="pre")


def spec_of_gemma3(config: Config, head: Head) -> Model:
    """Build the spec of Gemma 3: sandwich blocks.

    Without ``layer_types``, every sixth block has full attention, and the others have a sliding window. With
    ``use_bidirectional_attention`` (EmbeddingGemma), attention is bidirectional, and ``sliding_window`` is the size of
    the window to both sides together.
    """
    attention = _attention(config, num_heads=8, num_kv_heads=4, scaled=True).changed(qk_norm=_norm(config))
    bases = {FULL: config.number("rope_theta", 1e6), SLIDING: config.number("rope_local_base_freq", 1e4)}
    ropes = layer_ropes(config, bases, scaled=FULL)
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    model = _layered(config, head, attention, ropes, pattern, length=131072)
    if not config.flag(BOTH_WAYS, False):
        return model
    reach = config.integer("sliding_window") // 2 + 1 if config.has("sliding_window") else 1
    masks = {SLIDING: Window(size=reach), FULL: Full()}
    return model.changed(blocks=tuple(_masked(block, masks[_kind(block)]) for block in model.blocks))


def _masked(block: Block, mask: Mask) -> Block:
    """Return the block with ``mask`` in its first branch, attention."""
    first, *rest = block.branches
    return block.changed(branches=(first.changed(mask=mask), *rest))


def _attention(config: Config, num_heads: int, num_kv_heads: int, scaled: bool = False) -> Attention:
    """Build an attention spec without RoPE and mask; the numbers of heads are defaults.

    ``scaled``: scale the scores by 1 / √query_pre_attn_scalar instead of 1 / √Dk.
    """
    head_dim = config.size("head_dim", 256)
    scalar = config.number("query_pre_attn_scalar", 256) if scaled else head_dim
    if scalar <= 0:
        raise UserError(f"{config.source}: query_pre_attn_scalar is {scalar:g}, but it should be above 0")
    return Attention(
        num_heads=config.size("num_attention_heads", num_heads),
        num_kv_heads=config.size("num_key_value_heads", num_kv_heads),
        head_dim=head_dim,
        temperature=(scalar / head_dim) ** 0.5,
        bias=config.flag("attention_bias", False),
        dropout=config.number("attention_dropout", 0.0),
    )


def _norm(config: Config) -> RMSNorm:
    return RMSNorm(eps=config.number("rms_norm_eps", 1e-6), zero_centred=True)


def _layered(
    config: Config, head: Head, attention: Attention, ropes: Mapping[str, Rope], pattern: int, length: int
) -> Model:
    """Build the spec of sandwich blocks with full attention or a sliding window, as their shortest repeating pattern.

    ``pattern``: as in ``_kinds``.
    """
    kinds, norm = _kinds(config, pattern), _norm(config)
    activation = config.word("hidden_activation", "gelu_pytorch_tanh", INWARD)
    feed_forward = GatedFeedForward(hidden=config.size("intermediate_size", 9216), activation=activation, bias=False)
    window: Mask = gated.windowed(config.integer("sliding_window")) if SLIDING in kinds else Causal()
    config.fixed("sliding_window_size", config.values.get("sliding_window"), "the meaning of sliding_window")
    config.has("sliding_window")
    of_kind = {
        kind: Block(
            branches=(attention.changed(mask=mask, relative=ropes[kind]), feed_forward), norm=norm, order="sandwich"
        )
        for kind, mask in ((SLIDING, window), (FULL, Causal()))
    }
    return _model(config, head, [of_kind[kind] for kind in kinds], width=2304, length=length)


def _kinds(config: Config, pattern: int) -> list[str]:
    """Return the kind of each layer, full or sliding window, from ``layer_types``.

    Without that key, every ``pattern``-th layer is full, and all others are sliding.
    """
    layers, kinds = config.layers("num_hidden_layers", 26), config.items("layer_types")
    if pattern < 1:
        raise UserError(f"{config.source}: sliding_window_pattern is {pattern}, but it should be at least 1")
    if not kinds:
        return [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]
    if len(kinds) != layers:
        raise UserError(f"{config.source}: layer_types names {len(kinds)} layers, but num_hidden_layers is {layers}")
    unknown = next((str(kind) for kind in kinds if kind not in (SLIDING, FULL)), None)
    if unknown is not None:
        raise UserError(f"{config.source}: layer_types holds {unknown!r}; {nearest(unknown, (SLIDING, FULL))}")
    return kinds


def _model(config: Config, head: Head, blocks: Sequence[Block], width: int, length: int) -> Model:
    return Model(
        width=config.size("hidden_size", width),
        num_layers=len(blocks),
        context_length=config.integer("max_position_embeddings", length),
        frontend=Text(vocab_size=config.size("vocab_size", 256000), positions=NoPositions(), scale=True),
        blocks=shortest_pattern(blocks),
        norm=_norm(config),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def config_of_gemma(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Gemma 1's. Callers read them back to
    verify.
    """
    return _config(spec, "hidden_act", _bias)


def config_of_gemma2(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Gemma 2's. Callers read them back to
    verify.
    """
    keys = _config(spec, "hidden_activation", _scores(spec.width))
    return None if keys is None else {**keys, **_layers_config(spec)}


def config_of_gemma3(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Gemma 3's. Callers read them back to
    verify.
    """
    return _config_of_gemma3(spec) if spec.causal else _config_both_ways(spec)


def _config_both_ways(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys of a bidirectional Gemma 3; None if ``spec`` has another structure."""
    masks = [block.branches[0].mask for block in spec.layers if isinstance(block.branches[0], Attention)]
    reaches = [mask.size for mask in masks if isinstance(mask, Window)]
    if len(masks) != len(spec.layers) or len({*reaches}) > 1:
        return None
    one_way = [
        _masked(block, Causal() if isinstance(mask, Full) else gated.windowed(max(reaches, default=1)))
        for block, mask in zip(spec.layers, masks, strict=True)
    ]
    keys = _config_of_gemma3(spec.changed(blocks=shortest_pattern(one_way)))
    return keys and {**keys, BOTH_WAYS: True, "sliding_window": 2 * (max(reaches, default=2049) - 1)}


def _config_of_gemma3(spec: Model) -> dict[str, Any] | None:
    keys = _config(spec, "hidden_activation", _scores(spec.width), rope=False)
    if keys is None:
        return None
    ropes = {FULL: Rope(base=1e6), SLIDING: Rope()}
    for block in spec.layers:
        attention = block.branches[0]
        if isinstance(attention, Attention) and isinstance(attention.relative, Rope):
            ropes[_kind(block)] = attention.relative
    turned = rope_config(ropes[FULL])
    if turned is None:
        return None
    return {
        **keys,
        **_layers_config(spec),
        **turned,
        "rope_local_base_freq": ropes[SLIDING].base,
    }


def _config(spec: Model, activation: str, more: gated.LayerKeys, rope: bool = True) -> dict[str, Any] | None:
    """Return the ``config.json`` keys that all three Gemma versions have, or None.

    ``activation``: name of the activation's key; ``more`` and ``rope``: as in ``gated.config_of``.
    """
    keys = gated.config_of(spec, more, rope)
    if keys is None:
        return None
    name = keys.pop("hidden_act")
    # Two published names of the tanh approximation differ in rounding; Gemma's has this one.
    name = "gelu_pytorch_tanh" if name == OUTWARD["gelu_tanh"] else name
    return {**keys, activation: name}


def _bias(attention: Attention, feed_forward: FeedForward | GatedFeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def _scores(width: int) -> gated.LayerKeys:
    """Return a function that returns the config keys of a layer's scores, for a model of ``width`` features."""

    def keys(attention: Attention, feed_forward: FeedForward | GatedFeedForward) -> dict[str, Any]:
        scalar = attention.temperature**2 * attention.dims(width)[0]
        whole = abs(scalar - round(scalar)) < 1e-6
        return {
            **_bias(attention, feed_forward),
            "query_pre_attn_scalar": round(scalar) if whole else scalar,
            "attn_logit_softcapping": attention.softcap,
        }

    return keys


def _layers_config(spec: Model) -> dict[str, Any]:
    sizes = [size for block in spec.layers if (size := gated.window_of(block.branches[0]))]
    # transformers requires a window, even if no layer has one
    return {"layer_types": [_kind(block) for block in spec.layers], "sliding_window": sizes[0] if sizes else 4096}


def _kind(block: Block) -> str:
    return SLIDING if gated.window_of(block.branches[0]) else FULL


def _gguf(
    stem: str, name: str, keys: tuple[gguf.MetadataKey, ...], built_in: Mapping[str, Any], windows: int = 0
) -> gguf.GGUFLayout:
    """Build the GGUF layout of a version of Gemma; ``keys`` and ``built_in``: entries that not all versions have."""
    return gguf.GGUFLayout(
        f"{stem}ForCausalLM",
        name,
        (*gguf.GATED, *gguf.HEADS, *keys),
        {"attention_bias": False, **built_in},
        changes=(gguf.Change(r"norm\.weight$", gguf.OneMore()),),
        windows=windows,
    )


def _scale_of(layers: int) -> Callable[[gguf.Values], int]:
    """Return a function that computes llama.cpp's ``query_pre_attn_scalar``.

    This is the width of a head, or in a model of ``layers`` layers D / H.
    """
    return lambda values: (
        gguf.width_of_head(values) if values["num_hidden_layers"] == layers else values.get("head_dim", 256)
    )


_WINDOW = gguf.MetadataKey("attention.sliding_window", "sliding_window", needed=False)
_SCORES_CAP = gguf.MetadataKey("attn_logit_softcapping", "attn_logit_softcapping", float, needed=False)
_LOGITS_CAP = gguf.MetadataKey("final_logit_softcapping", "final_logit_softcapping", float, needed=False)
_LOCAL_BASE = gguf.MetadataKey("rope.freq_base_swa", "rope_local_base_freq", float, needed=False)


def _family(name: str, model_type: str, architectures: Mapping[str, Architecture], **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures=architectures,
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config={
            **HEAD_KEYS,
            "final_logit_softcapping": "part of a head that this architecture lacks",
            "attn_logit_softcapping": "the published code of this version does not apply it",
            "cache_implementation": "cache setting",
            "hidden_act": "replaced by hidden_activation",
        },
        **fields,
    )


GEMMA = _family(
    "Gemma",
    "gemma",
    {"GemmaForCausalLM": language_model(tied=True), **of_decoder("Gemma", question_answering=False)},
    spec=spec_of_gemma,
    config=config_of_gemma,
    names=gated.NAMES,
    gguf=_gguf("Gemma", "gemma", (), {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}),
)
GEMMA2 = _family(
    "Gemma 2",
    "gemma2",
    {"Gemma2ForCausalLM": capped_language_model(True, 30.0), **of_decoder("Gemma2", question_answering=False)},
    spec=spec_of_gemma2,
    config=config_of_gemma2,
    names=SANDWICH_NAMES,
    defaults={"sliding_window": 4096},
    gguf=_gguf(
        "Gemma2",
        "gemma2",
        (_WINDOW, _SCORES_CAP, _LOGITS_CAP),
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": _scale_of(46),
        },
        windows=2,
    ),
)
GEMMA3 = _family(
    "Gemma 3",
    "gemma3_text",
    {
        "Gemma3ForCausalLM": capped_language_model(True, None),
        "Gemma3TextModel": vectors(),
        **of_decoder("Gemma3Text", tags=None, question_answering=False),
    },
    spec=spec_of_gemma3,
    config=config_of_gemma3,
    names=SANDWICH_NAMES,
    defaults={"sliding_window": 4096, "vocab_size": 262208},
    gguf=_gguf(
        "Gemma3",
        "gemma3",
        (_WINDOW, _LOCAL_BASE, _LOGITS_CAP),
        {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": _scale_of(62), BOTH_WAYS: False},
        windows=6,
    ),
)

VAULTGEMMA = _family(
    "VaultGemma",
    "vaultgemma",
    {"VaultGemmaForCausalLM": capped_language_model(True, 30.0)},
    spec=spec_of_vaultgemma,
    config=config_of_gemma2,
    names=(
        NameRule("blocks.{layer}.branches.1.norm.weight", "model.layers.{layer}.pre_feedforward_layernorm.weight"),
        *gated.NAMES,
    ),
    defaults={"sliding_window": 4096},
)

register(GEMMA, GEMMA2, GEMMA3, VAULTGEMMA)
