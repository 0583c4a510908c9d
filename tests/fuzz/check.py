"""Demands on a drawn spec: a valid one trains one step and decodes as it reads, another is refused in one sentence."""

from __future__ import annotations

import random
from typing import Any

import torch
from tests.fuzz import draw, mistakes
from torch import Tensor

from qkv.costs.cost import cost
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.base import Part, Spec
from qkv.spec.branches import Branch
from qkv.spec.files.plain import plain
from qkv.spec.model import Model, Stack
from qkv.spec.training import Optimizer
from qkv.system.errors import UserError
from qkv.training.optim.optimisers import build_optimizer

LENGTH, SOURCE = 9, 5
LARGEST = 200_000
"""Parameters of a model that is built; a larger one, which a mistake has made, is counted."""
LONGEST_MESSAGE = 1500
UNREAD = ("fixed_context", "global_local_attention", "reduced_attention")
"""Branches that say the same whatever goes into them, so that what lies before them may have no part in the answer; and
those that may ask for the prefix of a row where no row has one, or for blocks that are longer than a row."""


class Failure(AssertionError):
    """A spec with which something is wrong that no sentence says."""


def drawn(seed: int) -> tuple[dict[str, Any], bool]:
    """(the spec with this number as plain data, True if it was drawn as a valid one)."""
    chance = draw.seeded(seed)
    data = plain(draw.model(chance))
    if chance.random() < 0.6:
        return data, True
    return mistakes.spoiled(chance, data), False


def outcome(data: dict[str, Any], seed: int, sound: bool = False) -> str:
    """``valid`` or ``invalid``. Raises ``Failure``, or what went wrong. ``sound``: it has to be valid."""
    torch.manual_seed(seed)
    try:
        spec = Model.parse(data)
        counted = cost(
            spec, 2, _length(spec, None), source_length=_length(spec.encoder, None) if spec.encoder else None
        )
        if counted.parameters <= LARGEST and _state(spec) <= LARGEST:
            train_one_step(spec, draw.seeded(seed), sound)
    except UserError as error:
        message = str(error)
        if sound:
            raise Failure(f"a valid spec was refused: {message}") from error
        if not message or "\n" in message or len(message) > LONGEST_MESSAGE:
            raise Failure(f"the refusal is not one sentence: {message!r}") from error
        return "invalid"
    return "valid"


def train_one_step(spec: Model, chance: random.Random, sound: bool = True) -> None:
    """Loss, gradients and the weights after an update of any optimiser; then the spot check of decoding with these.

    ``sound``: the numbers have to be finite; a spec with mistakes may multiply by 1e300.
    """
    model = build(spec).train()
    given = inputs(model, chance)
    lengths = torch.tensor([given["ids"].shape[1], chance.randint(1, given["ids"].shape[1])])
    y = _call(model, given, lengths)
    loss = _loss(model.head, y)
    if not sound and not (loss.isfinite() and loss < 1e6):
        return
    if not loss.isfinite():
        raise Failure(f"the loss is {loss.item()}")
    loss.backward()
    # Of layers that hand on their memory one by one, those without a reader beside them learn nothing.
    unread = any(getattr(part, "kind", "") in UNREAD for part in parts(spec)) or (
        spec.encoder is not None and spec.encoder.memory == "layers"
    )
    for name, p in model.named_parameters():
        if p.grad is None and not unread:
            raise Failure(f"{name} has no gradient")
        if sound and p.grad is not None and not p.grad.isfinite().all():
            raise Failure(f"the gradient of {name} is not finite")
    optimizer = draw.part(chance, Optimizer)
    build_optimizer(optimizer.changed(lr=1e-3), model).step()  # type: ignore[arg-type]
    for name, p in model.named_parameters():
        if sound and not p.isfinite().all():
            raise Failure(f"{name} is not finite after a step of {optimizer.kind}")
    if spec.decodes and not spec.reads_types and sound:
        decode(model.eval().double(), given, chance)


