"""What a model costs, before it exists: parameters, FLOPs, memory, state and time. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

from qkv.inspection import cost_attention, cost_formulas
from qkv.inspection.machine import Machine
from qkv.inspection.shares import FLOAT, Setting, Share, share
from qkv.inspection.training_memory import Memory, Stages, training_memory
from qkv.spec.errors import UserError, nearest
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Add, Learned, NoResidual
from qkv.spec.training import Training

__all__ = ["BUILT_IN", "PRECISIONS", "Cost", "Memory", "Speed", "cost"]

BUILT_IN = (cost_attention, cost_formulas)
PRECISIONS = {"fp32": 4, "bf16": 2}
"""Bytes of a number."""
_COUNTERS = 16
"""Bytes a row in which a model's state counts positions."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second, estimated; ``decode`` is the sum over the rows of the batch."""

    train: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Cost:
    """The cost of ``batch_size`` rows of ``length`` positions.

    parts: by name, in the order of the data's way: embedding, each kind of branch, norm, residual, final norm, head.
    blocks: of each block its branches, each with the norms and the residual around it.
    """

    model: Model
    batch_size: int
    length: int
    precision: str
    training: Training
    attention: str
    parts: dict[str, Share]
    blocks: tuple[tuple[Share, ...], ...]

    @property
    def total(self) -> Share:
        """The sum of all parts."""
        return _sum(*self.parts.values())

    @property
    def tokens(self) -> int:
        """Positions of the batch."""
        return self.batch_size * self.length

    @property
    def parameters(self) -> int:
        """Numbers that are trained; a table that is both embedding and head counts once."""
        return self.total.parameters

    @property
    def forward_flops(self) -> int:
        """Of a forward pass over whole score matrices, as torch's counter counts the reference path."""
        return self.total.flops

    @property
    def needed_flops(self) -> int:
        """Of a forward pass without the scores that the masks hide."""
        return self.total.flops - self.total.masked

    @property
    def train_flops(self) -> int:
        """Of an update: forward, twice that backward, and with recomputation what each block keeps once more."""
        again = sum(branch.flops - branch.ending for block in self.blocks for branch in block) if self.training.recompute else 0
        return self.training.accumulate * (3 * self.total.flops + again)

    @property
    def memory(self) -> Memory:
        """Of a training step."""
        stream = FLOAT * self.tokens * self.model.width
        ending = _sum(self.parts["final norm"], self.parts["head"])
        table = FLOAT * _table(self.model)
        return training_memory(Stages(self.parts["embedding"], self.blocks, ending, stream, table), self.total, self.training)

    def state_bytes(self, length: int | None = None) -> int:
        """Bytes that the batch's decoding state takes after ``length`` positions, with room for as many."""
        return self.at(length).total.state + _COUNTERS * self.batch_size

    def step_flops(self, length: int | None = None) -> int:
        """FLOPs of one more token in each row, after ``length`` positions."""
        return self.at(length).total.step

    def step_bytes(self, length: int | None = None) -> int:
        """Bytes read for one more token in each row: the weights once, but of a table that is only looked up, and the state."""
        looked_up = self.parts["embedding"].parameters - (_table(self.model) if self.model.tied else 0)
        return PRECISIONS[self.precision] * (self.parameters - looked_up) + self.state_bytes(length)

    def at(self, length: int | None = None, attention: str | None = None) -> Cost:
        """The same for rows of another length, or with attention on another path."""
        length, attention = self.length if length is None else length, attention or self.attention
        if (length, attention) == (self.length, self.attention):
            return self
        return cost(self.model, self.batch_size, length, self.precision, self.training, attention)

    def speed(self, machine: Machine) -> Speed:
        """Linear maps, attention and the rest at the machine's rates, one after the other, and every operator's own time.

        An estimate: it knows nothing of what runs beside, nor of products too small to reach the machine's rate.
        """
        total, passes = self.total, self.training.accumulate
        again = self.train_flops / (3 * passes * total.flops)
        forward = self._products(machine) + (total.saved / (machine.elements or machine.bandwidth)) / 3 + total.calls * machine.call
        # Reads weights, gradients and two moments, and writes all but the gradients.
        update = 7 * FLOAT * total.parameters / machine.bandwidth
        step = max(self.step_bytes() / machine.bandwidth, total.step / machine.flops_at(self.precision)) + total.step_calls * machine.call
        return Speed(
            train=passes * self.tokens / (3 * passes * again * forward + update),
            prefill=self.tokens / forward,
            decode=self.batch_size / step,
        )

    def _products(self, machine: Machine) -> float:
        """Seconds of the products of a forward pass."""
        total, rate = self.total, machine.flops_at(self.precision)
        return (total.flops - total.attended) / rate + (total.attended - total.skipped) / (machine.attention or rate)

    def to_dict(self) -> dict[str, Any]:
        """Counts, FLOPs and bytes as plain data."""
        flops = {
            "forward": self.forward_flops,
            "forward_needed": self.needed_flops,
            "train": self.train_flops,
            "decode_step": self.step_flops(),
        }
        return {
            "batch_size": self.batch_size,
            "length": self.length,
            "precision": self.precision,
            "parameters": {"total": self.parameters, **{name: part.parameters for name, part in self.parts.items()}},
            "flops": flops,
            "memory": asdict(self.memory),
            "state_bytes": self.state_bytes(),
            "decode_step_bytes": self.step_bytes(),
        }


