"""Export a model in Hugging Face format, readable by the transformers library and serving engines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv.interop.files.places import CONFIG, GENERATION, PREPROCESSOR, TOKENIZER_CONFIG, WEIGHTS
from qkv.interop.files.slices import join_slices
from qkv.interop.images import sized_as, written_processor
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.divisions import join_rows
from qkv.interop.mapping.family import Family, read_spec
from qkv.interop.mapping.names import matches, reason_for
from qkv.interop.mapping.normal import normal
from qkv.interop.registry import families
from qkv.interop.sounds import written_sound_processor
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.system.errors import UserError
from qkv.system.files import new_file, write_file
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}


class Covering(NamedTuple):
    """Published family and architecture whose config describes a spec exactly, with that config."""

    family: Family
    architecture: str
    config: dict[str, Any]


def covering(spec: Model, first: str = "", among: Sequence[Family] | None = None) -> Covering | None:
    """Return a published family whose config describes exactly this spec; None if there is none.

    The family named ``first`` is tried first. ``among``: families that are tried; default: all.
    """
    for family in sorted(families() if among is None else among, key=lambda family: family.name != first):
        body = family.config(spec)
        if body is None:
            continue
        for name, architecture in family.architectures.items():
            head = architecture.config(spec.head)
            if head is None or not architecture.suits(spec):
                continue
            config = {"model_type": family.model_types[0], "architectures": [name], **body, **head}
            if _gives(family, name, config, spec):
                return Covering(family, name, config)
    return None


def _gives(family: Family, architecture: str, config: dict[str, Any], spec: Model) -> bool:
    """Return True if ``config`` converts back to the same model as ``spec``, so that no setting is lost."""
    try:
        read_back = read_spec(family, architecture, Config(config))
    except UserError:
        return False
    return normal(sized_as(read_back, spec)) == normal(spec)


def save_published(
    model: Transformer,
    folder: str | Path,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] = (),
    family: str = "",
    begin: Sequence[int] = (),
    kept: Mapping[str, Tensor] | None = None,
    processor: Processor | None = None,
    ends: Sequence[int] = (),
    kept_config: Mapping[str, Any] | None = None,
) -> Covering:
    """Write ``model`` as a checkpoint in Hugging Face format: config.json, model.safetensors, generation_config.json
    and, given a tokenizer or an image processor, their files.

    Returns the published family and its config. ``family``: family to prefer if several cover the model, such as the
    one from which it was loaded. ``labels``: class names. ``begin``: the one or two ids with which the decoder of an
    encoder–decoder starts; default: the tokenizer's beginning-of-text token. ``kept``: ignored tensors of the loaded
    folder, written back if files of this architecture may hold them; ``kept_config``: keys of its config that go with
    them. ``ends``: ids of all tokens that end a text.
    Raises ``UserError`` if no published family covers the model, or the folder cannot be written.
    """
    cover = covering(model.spec, family)
    if cover is None:
        kinds = ", ".join(family.name for family in families())
        raise UserError(f"no published family covers this model, so no other library could open it; families: {kinds}")
    folder = Path(folder).expanduser()
    fixed = {key: value for key, value in cover.config.items() if key.endswith("_token_id") and value is not None}
    config = {**cover.config, **about(model, tokenizer, labels), **_start(model, tokenizer, begin), **fixed}
    if model.spec.head.reads_memory:
        config = _with_ids_of_text(config, tokenizer)
    several = cover.family.architectures[cover.architecture].kept_config
    config |= {key: value for key, value in (kept_config or {}).items() if key in several}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = published_tensors(model, cover.family, cover.architecture)
        copies = {name: tensors[source].clone() for name, source in cover.family.copies(model.spec).items()}
        write_tensors(folder / WEIGHTS, {**tensors, **copies, **_extra_tensors(kept or {}, cover, model)})
        write_json(folder / CONFIG, config)
        if model.spec.frontend.reads_tokens and not model.spec.head.reads_memory:
            ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
            write_json(folder / GENERATION, {**ids, **({"eos_token_id": list(ends)} if len(ends) > 1 else {})})
        _write_processor(folder, processor, model.spec, cover.family.extractor)
        if tokenizer is not None:
            save_tokenizer(folder, tokenizer, model.spec)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None
    return cover


def _write_processor(folder: Path, processor: Processor | None, spec: Model, extractor: str) -> None:
    """Write the settings of a processor, if a published one does the same; ``extractor``: ``Family.extractor``."""
    settings = written_processor(processor) or written_sound_processor(processor, spec, extractor)
    if settings is not None:
        write_json(folder / PREPROCESSOR, settings)


def _extra_tensors(extra: Mapping[str, Tensor], cover: Covering, model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``extra`` that files of this architecture may hold, in the model's dtype."""
    reasons, dtype = cover.family.extra_tensors(cover.architecture), next(model.parameters()).dtype
    return {name: tensor.to(dtype) for name, tensor in extra.items() if reason_for(name, reasons) is not None}