@torch.no_grad()
def decode(model: Transformer, given: dict[str, Any], chance: random.Random) -> None:
    """One row read at once, and the same row in pieces."""
    branches = (part for part in parts(model.spec) if isinstance(part, Branch))
    exact = [branch.exactness.length for branch in branches if branch.exactness.length is not None]
    reads = model.spec.segmentation.positions_read if model.spec.segmentation else None
    if reads and any(reads(LENGTH) > length for length in exact):  # estimated in each segment
        return
    row = {name: value[:1] for name, value in given.items()}
    row["ids"] = row["ids"][:, : min([LENGTH, *exact])]
    if "prefix" in row:
        row["prefix"] = row["prefix"].clamp(max=row["ids"].shape[1])
    if "types" in row:
        row["types"] = row["types"][:, : row["ids"].shape[1]]
    expected = _call(model, row, headless=True)
    state = model.init_state(1, memory=_memory(model, row))
    first, outs = row["ids"].shape[1] // 2, []
    first = max(first, int(row["prefix"][0])) if "prefix" in row else first
    for start, end in [(0, first), *((i, i + 1) for i in range(first, row["ids"].shape[1]))]:
        more = {"prefix": row["prefix"]} if "prefix" in row and not start else {}
        more |= {"types": row["types"][:, start:end]} if "types" in row else {}
        y, state = model.features(Signal(row["ids"][:, start:end], **more), state)
        outs.append(y)
    got = torch.cat(outs, 1)
    off = float((got - expected).abs().max()) if got.numel() else 0.0
    if not off <= 1e-6 * (1 + float(expected.abs().max())):
        raise Failure(f"decoding is off by {off:.1e} of {float(expected.abs().max()):.1e}")


def parts(value: Any) -> list[Any]:
    """Every spec inside of a spec, itself included."""
    if isinstance(value, tuple):
        return [found for item in value for found in parts(item)]
    if not isinstance(value, Spec):
        return []
    return [value, *(found for name in type(value).model_fields for found in parts(getattr(value, name)))]


def inputs(model: Transformer, chance: random.Random) -> dict[str, Any]:
    """Ids of two rows and what else the model reads, the queries of a front end among them."""
    spec, length = model.spec, _length(model.spec, model.limit)
    given: dict[str, Any] = {"ids": _ids(spec.frontend, length, chance)}
    if spec.reads_prefix and not spec.latents:
        given["prefix"] = torch.tensor([chance.randint(0, length) for _ in range(2)])
    if spec.types_read([0]):
        count = spec.frontend.num_types or 2
        given["types"] = torch.tensor([[chance.randrange(count) for _ in range(length)] for _ in range(2)])
    if model.encoder is not None:
        assert spec.encoder is not None
        given["source"] = _ids(spec.encoder.frontend, min(SOURCE, model.encoder.limit or SOURCE), chance)
    return given


def _ids(frontend: Any, length: int, chance: random.Random) -> Tensor:
    ids = torch.tensor([[chance.randrange(frontend.vocab_size) for _ in range(length)] for _ in range(2)]).view(
        2, length
    )
    if frontend.query and length:
        ids[:, 0] = -1
    return ids


def _length(spec: Stack, limit: int | None) -> int:
    limits = [limit, spec.position_limit]
    return min([LENGTH, *(limit for limit in limits if limit is not None)])


def _state(spec: Model) -> int:
    """Numbers that a branch may keep without a parameter for them."""
    return max((max(_integers(branch), default=0) for block in spec.blocks for branch in block.branches), default=0)


def _integers(value: Any) -> list[int]:
    if isinstance(value, Part):
        return [n for name in type(value).model_fields for n in _integers(getattr(value, name))]
    return (
        [value]
        if isinstance(value, int)
        else [n for item in value for n in _integers(item)]
        if isinstance(value, tuple)
        else []
    )


def _memory(model: Transformer, given: dict[str, Any], lengths: Tensor | None = None) -> Any:
    return model.encode(Signal(given["source"], lengths=lengths)) if model.encoder is not None else None


def _call(model: Transformer, given: dict[str, Any], lengths: Tensor | None = None, headless: bool = False) -> Tensor:
    known = {name: given[name] for name in ("types",) if name in given}
    if "prefix" in given:
        known["prefix"] = given["prefix"] if lengths is None else torch.minimum(given["prefix"], lengths)
    read = model.features if headless else model
    return read(Signal(given["ids"], lengths=lengths, **known), memory=_memory(model, given))[0]


def _loss(head: Any, y: Tensor) -> Tensor:
    """Mean of the head's own loss on random targets."""
    targets = head.random(y.shape[0], y.shape[1], torch.Generator().manual_seed(0))
    return head.loss(y, targets) / targets.numel()
