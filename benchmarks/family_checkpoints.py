"""Tiny random checkpoints of published families, written by transformers, and the reference outputs to compare with.

The config of each model type is made small by the names of its fields (``SMALL``) and by its own entry (``FAMILIES``),
which keeps what is special about it: layers of every type, several experts and groups of them, windows shorter than the
rows, shared keys. All weights get noise, so that a term that an implementation leaves out shows. Weights that no
optimiser trains, such as tables of sinusoids, keep their values.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import random
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import family_images as seen
import family_sizes as sizes
import family_sounds as sounds
import qkv

TOLERANCE = 1e-4
"""Largest difference of two outputs that count as equal, relative to the largest output."""
LENGTH, SHORT, PREFIX = 23, 16, 9
"""Positions of a row, of a short row, and of the decoder of an encoder–decoder."""
LARGEST = 25_000_000
"""Parameters of the largest model that counts as small."""
LAYER_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")
"""Config keys that list the kind of each layer."""
Keys = dict[str, Any]


class NotBuilt(Exception):
    """There is no small checkpoint; the message says why."""


@dataclass
class Reference:
    """Model of transformers with random weights, the arguments of its forward pass, and its logits."""

    model: Any
    arguments: Keys
    logits: Tensor
    notes: list[str] = field(default_factory=list)
    """Forms that are not compared, because transformers contradicts its own plain pass in them."""


Form = tuple[str, Tensor, Tensor]
"""Name of a form of input, logits of transformers, logits of qkv."""


@dataclass(frozen=True)
class Kind:
    """Task for which transformers registers model types.

    forms: compares the reference with a model of qkv.   arguments: usual arguments of models of images beside texts.
    """

    mapping: str
    forms: Callable[[Reference, Any], Iterator[Form]]
    hears: bool = False
    arguments: Callable[..., list[Keys]] | None = None
    more: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether the forms differ by family, so that tables name them; such a model needs no tokenizer."""
        return self.hears or self.arguments is not None

    @property
    def names(self) -> dict[str, str]:
        """Name of the first model class of each model type."""
        from transformers.models.auto import modeling_auto

        registered, every = getattr(modeling_auto, self.mapping), modeling_auto.MODEL_MAPPING_NAMES
        chosen = {**registered, **{name: every[name] for name in self.more}}
        registered = {name: registered[name] for name in self.only} or chosen
        return {name: each if isinstance(each, str) else each[0] for name, each in registered.items()}


def value(config: Any, name: str) -> Any:
    """Value of a key, or None: some configs raise an error for keys that differ by layer."""
    with contextlib.suppress(Exception):
        return getattr(config, name)


def small(config_class: Any, keys: Keys | None = None, full: Any = None) -> Keys:
    """Keys of a small config of ``config_class``, with ``keys`` among them. full: config of a part at its full size."""
    kind = config_class.model_type
    tables = (sizes.FAMILIES, sounds.FAMILIES, seen.FAMILIES)
    special = {name: now for table in tables for name, now in table.get(kind, {}).items()} | (keys or {})
    is_part, plain = full is not None, None
    small_keys: Keys = {"model_type": config_class.model_type} if is_part else {}
    absent = {name for name in special if special[name] is None}
    with contextlib.suppress(Exception):
        plain = config_class()
    full = full or plain
    for each in dataclasses.fields(config_class):
        name, now = each.name, value(full, each.name)
        typed = now if is_part or name == "num_key_value_heads" else each.default
        if dataclasses.is_dataclass(now) and "model_type" not in (special.get(name) or ()):
            small_keys[name] = small(type(now), special.pop(name, None), now)
        elif name in sizes.SMALL and type(typed) is int:
            small_keys[name] = sizes.SMALL[name]
        elif is_part and isinstance(now, bool | float | str | None) and now != value(plain, name):
            small_keys[name] = now  # set by the config that contains this part
    for name, now in special.items():
        is_config = isinstance(now, dict) and "model_type" in now
        small_keys[name] = small(_config_class(now["model_type"]), now) if is_config else now
    if "kv_lora_rank" in small_keys:  # latent attention has as many heads of keys as of queries
        small_keys["num_key_value_heads"] = small_keys["num_attention_heads"]
    small_keys |= _sections(config_class, special, small_keys, full)
    for name in LAYER_KINDS:
        small_keys |= _layer_kinds(config_class, name, special, small_keys, full)
    return {name: now for name, now in small_keys.items() if name not in absent}