def published_tensors(
    model: nn.Module, family: Family, architecture: str, gradients: bool = False
) -> dict[str, Tensor]:
    """Return the tensors of the model by published name; with ``gradients``, return their gradients.

    Shared tensors appear once.
    """
    tensors, values, seen = model.state_dict(keep_vars=True), dict[str, Tensor](), set[int]()
    for match in matches(model, family.written(architecture)):
        tensor = tensors[match.ours]
        value = tensor.grad if gradients else tensor.detach()
        if id(tensor) not in seen and value is not None:
            seen.add(id(tensor))
            values.update(zip(match.theirs, match.way.outward(value, match.cut), strict=True))
    return join_rows(join_slices(values), family.divisions_of(model))


def about(model: nn.Module, tokenizer: Tokenizer | None, labels: Sequence[str]) -> dict[str, Any]:
    """Return the config keys that are independent of the spec: dtype, ids of special tokens, class names."""
    first = next(model.parameters())
    keys: dict[str, Any] = {"torch_dtype": _NAMES.get(first.dtype, "float32")}
    if tokenizer is not None:
        keys |= {
            f"{role}_token_id": tokenizer.specials[role] for role in ("bos", "eos", "pad") if role in tokenizer.specials
        }
    if labels:
        keys |= {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
    return keys


def _with_ids_of_text(config: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Move the ids of special tokens to the config of the text tower; the end token is the last of each text."""
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    last = tokenizer.frame.behind[-1:] if tokenizer is not None else ()
    text = {**ids, **config["text_config"], **({"eos_token_id": last[0]} if last else {})}
    return {**{key: value for key, value in config.items() if key not in ids}, "text_config": text}


def _start(model: Transformer, tokenizer: Tokenizer | None, begin: Sequence[int]) -> dict[str, int]:
    """Return the config keys with the ids that an encoder–decoder's decoder starts with; empty without an encoder."""
    if model.encoder is None or model.spec.head.reads_memory:
        return {}
    if not begin and tokenizer is not None and "bos" in tokenizer.specials:
        begin = (tokenizer.specials["bos"],)
    return dict(zip(("decoder_start_token_id", "forced_bos_token_id"), begin, strict=False))


def save_tokenizer(folder: Path, tokenizer: Tokenizer, spec: Model) -> None:
    """Write ``tokenizer`` with its settings.

    For a bidirectional model, the written tokenizer adds special tokens around texts. The characters that a
    CTC model writes are also listed in vocab.json, with its blank as the padding token.
    """
    (tokenizer if spec.causal or spec.head.writes_text else tokenizer.framing).save(folder / FILE_NAME)
    blank = getattr(spec.head, "blank", None)
    characters = None if blank is None else listed_characters(tokenizer, blank)
    if characters is None:
        write_json(folder / TOKENIZER_CONFIG, tokenizer_config(tokenizer, spec))
        return
    write_json(folder / "vocab.json", characters)
    padding = next(token for token, index in characters.items() if index == blank)
    unknown = {} if tokenizer.unknown_id is None else {"unk_token": tokenizer.core.id_to_token(tokenizer.unknown_id)}
    names = {"pad_token": padding, "word_delimiter_token": "|", **unknown}
    write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": "Wav2Vec2CTCTokenizer", **names})


def listed_characters(tokenizer: Tokenizer, blank: int) -> dict[str, int] | None:
    """Return the ids of the characters of a tokenizer and of the blank; None if a token has several characters.

    "|" stands for the space, as in the published folders of wav2vec 2.0.
    """
    ids = tokenizer.core.get_vocab(with_added_tokens=True)
    special = {*tokenizer.specials.values(), blank}
    if any(len(token) > 1 and index not in special for token, index in ids.items()):
        return None
    if " " in ids and "|" not in ids:
        ids["|"] = ids.pop(" ")
    if blank not in ids.values():
        ids["<pad>"] = blank
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def tokenizer_config(tokenizer: Tokenizer, spec: Model) -> dict[str, Any]:
    """Build the contents of tokenizer_config.json for the transformers library.

    They name a generic tokenizer class and the special tokens by role; for a CTC model whose blank is a token, the
    class that merges equal neighbours, with the blank as the padding token.
    """
    roles = {f"{role}_token": tokenizer.core.id_to_token(index) for role, index in tokenizer.specials.items()}
    blank = getattr(spec.head, "blank", None)
    padding = None if blank is None else tokenizer.core.id_to_token(blank)
    if padding is not None:
        return {"tokenizer_class": "ParakeetTokenizer", **roles, "pad_token": padding}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": spec.context_length, **roles}


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_file(path, (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically, with the permissions of a normal new file."""
    with new_file(path) as partial:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, partial, {"format": "pt"})
