"""Cost estimates from a spec, before anything is built: parameters, FLOPs, memory, state and time. Imports no torch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from qkv.inspection import cost_attention, cost_formulas, cost_heads, cost_lsh, cost_memory, cost_relative, cost_sparse
from qkv.inspection.cost_checks import PRECISIONS, check
from qkv.inspection.cost_sums import Blocks, added, by_name, sums, walked
from qkv.inspection.machine import Machine
from qkv.inspection.shares import FLOAT, Setting, Share, share
from qkv.inspection.training_memory import Memory, Stage, partly, training_memory
from qkv.spec.adapt import Whole
from qkv.spec.branches import Branch
from qkv.spec.errors import UserError
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Encoder, Latents, Layered, Model, Stack
from qkv.spec.parts import Add, Learned, NoResidual
from qkv.spec.training import Training

if TYPE_CHECKING:
    from qkv.inspection.learned import Trained

__all__ = ["BUILT_IN", "PRECISIONS", "Cost", "Memory", "Speed", "cost"]

BUILT_IN = (cost_attention, cost_formulas, cost_heads, cost_lsh, cost_memory, cost_relative, cost_sparse)
ENCODER, LATENTS = "encoder ", "latents' "
"""Name prefixes of the parts of encoders and of latents."""
_COUNTERS = 24
"""Bytes per row of a state's counters: position, limit and prefix."""


