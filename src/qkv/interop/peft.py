"""Adapters as the PEFT library writes them: adapter_config.json and adapter_model.safetensors.

A map W of the model's is that of a published family where there is one; else it keeps its name here. PEFT names the two matrices of a map
``base_model.model.<path>.lora_A.weight`` (R, I) and ``….lora_B.weight`` (O, R). Where a family holds one of our maps as several, q, k and v,
each of them has the same A and its own rows of B. What learned as a whole beside the adapter, such as a head, stands under its name and in
``modules_to_save``. Token tables that have other rows than those of the adapted model stand under their names alone, as PEFT writes them after
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

from qkv.interop.family import Match, matches
from qkv.interop.save import covering
from qkv.interop.ways import PLAIN, Cut, Transposed
from qkv.layers.lora import LowRank, adapters
from qkv.models.adapt import adapt
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.adapt import LoRA
from qkv.spec.errors import UserError
from qkv.spec.model import Model
from qkv.spec.training import Training
from qkv.tokenizers.files import write_whole

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TOKENS = ("frontend.table", "encoder.frontend.table", "head.weight", "head.bias")
"""What has a row for each token."""
_PREFIX = "base_model.model."
_TASKS = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "tokens": "TOKEN_CLS", "spans": "QUESTION_ANS"}


class Adapter(NamedTuple):
    """Contents of PEFT's two files. ``rows``: how many tokens the base needs room for before the adapter is put in; None where it has it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    rows: int | None = None


def save_adapter(
    model: Transformer, training: Training, folder: str | Path, base: str | None = None, before: Model | None = None
) -> Adapter:
    """Write the adapters of ``model`` in PEFT's form; what was written. ``base``: the name or folder of the model that was adapted, and
    ``before`` its spec, None where it is not at hand; then token tables are written whole.

    Raises ``UserError`` for a model without adapters, for maps that a family keeps in another way than by rows, and for a folder that cannot
    be written.
    """
    found, folder = adapter(model, training, base, before), Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{WEIGHTS}.partial"
        save_file({name: tensor.contiguous().cpu() for name, tensor in found.tensors.items()}, partial, {"format": "pt"})
        partial.replace(folder / WEIGHTS)
        write_whole(folder / CONFIG, (json.dumps(found.config, indent=2) + "\n").encode())
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None
    return found


def adapter(model: Transformer, training: Training, base: str | None = None, before: Model | None = None) -> Adapter:
    """The adapters of ``model``, trained as ``training`` says, as PEFT's files hold them. Raises ``UserError``."""
    maps, part = adapters(model), training.adapt
    if not maps or not isinstance(part, LoRA):
        raise UserError(f"there is no adapter to write: the weights were trained with training.adapt={part.kind}, not lora")
    names = _names(model)
    tensors: dict[str, Tensor] = {}
    paths: list[str] = []
    for path, module in maps.items():
        found = _of_map(module, names[f"{path}.weight"])
        paths += found
        tensors |= {f"{_PREFIX}{name}.{leaf}.weight": tensor for name, pair in found.items() for leaf, tensor in pair.items()}
    whole = _learned_whole(model, training, names)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in whole.items()}
    tables = {} if base is None else _other_tables(model, before, names, whole)
    tensors |= {f"{_PREFIX}{name}": tensor for name, tensor in tables.items()}
    everything = {_owner(theirs) for match in names.values() for theirs in match.theirs}
    transposed = any(isinstance(names[f"{path}.weight"].way, Transposed) for path in maps)
    config = _config(model, part, base, _targets(paths, everything), sorted({_owner(name) for name in whole}), transposed)
    return Adapter(config, tensors, model.spec.vocab_size if tables else None)


