"""Cost estimates of a model before training: parameters, FLOPs, memory, decoding state and speed.

Costs are counted on the model itself, which is built and run without memory (``qkv.costs.counting.counted``). This
module imports torch only when a cost is computed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from qkv.costs.checks import PRECISIONS, check
from qkv.costs.measuring.machine import Machine, stored_machine, usable_memory
from qkv.costs.shares import FLOAT, Blocks, Share, added
from qkv.report.figures import short, size
from qkv.report.fragment import tables_fragment
from qkv.spec.model import Model, Stack
from qkv.spec.training import Training
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.costs.counting.counted import Trained

__all__ = ["PRECISIONS", "Cost", "Speed", "TrainingMemory", "cost"]

PART_COLUMNS = ["part", "parameters", "FLOPs, forward", "kept for backward"]
"""Column titles of the table of parts."""
ENCODER = "encoder "
"""Prefix of the names of an encoder's parts."""
_COUNTERS = 32
"""Bytes per row of the counters in a decoding state: position, limit, prefix, and lag behind them."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step needs. ``activations``: saved for the backward pass. ``peak``: maximum at any time."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


@dataclass(frozen=True)
class Speed:
    """Estimated tokens per second, summed over all rows of the batch."""

    train: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Cost:
    """Cost of a model on ``batch_size`` rows of ``length`` positions; its encoder, if any, reads ``source_length``
    positions.

    parts: cost of each part by name, in order of execution: embedding, each kind of branch, norm, residual, final norm,
    head; parts of an encoder come first, with the prefix ``encoder``.

    blocks: for each block, the costs of its branches, including their norms and residuals.   encoder, latents, inner:
    the same for the blocks of the encoder, the latents and the segmentation.

    memory: bytes of a training step.   learned: numbers of trainable parameters; None if all parameters are trained.
    """

    model: Model
    batch_size: int
    length: int
    precision: str
    training: Training
    attention: str
    parts: dict[str, Share]
    blocks: Blocks
    memory: TrainingMemory
    encoder: Blocks = ()
    source_length: int = 0
    irregular: str = "sdpa"
    learned: Trained | None = None
    latents: Blocks = ()
    inner: Blocks = ()

    def _repr_html_(self) -> str:
        """HTML for notebooks, with speeds if this machine was measured."""
        tables = [(PART_COLUMNS, part_rows(self)), (["quantity", "value"], quantity_rows(self, stored_machine()))]
        return tables_fragment(table_title("Cost", self), tables)

    @property
    def total(self) -> Share:
        """Sum of all parts."""
        return added(*self.parts.values())

    @property
    def tokens(self) -> int:
        """Number of positions in the batch, without those that the encoder reads."""
        return self.batch_size * self.length

    @property
    def writes(self) -> bool:
        """True if the model generates tokens."""
        return self.model.decodes and self.model.head.predicts_tokens

    @property
    def parameters(self) -> int:
        """Number of parameters, without adapters; a table shared by embedding and head is counted once."""
        return self.total.parameters

    @property
    def active_parameters(self) -> int:
        """Number of parameters used for one position; in a mixture of experts, only the selected experts count."""
        return self.parameters - self.total.idle

    @property
    def trained_parameters(self) -> int:
        """Number of trainable parameters, including adapters."""
        return self.learned.parameters if self.learned else self.parameters

    @property
    def forward_flops(self) -> int:
        """FLOPs of a forward pass with full attention matrices, as torch's FLOP counter gives for the reference
        implementation.
        """
        return self.total.flops

    @property
    def needed_flops(self) -> int:
        """FLOPs of a forward pass without those for masked attention scores."""
        return self.total.flops - self.total.masked

    @property
    def train_flops(self) -> int:
        """FLOPs of an update: forward passes, backward passes, and recomputation (checkpointing or reversible
        blocks).
        """
        repeated = (
            (*self.encoder, *self.latents, *self.inner, *self.blocks)
            if self.training.recompute
            else self.blocks
            if self.model.reversible
            else ()
        )
        again = sum(branch.flops - branch.ending for block in repeated for branch in block)
        return self.training.accumulate * (self.total.flops + self.total.backward + again)

    def state_bytes(self, length: int | None = None) -> int:
        """Return the bytes of the decoding state of the whole batch with a capacity of ``length`` positions."""
        return self.at(length).total.state + _COUNTERS * self.batch_size

    def step_flops(self, length: int | None = None) -> int:
        """Return the FLOPs to decode one token per row after ``length`` positions.

        They exclude the encoder and the projections of its output.
        """
        return self.at(length).total.step

    def step_bytes(self, length: int | None = None) -> int:
        """Return the bytes read from memory to decode one token per row: weights and decoding state.

        The weights exclude the encoder, tables of which a step only reads a few rows, and experts that are not
        selected.
        """
        unread = self.parts["embedding"].parameters - (
            _table(self.model, self.model.width, self.model.vocab_size) if self.model.tied else 0
        )
        for name, part in self.parts.items():
            unread += part.parameters if name.startswith(ENCODER) else part.unread
        return PRECISIONS[self.precision] * (self.parameters - unread) + self.state_bytes(length)

    def at(self, length: int | None = None, attention: str | None = None, irregular: str | None = None) -> Cost:
        """Return the cost at another length, or with other implementations of attention; the arguments are those of
        ``cost``.
        """
        length, paths = (
            self.length if length is None else length,
            (attention or self.attention, irregular or self.irregular),
        )
        if (length, *paths) == (self.length, self.attention, self.irregular):
            return self
        source = self.source_length or None
        return cost(self.model, self.batch_size, length, self.precision, self.training, paths[0], source, paths[1])

    def speed(self, machine: Machine) -> Speed:
        """Estimate the speed from linear maps, attention and element-wise work at the machine's rates, plus the
        overhead of calls.

        The estimate ignores other load on the machine, and that small products do not reach these rates.
        """
        total, passes = self.total, self.training.accumulate
        again = self.train_flops / (3 * passes * total.flops)
        forward = (
            self._products(machine)
            + (total.saved / (machine.elements or machine.bandwidth)) / 3
            + total.calls * machine.call
        )
        # An optimiser step reads weights, gradients and two moments, and writes all but the gradients.
        update = 7 * FLOAT * self.trained_parameters / machine.bandwidth
        step = (
            max(self.step_bytes() / machine.bandwidth, total.step / machine.flops_at(self.precision))
            + total.step_calls * machine.call
        )
        return Speed(
            train=passes * self.tokens / (3 * passes * again * forward + update),
            prefill=self.tokens / forward,
            decode=self.batch_size / step,
        )

    def _products(self, machine: Machine) -> float:
        """Estimate the seconds of matrix products in a forward pass."""
        total, rate = self.total, machine.flops_at(self.precision)
        return (total.flops - total.attended) / rate + (total.attended - total.skipped) / (machine.attention or rate)

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, FLOPs and bytes as plain data."""
        flops = {
            "forward": self.forward_flops,
            "forward_needed": self.needed_flops,
            "train": self.train_flops,
            "decode_step": self.step_flops(),
        }
        return {
            "batch_size": self.batch_size,
            "length": self.length,
            **({"source_length": self.source_length} if self.encoder else {}),
            "precision": self.precision,
            "trained_parameters": self.trained_parameters,
            **({"active_parameters": self.active_parameters} if self.total.idle else {}),
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
    source_length: int | None = None,
    irregular: str = "sdpa",
) -> Cost:
    """Estimate the cost of ``model`` on ``batch_size`` rows of ``length`` positions (default: its context length).

    source_length: positions that the encoder reads per row (default: its context length).
    training: optimiser, accumulation, recomputation and trained parameters; its batch size and precision are ignored.
    attention: implementation of causal and full attention in training (see ``qkv why``), which affects memory: "sdpa",
        "sdpa, oneDNN" or "tiled".   irregular: the same for other masks: "sdpa" or "products".

    Raises ``UserError`` if the vocabulary size is unknown, a size is not positive, ``length`` exceeds a learned
    position table, or the computation of a part depends on the values of tensors.
    """
    length = _fixed_length(model) if length is None else length
    source = _source_length(model, source_length)
    check(model, batch_size, {"length": length, **({"source length": source} if model.encoder else {})}, precision)
    training = training or Training()
    from qkv.costs.counting.counted import Asked, counted

    request = Asked(model, batch_size, length, source, precision, attention, irregular, training)
    counts = counted(request)
    learned = counts.trained if request.partly else None
    again = training.recompute or model.reversible
    branches = (*counts.encoder, *counts.latents, *counts.inner, *counts.blocks)
    most = max((sum(branch.saved for branch in block) for block in branches), default=0) if again else 0
    weights, gradients = (
        FLOAT * (added(*counts.parts.values()).parameters + counts.trained.added),
        FLOAT * counts.trained.parameters,
    )
    optimizer = FLOAT * training.optimizer.numbers(counts.trained.parameters, counts.trained.matrices)
    beside = gradients if training.accumulate > 1 else 0
    peak = weights + optimizer + max(beside + counts.peak, gradients)
    memory = TrainingMemory(weights, gradients, optimizer, counts.kept + most, peak)
    sizes = {
        "encoder": counts.encoder,
        "latents": counts.latents,
        "inner": counts.inner,
        "source_length": source,
        "irregular": irregular,
        "learned": learned,
    }
    return Cost(model, batch_size, length, precision, training, attention, counts.parts, counts.blocks, memory, **sizes)