def _config_class(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def _sections(config_class: Any, special: Keys, small_keys: Keys, full: Any) -> Keys:
    """RoPE with sections of a small head, for families that divide the pairs of a head among axes."""
    rope, ignored = value(full, "rope_parameters") or {}, value(config_class, "ignore_keys_at_rope_validation") or ()
    nested = any(isinstance(now, dict) for now in rope.values())
    if "mrope_section" not in {*rope, *ignored} or nested or "rope_parameters" in special:
        return {}
    half = int(small_keys.get("head_dim", 16) * rope.get("partial_rotary_factor", 1)) // 2
    return {"rope_parameters": {**rope, "mrope_section": [half - half // 4 - half // 3, half // 3, half // 4]}}


def _layer_kinds(config_class: Any, name: str, special: Keys, small_keys: Keys, full: Any) -> Keys:
    """Kinds of the layers of a small model, every kind of the full model among them."""
    listed = list(value(full, name) or ())
    kinds = list(dict.fromkeys(listed))
    with contextlib.suppress(Exception):
        chosen = set(getattr(config_class(**copy.deepcopy(small_keys)), name))
        if name not in special and len(kinds) > 1 and chosen != set(kinds):
            layers = (kinds + listed[len(kinds) :])[: max(small_keys["num_hidden_layers"], len(kinds))]
            layers.append(layers.pop(layers.index(listed[-1])))
            return {name: layers, "num_hidden_layers": len(layers)}
    return {}


def classes(kind: Kind, name: str) -> tuple[Any, Any]:
    """(model class, config class) of a model type."""
    import transformers

    model, config = getattr(transformers, kind.names[name]), _config_class(name)
    parts = (getattr(config, "sub_configs", None) or {}).values()
    return model, model.config_class if model.config_class in parts else config


def build(kind: Kind, name: str, changes: Keys) -> tuple[Any, Any]:
    """Build (transformers' model with noise in all trained weights, its config). Raises ``NotBuilt``."""
    model_class, config_class = classes(kind, name)
    decodes = kind is KINDS["causal"] and any(each.name == "is_decoder" for each in dataclasses.fields(config_class))
    keys = small(config_class, {"is_decoder": True} if decodes else None)
    config = config_class(**copy.deepcopy({**keys, **changes}))  # some classes change their arguments
    config._attn_implementation = sizes.ATTENTION.get(config.model_type, "eager")
    if config.model_type in sizes.UNCACHED:
        config.use_cache = False
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.device("meta"):
        count = sum(weight.numel() for weight in model_class(config).parameters())
        if count > LARGEST:
            raise NotBuilt(f"{count / 1e6:.0f} million parameters after shrinking")
    torch.manual_seed(0)
    model = model_class(config).eval().float()
    _add_noise(model)
    model.tie_weights()
    return model, config


def _add_noise(model: Any) -> None:
    stored, generator = model.state_dict().keys(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
        for path, buffer in model.named_buffers():
            if path in stored and buffer.is_floating_point() and not path.endswith(sizes.CONSTANT):
                buffer += 0.1 * torch.rand(buffer.shape, generator=generator)


def reference(kind: Kind, model: Any, config: Any) -> Reference:
    """Run the model on the first of the usual arguments that it takes. Raises ``NotBuilt``."""
    generator, names = torch.Generator().manual_seed(2), inspect.signature(model.forward).parameters
    reasons = list[str]()
    for arguments in _arguments(kind, config, names, generator):
        if arguments.keys() <= names.keys():
            try:
                return Reference(model, arguments, sounds.answer(model(**arguments)))
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {error}")
    raise NotBuilt(reasons[0] if reasons else "no arguments are known with which transformers runs it")


def _arguments(kind: Kind, config: Any, names: typing.Container[str], generator: torch.Generator) -> list[Keys]:
    """Usual arguments of the models of a kind."""
    if kind.hears:
        return sounds.sound_arguments(names, generator)
    if kind.arguments is not None:
        return kind.arguments(names, generator, image_side(config))
    if kind is KINDS["image"]:
        side = image_side(config)
        pixels = torch.randn(2, value(config, "num_channels") or 3, side, side, generator=generator)
        patches = torch.randn(2, 16, 192, generator=generator)
        grid = {"spatial_shapes": torch.full((2, 2), 4), "pixel_attention_mask": torch.ones(2, 16)}
        return [{"pixel_values": pixels}, {"inputs": pixels}, {"pixel_values": patches, **grid}]
    ids = torch.randint(4, 140, (2, LENGTH), generator=generator)
    decoder = {"decoder_input_ids": ids[:, :PREFIX]} if "decoder_input_ids" in names else {}
    return [{"input_ids": ids, **decoder}, {"input_ids": ids}]


def image_side(config: Any) -> int:
    """Height and width of the images of a config."""
    size = value(config, "image_size") or value(value(config, "vision_config"), "image_size") or sizes.SIDE
    return size if isinstance(size, int) else size[0]


def difference(expected: Tensor, result: Tensor) -> float:
    """Largest difference, relative to the largest expected value; infinite for tensors of different shapes."""
    if expected.shape != result.shape:
        return float("inf")
    return float((result - expected).abs().max() / expected.abs().max())


def text_forms(reference: Reference, model: Any) -> Iterator[Form]:
    """Compare models of text, with an encoder or without: whole rows, rows of two lengths, one step after a prefill.

    Rows of two lengths are padded on the left for decoders, else on the right.
    """
    arguments, theirs = reference.arguments, reference.model
    source, ids = arguments["input_ids"], arguments.get("decoder_input_ids", arguments["input_ids"])
    paired, decodes = "decoder_input_ids" in arguments, model.spec.decodes

    def memory(*signal: Tensor, **facts: Tensor) -> Keys:
        return {"memory": model.encode(qkv.Signal(*signal, **facts))} if paired else {}

    whole = reference.logits[:, : ids.shape[1]]
    yield "whole rows", whole, model(qkv.Signal(ids), **memory(source))[0]

    padded, place = _padded(reference, left=decodes and not paired)
    single = {name: rows[1:, :SHORT] for name, rows in arguments.items()}
    expected = _consistent(
        reference,
        "padding",
        lambda: (theirs(**single).logits[0, :SHORT], theirs(**padded).logits[1, slice(None) if paired else place]),
    )
    if expected is not None:
        lengths = torch.tensor([LENGTH, SHORT])
        right = source.where(torch.arange(LENGTH) < lengths[:, None], 0)
        signal = qkv.Signal(ids) if paired else qkv.Signal(right, lengths=lengths)
        yield "two lengths", expected, model(signal, **memory(right, lengths=lengths))[0][1, : len(expected)]

    name = "decoder_input_ids" if paired else "input_ids"
    steps = [{**arguments, name: part} for part in (ids[:, :-1], ids[:, -1:])]
    if decodes:
        expected = _consistent(reference, "a cached step", lambda: (whole[:, -1], _last_step(theirs, *steps)))
    if decodes and expected is not None:
        _, state = model(qkv.Signal(ids[:, :-1]), model.init_state(len(ids), **memory(source)))
        yield "one step", expected, model(qkv.Signal(ids[:, -1:]), state)[0][:, -1]


def _padded(reference: Reference, left: bool) -> tuple[Keys, slice]:
    """(arguments whose second row is short, the place of its tokens)."""
    arguments, source = reference.arguments, reference.arguments["input_ids"]
    gap = slice(LENGTH - SHORT) if left else slice(SHORT, None)
    place = slice(LENGTH - SHORT, None) if left else slice(SHORT)
    mask, ids = torch.ones_like(source), source.clone()
    mask[1, gap], ids[1, place], ids[1, gap] = 0, source[1, :SHORT], 0
    padded = {**arguments, "input_ids": ids, "attention_mask": mask}
    if left and "position_ids" in inspect.signature(reference.model.forward).parameters:
        padded["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return padded, place


def _last_step(model: Any, first: Keys, last: Keys) -> Tensor:
    """Logits of transformers for the last token, from the cache of those before it."""
    output = model(**first, use_cache=True)
    names = ("past_key_values", "cache_params", "state")
    cache = {name: output[name] for name in names if output.get(name) is not None}
    if not cache:
        raise ValueError("it returns no cache")
    return model(**last, **cache, use_cache=True).logits[:, -1]


def _consistent(reference: Reference, form: str, outputs: Callable[[], tuple[Tensor, Tensor]]) -> Tensor | None:
    """Second of two outputs of transformers; None, with a note, if it fails or contradicts the first."""
    try:
        plain, result = outputs()
    except Exception as error:
        reference.notes.append(f"{form}: not in transformers ({type(error).__name__}: {str(error)[:80]})")
        return None
    if difference(plain, result) <= TOLERANCE:
        return result
    reference.notes.append(f"{form}: transformers differs from its own plain pass by {difference(plain, result):.0e}")
    return None


def image_forms(reference: Reference, model: Any) -> Iterator[Form]:
    """Compare classifiers of images."""
    (pixels,) = (reference.arguments[name] for name in ("pixel_values", "inputs") if name in reference.arguments)
    yield "whole images", reference.logits, model(qkv.Signal(pixels))[0]


def sound_forms(reference: Reference, model: Any) -> Iterator[Form]:
    """Compare models that read sound."""
    return sounds.sound_forms(reference, model, _consistent)


def pair_forms(reference: Reference, model: Any) -> Iterator[Form]:
    """Compare models with two towers."""
    return seen.pair_forms(reference, model)


def image_text_forms(reference: Reference, model: Any) -> Iterator[Form]:
    """Compare models that write about images."""
    return seen.text_forms(reference, model, _consistent)


KINDS = {
    "causal": Kind("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", text_forms),
    "masked": Kind("MODEL_FOR_MASKED_LM_MAPPING_NAMES", text_forms),
    "seq2seq": Kind("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", text_forms),
    "image": Kind("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", image_forms),
    "pair": Kind(
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        pair_forms,
        arguments=seen.pair_arguments,
        more=seen.PAIRS,
    ),
    "image_text": Kind("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", image_text_forms, arguments=seen.text_arguments),
    "ctc": Kind("MODEL_FOR_CTC_MAPPING_NAMES", sound_forms, hears=True),
    "speech": Kind("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", sound_forms, hears=True),
    "sound": Kind("MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", sound_forms, hears=True),
    "encoder": Kind("MODEL_MAPPING_NAMES", sound_forms, hears=True, only=sounds.ENCODERS),
    "codec": Kind("MODEL_FOR_AUDIO_TOKENIZATION_NAMES", sounds.codec_forms, hears=True, more=sounds.CODECS),
    "speaker": Kind("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", sound_forms, hears=True, more=sounds.SPEAKERS),
}


def add_processor(name: str, side: int, folder: Path) -> None:
    """Write preprocessor_config.json for images of ``side`` pixels, if the family has a processor of images."""
    import transformers
    from transformers.models.auto import image_processing_auto

    entry = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(name) or {}
    with contextlib.suppress(Exception):
        kind = getattr(transformers, entry.get("pil") or entry["torchvision"])
        keys = {key: now for key, now in kind().to_dict().items() if key in ("size", "crop_size") and now}
        kind(**{key: dict.fromkeys(now, side) for key, now in keys.items()}).save_pretrained(folder)


def choices(kind: Kind, name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield (key, other values) of each config key that may change what a model computes."""
    _, config_class = classes(kind, name)
    plain = config_class(**copy.deepcopy(small(config_class)))
    for each in dataclasses.fields(config_class):
        key, now = each.name, value(plain, each.name)
        if not any(part in key for part in sizes.NEUTRAL):
            several = sizes.CHOICES_OF.get(name, {}).get(key)
            others = [other for other in several or _others(key, now, each.type) if other != now]
            if others:
                yield key, others


def _others(key: str, now: Any, kind: Any) -> list[Any]:
    """Values of a config key other than ``now``, by its name and type."""
    literals = [hint for hint in (kind, *typing.get_args(kind)) if typing.get_origin(hint) is typing.Literal]
    named = [other for hint in literals for other in typing.get_args(hint)]
    if key == "rope_parameters" and any(isinstance(one, dict) for one in (now or {}).values()):
        return [{**now, list(now)[-1]: rope} for rope in sizes.CHOICES[key]]  # one for each kind of layer
    if key in sizes.CHOICES:
        return sizes.CHOICES[key]
    if named or isinstance(now, bool):
        return named or [not now]
    if isinstance(now, float):
        return [1e-3, 1e-6] if "eps" in key else [now / 2, now * 1.5]
    several = key.endswith("layer_types") and len(set(now or ())) > 1
    return [now[::-1], now[1:] + now[:1]] if several else []


def random_changes(generator: random.Random, pool: dict[str, list[Any]]) -> Keys:
    """Draw one to four keys of ``pool``, each with one of its values."""
    keys = generator.sample(list(pool), min(len(pool), generator.randint(1, 4)))
    return {key: generator.choice(pool[key]) for key in keys}