def cost(
    model: Model,
    batch_size: int = 1,
    length: int | None = None,
    precision: str = "fp32",
    training: Training | None = None,
    attention: str = "sdpa",
) -> Cost:
    """The cost of ``model`` on ``batch_size`` rows of ``length`` positions (default: its context length).

    ``training`` gives optimiser, accumulation and recomputation; its own batch size and precision are not read. ``attention`` is
    the path that plain attention takes in training where the machine chooses one (``qkv why``): "sdpa", "sdpa, oneDNN" or "tiled";
    memory depends on it. Raises ``UserError`` where the vocabulary is not known, a size is not positive, ``length`` does not fit a
    learned position table, or no formula is registered for a part.
    """
    length = model.context_length if length is None else length
    _check(model, batch_size, length, precision)
    at = Setting(model.width, batch_size, length, model.context_length, model.vocab_size or 0, PRECISIONS[precision], attention=attention)
    known = [_block(block, at) for block in model.blocks]
    blocks = [known[i % len(known)] for i in range(len(model.layers))]
    parts = {"embedding": share(model.frontend, at)}
    for name, part in (named for block in blocks for branch in block for named in branch.items()):
        parts[name] = parts.get(name, Share()) + part
    parts |= {"final norm": share(model.norm, at), "head": share(model.head, at)}
    sums = tuple(tuple(_sum(*branch.values()) for branch in block) for block in blocks)
    return Cost(model, batch_size, length, precision, training or Training(), attention, parts, sums)


def _block(block: Block, at: Setting) -> list[dict[str, Share]]:
    """Each branch of a block with the norms and the residual that the block's order puts around it, by name."""
    found: list[dict[str, Share]] = []
    for i, branch in enumerate(block.branches):
        parallel, last = block.order == "parallel", i == len(block.branches) - 1
        # In bf16 each branch rounds the shared input for itself.
        part = share(branch, replace(at, shared_input=parallel and i > 0 and at.item == FLOAT))
        if not last or _keeps_result(block):
            part = replace(part, ending=0)
        norms = {"sandwich": 2, "parallel": int(i == 0)}.get(block.order, 1)
        drawn = Share(saved=at.tokens * at.width * at.item if block.dropout else 0)
        found.append({branch.kind: part, "norm": _sum(*[share(block.norm, at)] * norms), "residual": share(block.residual, at) + drawn})
    return found


def _keeps_result(block: Block) -> bool:
    """True if something behind the last branch of ``block`` needs its output in the backward pass."""
    return (
        block.order in ("post", "sandwich") or not isinstance(block.residual, (Add, NoResidual)) or bool(block.dropout or block.drop_path)
    )


def _check(model: Model, batch_size: int, length: int, precision: str) -> None:
    if precision not in PRECISIONS:
        raise UserError(f"there is no precision {precision!r}; {nearest(precision, PRECISIONS)}")
    for name, value in (("batch size", batch_size), ("length", length)):
        if value <= 0:
            raise UserError(f"the {name} is {value}; it must be at least 1")
    if not isinstance(model.frontend, Text):
        return
    if model.frontend.vocab_size is None:
        raise UserError("model.frontend.vocab_size is not known without the tokenizer; give it, as in frontend.vocab_size=8192")
    if isinstance(model.frontend.positions, Learned) and length > model.context_length:
        raise UserError(f"{length} positions are more than the {model.context_length} of the learned position table (model.context_length)")


def _table(model: Model) -> int:
    """Parameters of the token table."""
    if not isinstance(model.frontend, Text) or model.vocab_size is None:
        return 0
    return model.vocab_size * (model.width if model.frontend.join == "add" else model.width // 2)


def _sum(*shares: Share) -> Share:
    return reduce(Share.__add__, shares, Share())