def _fixed_length(stack: Stack) -> int:
    """Return the number of positions of a row of ``stack``: the fixed number of its front end, as for image patches,
    else its context length.
    """
    return stack.frontend.num_positions or stack.context_length


def _source_length(model: Model, length: int | None) -> int:
    """Return the number of positions that the encoder reads; 0 without an encoder."""
    if model.encoder:
        return _fixed_length(model.encoder) if length is None else length
    if length is not None:
        raise UserError(f"a source length of {length} is given, but the model has no encoder; omit it")
    return 0


def _table(stack: Stack, width: int, vocab_size: int | None) -> int:
    """Return the number of parameters of the token embedding table."""
    return (vocab_size or 0) * (stack.frontend.table_width(width) or 0)


def table_title(name: str, counted: Cost) -> str:
    """Build the title of the tables: name and size of the model, and the numbers of rows and positions."""
    layers, rows = _many(len(counted.model.layers), "layer"), _many(counted.batch_size, "row")
    if encoder := counted.model.encoder:
        layers, rows = (
            f"{_many(len(encoder.layers), 'encoder layer')} and {layers}",
            f"{rows} of {counted.source_length:,} and",
        )
    else:
        rows += " of"
    return (
        f"{name}: {layers} of width {counted.model.width:,}; {rows} {counted.length:,} positions, {counted.precision}"
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def part_rows(counted: Cost) -> list[list[object]]:
    """Return the rows of the table of a model's parts, the last with their total."""
    named = [*counted.parts.items(), ("total", counted.total)]
    return [[name.replace("_", " "), part.parameters, short(part.flops), size(part.saved)] for name, part in named]


def quantity_rows(counted: Cost, machine: Machine | None) -> list[tuple[str, str]]:
    """Return the rows (name, value) of the table of FLOPs, memory and estimated speed on ``machine``, as text."""
    memory, training = counted.memory, counted.training
    scores = max(
        (
            branch.scores
            for block in (*counted.encoder, *counted.latents, *counted.inner, *counted.blocks)
            for branch in block
        ),
        default=0,
    )
    rows = [
        ("FLOPs, forward", short(counted.forward_flops)),
        ("… without masked attention scores", short(counted.needed_flops)),
        ("FLOPs, training step", short(counted.train_flops)),
        *([("active parameters per position", f"{counted.active_parameters:,}")] if counted.total.idle else []),
        *([("trainable parameters", f"{counted.trained_parameters:,}")] if counted.learned else []),
        ("memory, training step", size(memory.peak)),
        ("… weights", size(memory.weights)),
        ("… gradients", size(memory.gradients)),
        (f"… {training.optimizer.kind}", size(memory.optimizer)),
        (f"… activations{', recomputed per block' if training.recompute else ''}", size(memory.activations)),
    ]
    if scores:
        rows.append(("attention matrices of one branch, if stored", size(scores)))
    if counted.writes:
        rows.append(("decoding state", size(counted.state_bytes())))
        rows.append(("memory read per decoding step", size(counted.step_bytes())))
    return rows + _rates(counted, machine)


def _rates(counted: Cost, machine: Machine | None) -> list[tuple[str, str]]:
    here, needed = usable_memory(), counted.memory.peak
    if here is not None and needed > here:
        return [("tokens/s", f"not estimated: this machine has {size(here)} of memory")]
    if machine is None:
        return [("tokens/s", "not estimated: this machine has not been measured; use --probe")]
    speed = counted.speed(machine)
    rates = [("training", speed.train), ("prefill", speed.prefill), ("decoding", speed.decode)]
    return [
        (f"{name}, estimated tokens/s", short(rate)) for name, rate in rates if name == "training" or counted.writes
    ]