def _names(model: Transformer) -> dict[str, Match]:
    """How a family, or where there is none qkv, names each tensor."""
    plain = {name: name for name in model.state_dict() if not name.endswith((".lora_a", ".lora_b"))}
    found = covering(model.spec)
    if found is None:
        return {name: Match(name, (name,), PLAIN, Cut((), 1)) for name in plain}
    with torch.device("meta"):
        bare = Transformer(model.spec)
    return {match.ours: match for match in matches(bare, found.family.written(found.architecture))}


def _of_map(module: LowRank, match: Match) -> dict[str, dict[str, Tensor]]:
    """For each of a family's maps its two matrices. Raises ``UserError`` where they cannot be told apart by rows."""
    a, b = module.lora_a.detach(), module.lora_b.detach()
    parts = (b,) if isinstance(match.way, Transposed) else match.way.outward(b, match.cut)
    changes = match.way.outward(at_least_single(b) @ at_least_single(a), match.cut)
    for some, change in zip(parts, changes, strict=True):
        product = at_least_single(some) @ at_least_single(a)
        product = product.t() if isinstance(match.way, Transposed) else product
        if product.shape != change.shape or not torch.allclose(product, change, rtol=1e-4, atol=1e-6):
            raise UserError(f"{match.theirs[0]} holds the numbers of a map in another order than by rows, which no low-rank pair can say")
    return {_owner(name): {"lora_A": a.clone(), "lora_B": some.clone()} for name, some in zip(match.theirs, parts, strict=True)}


def _learned_whole(model: Transformer, training: Training, names: Mapping[str, Match]) -> dict[str, Tensor]:
    """What learned beside the adapters, by the family's names."""
    with torch.device("meta"):
        learner = Transformer(model.spec)
    adapt(learner, training)
    learned = [name for name, p in learner.named_parameters() if p.requires_grad and name in names]
    tensors, found = model.state_dict(), dict[str, Tensor]()
    for match in (names[name] for name in learned):
        found.update(zip(match.theirs, match.way.outward(tensors[match.ours], match.cut), strict=True))
    return {name: tensor.clone() for name, tensor in found.items()}


def _other_tables(model: Transformer, before: Model | None, names: Mapping[str, Match], whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the family's names the token tables that the adapted model has not, or has with other rows; all of them where ``before`` is None.

    Raises ``UserError`` for another tensor of the front end that has changed its shape, such as a table of positions.
    """
    tensors, there = model.state_dict(keep_vars=True), _shapes(before)
    found, seen = dict[str, Tensor](), set[int]()
    for ours, match in names.items():
        tensor = tensors.get(ours)
        if tensor is None or id(tensor) in seen or any(name in whole for name in match.theirs) or there.get(ours) == tensor.shape:
            continue
        if ours in _TOKENS:
            seen.add(id(tensor))
            found.update(zip(match.theirs, match.way.outward(tensor.detach(), match.cut), strict=True))
        elif ours in there:
            shapes = f"{list(tensor.shape)}, and in the model that was adapted {list(there[ours])}"
            raise UserError(
                f"{ours} has the shape {shapes}, which no adapter of PEFT's can say; write the whole model, without --format peft"
            )
    return {name: tensor.clone() for name, tensor in found.items()}


def _shapes(spec: Model | None) -> dict[str, torch.Size]:
    if spec is None:
        return {}
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Transformer(spec).state_dict().items()}


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _targets(paths: Iterable[str], everything: Iterable[str]) -> list[str]:
    """What the paths end in, if nothing else ends so; else the paths themselves. PEFT adapts every map whose path ends in a target."""
    paths = set(paths)
    ends: set[str] = set()
    for path in paths:
        names = path.split(".")
        tails = [".".join(names[-count:]) for count in range(1, len(names) + 1)]
        ends.add(next(tail for tail in tails if all(p in paths for p in everything if p == tail or p.endswith(f".{tail}"))))
    return sorted(ends)


def _config(model: Transformer, part: LoRA, base: str | None, targets: list[str], whole: list[str], transposed: bool) -> dict[str, Any]:
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
