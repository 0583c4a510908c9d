"""Export of LoRA adapters in the format of the PEFT library: adapter_config.json and adapter_model.safetensors.

Linear layers get their published names if a family covers the model, else their names in qkv. PEFT names the two
matrices of a layer ``base_model.model.<path>.lora_A.weight`` (R, I) and ``….lora_B.weight`` (O, R). If a family stores
one linear layer of qkv as several (q, k, v), each of these gets the same A and the corresponding rows of B. Modules
trained in full beside the adapter, such as a head, are stored under their names and listed in ``modules_to_save``.
Token tables whose number of rows differs from the base model's are stored under their names only, as PEFT does after
``resize_token_embeddings``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.interop.files.places import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from qkv.interop.mapping.conversions import PLAIN, Cut, Transposed
from qkv.interop.mapping.names import Match, matches
from qkv.interop.save import covering
from qkv.layers.linear.lora import LowRank, adapters
from qkv.models.edit.adapt import adapt
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.model import Model
from qkv.spec.models.adapt import LoRA
from qkv.spec.training import Training
from qkv.system.errors import UserError
from qkv.system.files import write_file

CONFIG, WEIGHTS = ADAPTER_CONFIG, ADAPTER_WEIGHTS
_TOKENS = ("frontend.table", "encoder.frontend.table", "head.weight", "head.bias")
"""Names of tensors with one row per token of the vocabulary."""
_PREFIX = "base_model.model."
_TASKS = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "tokens": "TOKEN_CLS", "spans": "QUESTION_ANS"}


class Adapter(NamedTuple):
    """Contents of the two files of a PEFT adapter.

    ``rows``: vocabulary size to which the base model must be resized before the adapter is loaded, or None.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    rows: int | None = None