@dataclass(frozen=True)
class Speed:
    """Estimated tokens per second, over all rows of the batch."""

    train: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Cost:
    """Cost of ``batch_size`` rows of ``length`` positions, with sources of ``source_length`` positions in encoder–decoders.

    parts: by name, in order of execution: embedding, each kind of branch, norm, residual, final norm, head; those of an
    encoder first, prefixed ``encoder``.
    blocks: branches of each block, including their norms and residuals.   encoder, latents: the same for their blocks.
    learned: numbers of trainable parameters; None: all.
    """

    model: Model
    batch_size: int
    length: int
    precision: str
    training: Training
    attention: str
    parts: dict[str, Share]
    blocks: Blocks
    encoder: Blocks = ()
    source_length: int = 0
    irregular: str = "sdpa"
    learned: Trained | None = None
    latents: Blocks = ()

    @property
    def total(self) -> Share:
        """Sum of all parts."""
        return added(*self.parts.values())

    @property
    def tokens(self) -> int:
        """Positions in the batch, without sources."""
        return self.batch_size * self.length

    @property
    def writes(self) -> bool:
        """True if the model generates tokens."""
        return self.model.decodes and isinstance(self.model.head, LanguageModelHead)

    @property
    def parameters(self) -> int:
        """Number of parameters, without adapters; a table shared by embedding and head counts once."""
        return self.total.parameters

    @property
    def trained_parameters(self) -> int:
        """Number of trainable parameters, adapters included."""
        return self.learned.parameters if self.learned else self.parameters

    @property
    def forward_flops(self) -> int:
        """FLOPs of a forward pass with full score matrices, as torch's counter counts the reference implementation."""
        return self.total.flops

    @property
    def needed_flops(self) -> int:
        """FLOPs of a forward pass without masked scores."""
        return self.total.flops - self.total.masked

    @property
    def train_flops(self) -> int:
        """FLOPs of an update: forward, backward (twice the forward), and recomputation (checkpointing or reversible blocks)."""
        repeated = (*self.encoder, *self.latents, *self.blocks) if self.training.recompute else self.blocks if self.model.reversible else ()
        again = sum(branch.flops - branch.ending for block in repeated for branch in block)
        return self.training.accumulate * (3 * self.total.flops + again)

    @property
    def memory(self) -> Memory:
        """Memory of a training step. With frozen parameters, activations are an upper bound, as if all were trained."""
        ending = Stage((added(self.parts["final norm"], self.parts["head"]),), 0)
        whole = training_memory(
            [*self._reading(), *self._writing()],
            ending,
            FLOAT * _table(self.model, self.model.frontend_width(self.model.width), self.model.vocab_size),
            self.total,
            self.training,
        )
        return partly(whole, self.learned, self.training) if self.learned else whole

    def _reading(self) -> list[Stage]:
        """Stages of the encoder."""
        if not self.encoder:
            return []
        stream = FLOAT * self.batch_size * self.source_length * self.model.width
        first, norm = self.parts["encoder embedding"], self.parts["encoder final norm"]
        return [Stage((first,), 0, stream), *(Stage(block, stream) for block in self.encoder), Stage((norm,), stream)]

    def _writing(self) -> list[Stage]:
        """Stages of the model's own stack; their backward passes also hold the gradient of the memory."""
        stream = FLOAT * self.batch_size * (self.model.answers or self.length) * self.model.width
        read = self.model.latents.count * self.model.latent_width if self.model.latents else self.source_length * self.model.width
        beside = FLOAT * self.batch_size * read
        stages = [Stage((self.parts["embedding"],), 0, stream + beside), *self._through_latents()]
        if not self.model.reversible:
            return [*stages, *(Stage(block, stream, beside) for block in self.blocks)]
        # Both streams and their gradients, and one branch at a time.
        return [*stages, *(Stage((branch,), 4 * stream, beside, reversible=True) for block in self.blocks for branch in block)]

    def _through_latents(self) -> list[Stage]:
        """Stages of the latents; their backward passes also hold the gradient of the front end's vectors."""
        if not self.model.latents:
            return []
        stream = FLOAT * self.batch_size * self.model.latents.count * self.model.latent_width
        beside = FLOAT * self.tokens * self.model.frontend_width(self.model.width)
        norm = self.parts[f"{LATENTS}final norm"]
        return [*(Stage(block, stream, beside) for block in self.latents), Stage((norm,), stream, beside)]

    def state_bytes(self, length: int | None = None) -> int:
        """Bytes of the batch's decoding state with a capacity of ``length`` positions."""
        return self.at(length).total.state + _COUNTERS * self.batch_size

    def step_flops(self, length: int | None = None) -> int:
        """FLOPs to decode one token per row after ``length`` positions, without the encoder and its projections."""
        return self.at(length).total.step

    def step_bytes(self, length: int | None = None) -> int:
        """Bytes read to decode one token per row: weights (without encoder and lookup-only tables) and state."""
        unread = self.parts["embedding"].parameters - (
            _table(self.model, self.model.width, self.model.vocab_size) if self.model.tied else 0
        )
        unread += sum(part.parameters for name, part in self.parts.items() if name.startswith(ENCODER))
        return PRECISIONS[self.precision] * (self.parameters - unread) + self.state_bytes(length)

    def at(self, length: int | None = None, attention: str | None = None, irregular: str | None = None) -> Cost:
        """The cost at another length, or with other attention implementations."""
        length, paths = self.length if length is None else length, (attention or self.attention, irregular or self.irregular)
        if (length, *paths) == (self.length, self.attention, self.irregular):
            return self
        source = self.source_length or None
        return cost(self.model, self.batch_size, length, self.precision, self.training, paths[0], source, paths[1])

    def speed(self, machine: Machine) -> Speed:
        """Estimate speed as the sum of linear maps, attention and element-wise work at the machine's rates, and call overhead.

        Ignores other load on the machine, and products too small to reach its rates.
        """
        total, passes = self.total, self.training.accumulate
        again = self.train_flops / (3 * passes * total.flops)
        forward = self._products(machine) + (total.saved / (machine.elements or machine.bandwidth)) / 3 + total.calls * machine.call
        # An optimiser step reads weights, gradients and two moments, and writes all but the gradients.
        update = 7 * FLOAT * self.trained_parameters / machine.bandwidth
        step = max(self.step_bytes() / machine.bandwidth, total.step / machine.flops_at(self.precision)) + total.step_calls * machine.call
        return Speed(
            train=passes * self.tokens / (3 * passes * again * forward + update),
            prefill=self.tokens / forward,
            decode=self.batch_size / step,
        )

    def _products(self, machine: Machine) -> float:
        """Seconds of matrix products in a forward pass."""
        total, rate = self.total, machine.flops_at(self.precision)
        return (total.flops - total.attended) / rate + (total.attended - total.skipped) / (machine.attention or rate)

    def to_dict(self) -> dict[str, Any]:
        """Parameters, FLOPs and bytes as plain data."""
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

    source_length: positions per source (default: the encoder's context length).
    training: optimiser, accumulation and recomputation; its batch size and precision are ignored.
    attention: implementation of causal and full attention in training (see ``qkv why``), which affects memory: "sdpa",
        "sdpa, oneDNN" or "tiled".   irregular: the same for other masks: "sdpa" or "products".

    Raises ``UserError`` if the vocabulary size is unknown, a size is not positive, ``length`` exceeds a learned position
    table, or a part has no registered formula.
    """
    length = model.context_length if length is None else length
    source = _source_length(model, source_length)
    check(model, batch_size, {"length": length, **({"source length": source} if model.encoder else {})}, precision)
    at = Setting(
        model.width,
        batch_size,
        length,
        model.context_length,
        model.vocab_size or 0,
        PRECISIONS[precision],
        attention=attention,
        irregular=irregular,
    )
    read, reading = _encoder(model.encoder, at, source) if model.encoder else ({}, ())
    parts = {**read, "embedding": share(model.frontend, replace(at, width=model.frontend_width(model.width)))}
    at, (through, latents) = replace(at, memory=source), ({}, ())
    if model.latents:
        through, latents = _latents(model.latents, _inside(model, at))
        at = replace(at, length=model.answers or length, memory=model.latents.count, memory_width=model.latent_width)
    blocks = _blocks(model, at)
    parts |= {**through, **_queries(model, at), **by_name(blocks)}
    leaving = replace(at, width=model.leaving(model.width))
    parts |= {"final norm": share(model.norm, leaving), "head": share(model.head, leaving)}
    training = training or Training()
    learned = _learned(model, training)
    return Cost(
        model, batch_size, length, precision, training, attention, parts, sums(blocks), reading, source, irregular, learned, latents
    )


def _learned(model: Model, training: Training) -> Trained | None:
    """Count trainable parameters on the model itself, which imports torch; None, without torch, if all are trained."""
    if training.adapt == Whole() and not training.frozen:
        return None
    from qkv.inspection.learned import learned

    return learned(model, training)


def _source_length(model: Model, given: int | None) -> int:
    """Positions of a source; 0 without an encoder."""
    if model.encoder:
        return model.encoder.context_length if given is None else given
    if given is not None:
        raise UserError(f"a source length of {given} is given, but the model has no encoder; leave it out")
    return 0


def _encoder(encoder: Encoder, at: Setting, length: int) -> tuple[dict[str, Share], Blocks]:
    """Parts and blocks of an encoder, without state and decoding steps."""
    ids = at.vocab_size if encoder.share_embedding else encoder.vocab_size or 0
    at = replace(at, length=length, context_length=encoder.context_length, vocab_size=ids)
    embedding, blocks = share(encoder.frontend, at), _blocks(encoder, at)
    if encoder.share_embedding:
        embedding = replace(embedding, parameters=embedding.parameters - _table(encoder, at.width, ids))
    norms = added(*[share(encoder.norm, at)] * (len(encoder.layers) if encoder.memory == "layers" else 1))
    if encoder.memory == "layers":
        norms = replace(norms, parameters=share(encoder.norm, at).parameters)
    parts = {"embedding": embedding, **by_name(blocks), "final norm": norms}
    once = {f"{ENCODER}{name}": replace(part, state=0, step=0, step_calls=0) for name, part in parts.items()}
    return once, sums(blocks)


def _inside(model: Model, at: Setting) -> Setting:
    """``Setting`` of the latents, whose memory is the front end's output."""
    assert model.latents is not None
    sizes = {"width": model.latent_width, "length": model.latents.count, "context_length": model.latents.count}
    return replace(at, **sizes, memory=at.length, memory_width=model.frontend_width(model.width))


def _latents(latents: Latents, at: Setting) -> tuple[dict[str, Share], Blocks]:
    """Parts and blocks of latents: table and branches; only those that read the input depend on its length, in O(N M)."""
    blocks = walked(_blocks(latents, at), latents.walk)
    parts = {"embedding": share(Learned(), at), **by_name(blocks), "final norm": share(latents.norm, at)}
    return {f"{LATENTS}{name}": part for name, part in parts.items()}, sums(blocks)


def _queries(model: Model, at: Setting) -> dict[str, Share]:
    """Output queries, the blocks' input instead of the front end's vectors."""
    if model.queries is None:
        return {}
    return {"queries": share(model.queries.positions, replace(at, context_length=model.queries.count or model.context_length))}


def _blocks(stack: Layered, at: Setting) -> list[list[dict[str, Share]]]:
    """All blocks of a stack. The first branch that reads the memory saves it for the others."""
    found, shared, tables = [], False, at.shared_tables
    known: dict[tuple[int, bool, frozenset[Hashable]], list[dict[str, Share]]] = {}
    for i, block in enumerate(stack.layers):
        key = i % len(stack.blocks), shared, tables
        if key not in known:
            known[key] = _block(block, replace(at, shared_memory=shared, shared_tables=tables))
        found.append(known[key])
        tables |= _tables(block.branches)
        shared = not _layered(stack) and (shared or any(branch.reads_memory for branch in block.branches))
    return found


def _tables(branches: Sequence[Branch]) -> frozenset[Hashable]:
    """Tables that these branches share with later ones."""
    return frozenset(cost_attention.shared_table(branch) for branch in branches) - {None}


def _layered(stack: Layered) -> bool:
    """True if each layer reads a different memory."""
    return isinstance(stack, Model) and stack.encoder is not None and stack.encoder.memory == "layers"


def _block(block: Block, at: Setting) -> list[dict[str, Share]]:
    """Shares of each branch of a block, of its norms and of its residual, by name."""
    found: list[dict[str, Share]] = []
    for i, branch in enumerate(block.branches):
        parallel, last = block.order == "parallel", i == len(block.branches) - 1
        # In bf16 each branch has its own rounded copy of the shared input.
        shared = parallel and i > 0 and not block.norms
        tables = at.shared_tables | _tables(block.branches[:i])
        part = share(branch, replace(at, shared_input=shared and at.item == FLOAT, shared_tables=tables))
        if not last or _keeps_result(block):
            part = replace(part, ending=0)
        norms = 0 if shared else 2 if block.order == "sandwich" else 1
        drawn = Share(saved=at.tokens * at.width * at.item if block.dropout else 0)
        found.append(
            {branch.kind: part, "norm": added(*[share(block.norm_of(i), at)] * norms), "residual": share(block.residual, at) + drawn}
        )
    return found


def _keeps_result(block: Block) -> bool:
    """True if the backward pass needs the output of the block's last branch."""
    return (
        block.order in ("post", "sandwich") or not isinstance(block.residual, (Add, NoResidual)) or bool(block.dropout or block.drop_path)
    )


def _table(stack: Stack, width: int, vocab_size: int | None) -> int:
    """Number of parameters of the token embedding table."""
    return (vocab_size or 0) * (stack.frontend.table_width(width) or 0)