def save_adapter(
    model: Transformer, training: Training, folder: str | Path, base: str | None = None, before: Model | None = None
) -> Adapter:
    """Write the LoRA adapters of ``model`` in PEFT format; return the contents.

    ``training``: training settings of the adapters; ``base``: name or folder of the base model; ``before``: spec of the
    base model, or None if unavailable, in which case all token tables are written. Raises ``UserError`` for a model
    without adapters, for linear layers that a family does not store by rows, and for a folder that cannot be written.
    """
    contents, folder = adapter(model, training, base, before), Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{WEIGHTS}.partial"
        save_file(
            {name: tensor.contiguous().cpu() for name, tensor in contents.tensors.items()}, partial, {"format": "pt"}
        )
        partial.replace(folder / WEIGHTS)
        write_file(folder / CONFIG, (json.dumps(contents.config, indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None
    return contents


def adapter(model: Transformer, training: Training, base: str | None = None, before: Model | None = None) -> Adapter:
    """Convert the LoRA adapters of ``model`` to the contents of PEFT's files; parameters as in ``save_adapter``.

    Raises ``UserError``.
    """
    maps, part = adapters(model), training.adapt
    if not maps or not isinstance(part, LoRA):
        raise UserError(
            f"there is no adapter to write: the weights were trained with training.adapt={part.kind}, not lora"
        )
    names = _names(model)
    tensors: dict[str, Tensor] = {}
    paths: list[str] = []
    for path, module in maps.items():
        pairs = _of_map(module, names[f"{path}.weight"])
        paths += pairs
        tensors |= {
            f"{_PREFIX}{name}.{leaf}.weight": tensor for name, pair in pairs.items() for leaf, tensor in pair.items()
        }
    whole = _learned_whole(model, training, names)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in whole.items()}
    tables = {} if base is None else _other_tables(model, before, names, whole)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in tables.items()}
    everything = {_owner(theirs) for match in names.values() for theirs in match.theirs}
    transposed = any(isinstance(names[f"{path}.weight"].way, Transposed) for path in maps)
    config = _config(
        model, part, base, _targets(paths, everything), sorted({_owner(name) for name in whole}), transposed
    )
    return Adapter(config, tensors, model.spec.vocab_size if tables else None)


def _names(model: Transformer) -> dict[str, Match]:
    """Return the match of each tensor of ``model`` with its names in the family's files, by its name in qkv.

    Without a family, both names are equal.
    """
    plain = {name: name for name in model.state_dict() if not name.endswith((".lora_a", ".lora_b"))}
    cover = covering(model.spec)
    if cover is None:
        return {name: Match(name, (name,), PLAIN, Cut((), 1)) for name in plain}
    with torch.device("meta"):
        bare = Transformer(model.spec)
    return {match.ours: match for match in matches(bare, cover.family.written(cover.architecture))}


def _of_map(module: LowRank, match: Match) -> dict[str, dict[str, Tensor]]:
    """Split the LoRA matrices A and B of the linear layer ``module`` into pairs for the published linear layers.

    Raises ``UserError`` if a published layer is not a set of rows of the layer.
    """
    a, b = module.lora_a.detach(), module.lora_b.detach()
    parts = (b,) if isinstance(match.way, Transposed) else match.way.outward(b, match.cut)
    changes = match.way.outward(at_least_single(b) @ at_least_single(a), match.cut)
    for some, change in zip(parts, changes, strict=True):
        product = at_least_single(some) @ at_least_single(a)
        product = product.t() if isinstance(match.way, Transposed) else product
        if product.shape != change.shape or not torch.allclose(product, change, rtol=1e-4, atol=1e-6):
            raise UserError(
                f"{match.theirs[0]} is not stored by rows, so no pair of low-rank matrices can express the adapter"
            )
    return {
        _owner(name): {"lora_A": a.clone(), "lora_B": some.clone()}
        for name, some in zip(match.theirs, parts, strict=True)
    }


def _learned_whole(model: Transformer, training: Training, names: Mapping[str, Match]) -> dict[str, Tensor]:
    """Return the tensors trained in full beside the adapters, such as a head, by published name."""
    with torch.device("meta"):
        learner = Transformer(model.spec)
    adapt(learner, training)
    learned = [name for name, p in learner.named_parameters() if p.requires_grad and name in names]
    tensors, result = model.state_dict(), dict[str, Tensor]()
    for match in (names[name] for name in learned):
        result.update(zip(match.theirs, match.way.outward(tensors[match.ours], match.cut), strict=True))
    return {name: tensor.clone() for name, tensor in result.items()}


def _other_tables(
    model: Transformer, before: Model | None, names: Mapping[str, Match], whole: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the token tables that the base model ``before`` lacks or has with another number of rows, by published
    name.

    Return all token tables if ``before`` is None. ``whole``: tensors that are written in any case, and omitted here.
    Raises ``UserError`` if another tensor, such as a position table, has another shape in the base model.
    """
    tensors, there = model.state_dict(keep_vars=True), _shapes(before)
    tables, seen = dict[str, Tensor](), set[int]()
    for ours, match in names.items():
        tensor = tensors.get(ours)
        if (
            tensor is None
            or id(tensor) in seen
            or any(name in whole for name in match.theirs)
            or there.get(ours) == tensor.shape
        ):
            continue
        if ours in _TOKENS:
            seen.add(id(tensor))
            tables.update(zip(match.theirs, match.way.outward(tensor.detach(), match.cut), strict=True))
        elif ours in there:
            shapes = f"{list(tensor.shape)} but {list(there[ours])} in the base model"
            raise UserError(
                f"{ours} has the shape {shapes}, which a PEFT adapter cannot express; "
                "export the whole model, without --format peft"
            )
    return {name: tensor.clone() for name, tensor in tables.items()}


def _shapes(spec: Model | None) -> dict[str, torch.Size]:
    if spec is None:
        return {}
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Transformer(spec).state_dict().items()}


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _targets(paths: Iterable[str], everything: Iterable[str]) -> list[str]:
    """Return the shortest suffixes of the adapted layers' ``paths`` that no other path in ``everything`` ends in.

    PEFT adapts every layer whose path ends in a target.
    """
    paths = set(paths)
    ends: set[str] = set()
    for path in paths:
        names = path.split(".")
        tails = [".".join(names[-count:]) for count in range(1, len(names) + 1)]
        ends.add(
            next(tail for tail in tails if all(p in paths for p in everything if p == tail or p.endswith(f".{tail}")))
        )
    return sorted(ends)


def _config(
    model: Transformer, part: LoRA, base: str | None, targets: list[str], whole: list[str], transposed: bool
) -> dict[str, Any]:
    writes = "SEQ_2_SEQ_LM" if model.spec.encoder else "CAUSAL_LM" if model.spec.causal else None
    return {
        "peft_type": "LORA",
        "task_type": _TASKS.get(model.spec.head.kind, writes),
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": part.rank,
        "lora_alpha": part.alpha,
        "lora_dropout": part.dropout,
        "use_rslora": part.use_rslora,
        "target_modules": targets,
        "modules_to_save": whole or None,
        "fan_in_fan_out": transposed,
        "bias": "none",
        "init_lora_weights": True,
    }
