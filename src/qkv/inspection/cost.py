"""What a model costs, before it exists: parameters, FLOPs, memory, state and time. Imports no torch."""

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
from qkv.spec.model import Block, Encoder, Latents, Layered, Model, Stack, Text
from qkv.spec.parts import Add, Learned, NoResidual
from qkv.spec.training import Training

if TYPE_CHECKING:
    from qkv.inspection.learned import Trained

__all__ = ["BUILT_IN", "PRECISIONS", "Cost", "Memory", "Speed", "cost"]

BUILT_IN = (cost_attention, cost_formulas, cost_heads, cost_lsh, cost_memory, cost_relative, cost_sparse)
ENCODER, LATENTS = "encoder ", "latents' "
"""What stands before the names of an encoder's parts, and of those of latents."""
_COUNTERS = 24
"""Bytes a row of a state's own numbers: positions, limit and prefix."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second, estimated; ``decode`` is the sum over the rows of the batch."""

    train: float
    prefill: float
    decode: float


@dataclass(frozen=True)
class Cost:
    """The cost of ``batch_size`` rows of ``length`` positions, and in an encoder–decoder of sources of ``source_length``.

    parts: by name, in the order of the data's way: embedding, each kind of branch, norm, residual, final norm, head; those of an encoder
    come first, ``encoder`` before their names.
    blocks: of each block its branches, each with the norms and the residual around it.   encoder: the same of the encoder's blocks.
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
    """None where all parameters learn."""
    latents: Blocks = ()
    """Of each of their blocks its branches."""

    @property
    def total(self) -> Share:
        """The sum of all parts."""
        return added(*self.parts.values())

    @property
    def tokens(self) -> int:
        """Positions of the batch, without those of the sources."""
        return self.batch_size * self.length

    @property
    def writes(self) -> bool:
        """True if the model gives one token after the other."""
        return self.model.decodes and isinstance(self.model.head, LanguageModelHead)

    @property
    def parameters(self) -> int:
        """Numbers of the model, without those of adapters; a table that is both embedding and head counts once."""
        return self.total.parameters

    @property
    def trained_parameters(self) -> int:
        """Those that ``training.adapt`` and ``training.frozen`` let learn, adapters included."""
        return self.learned.parameters if self.learned else self.parameters

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
        """Of an update: forward, twice that backward, and what is computed again: with recomputation what each block keeps, or reversible blocks."""
        repeated = (*self.encoder, *self.latents, *self.blocks) if self.training.recompute else self.blocks if self.model.reversible else ()
        again = sum(branch.flops - branch.ending for block in repeated for branch in block)
        return self.training.accumulate * (3 * self.total.flops + again)

    @property
    def memory(self) -> Memory:
        """Of a training step. Where not all learns, what is kept for the backward pass is an upper bound, as if all did."""
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
        """The stages of the encoder."""
        if not self.encoder:
            return []
        stream = FLOAT * self.batch_size * self.source_length * self.model.width
        first, norm = self.parts["encoder embedding"], self.parts["encoder final norm"]
        return [Stage((first,), 0, stream), *(Stage(block, stream) for block in self.encoder), Stage((norm,), stream)]

    def _writing(self) -> list[Stage]:
        """The stages of the model's own stack; while one goes backward, the gradient of the memory is there too."""
        stream = FLOAT * self.batch_size * (self.model.answers or self.length) * self.model.width
        read = self.model.latents.count * self.model.latent_width if self.model.latents else self.source_length * self.model.width
        beside = FLOAT * self.batch_size * read
        stages = [Stage((self.parts["embedding"],), 0, stream + beside), *self._through_latents()]
        if not self.model.reversible:
            return [*stages, *(Stage(block, stream, beside) for block in self.blocks)]
        # Both streams and their gradients, and of all branches one at a time.
        return [*stages, *(Stage((branch,), 4 * stream, beside, reversible=True) for block in self.blocks for branch in block)]

    def _through_latents(self) -> list[Stage]:
        """The stages of latents; while one goes backward, the gradient of the front end's vectors is there too."""
        if not self.model.latents:
            return []
        stream = FLOAT * self.batch_size * self.model.latents.count * self.model.latent_width
        beside = FLOAT * self.tokens * self.model.frontend_width(self.model.width)
        norm = self.parts[f"{LATENTS}final norm"]
        return [*(Stage(block, stream, beside) for block in self.latents), Stage((norm,), stream, beside)]

    def state_bytes(self, length: int | None = None) -> int:
        """Bytes that the batch's decoding state takes after ``length`` positions, with room for as many."""
        return self.at(length).total.state + _COUNTERS * self.batch_size

    def step_flops(self, length: int | None = None) -> int:
        """FLOPs of one more token in each row, after ``length`` positions; the encoder has been run, and what branches need of it is known."""
        return self.at(length).total.step

    def step_bytes(self, length: int | None = None) -> int:
        """Bytes read for one more token in each row: the weights once, but of an encoder and of a table that is only looked up; the state."""
        unread = self.parts["embedding"].parameters - (
            _table(self.model, self.model.width, self.model.vocab_size) if self.model.tied else 0
        )
        unread += sum(part.parameters for name, part in self.parts.items() if name.startswith(ENCODER))
        return PRECISIONS[self.precision] * (self.parameters - unread) + self.state_bytes(length)

    def at(self, length: int | None = None, attention: str | None = None, irregular: str | None = None) -> Cost:
        """The same for rows of another length, or with attention on other paths."""
        length, paths = self.length if length is None else length, (attention or self.attention, irregular or self.irregular)
        if (length, *paths) == (self.length, self.attention, self.irregular):
            return self
        source = self.source_length or None
        return cost(self.model, self.batch_size, length, self.precision, self.training, paths[0], source, paths[1])

    def speed(self, machine: Machine) -> Speed:
        """Linear maps, attention and the rest at the machine's rates, one after the other, and every operator's own time.

        An estimate: it knows nothing of what runs beside, nor of products too small to reach the machine's rate.
        """
        total, passes = self.total, self.training.accumulate
        again = self.train_flops / (3 * passes * total.flops)
        forward = self._products(machine) + (total.saved / (machine.elements or machine.bandwidth)) / 3 + total.calls * machine.call
        # Reads weights, gradients and two moments, and writes all but the gradients.
        update = 7 * FLOAT * self.trained_parameters / machine.bandwidth
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
    """The cost of ``model`` on ``batch_size`` rows of ``length`` positions (default: its context length).

    ``source_length``: positions of each source that an encoder reads (default: the encoder's context length).
    ``training`` gives optimiser, accumulation and recomputation; its own batch size and precision are not read. ``attention`` is
    the path that plain attention takes in training where the machine chooses one (``qkv why``): "sdpa", "sdpa, oneDNN" or "tiled";
    memory depends on it. So it does on ``irregular``, the path under any other mask: "sdpa" or "products". Raises ``UserError`` where the vocabulary is not known, a size is not positive, ``length`` does not fit a
    learned position table, or no formula is registered for a part.
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
    """Counted by path, which needs the model itself and so torch; None, without torch, where all learns."""
    if training.adapt == Whole() and not training.frozen:
        return None
    from qkv.inspection.learned import learned

    return learned(model, training)


def _source_length(model: Model, given: int | None) -> int:
    """Positions of a source; 0 where there is none."""
    if model.encoder:
        return model.encoder.context_length if given is None else given
    if given is not None:
        raise UserError(f"a source of {given} positions is given, and the model has no encoder to read it; leave the source length out")
    return 0


def _encoder(encoder: Encoder, at: Setting, length: int) -> tuple[dict[str, Share], Blocks]:
    """The parts and blocks of an encoder. It decodes nothing, so it has no state and no steps."""
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
    """That of the latents, which read what the front end gives."""
    assert model.latents is not None
    sizes = {"width": model.latent_width, "length": model.latents.count, "context_length": model.latents.count}
    return replace(at, **sizes, memory=at.length, memory_width=model.frontend_width(model.width))


def _latents(latents: Latents, at: Setting) -> tuple[dict[str, Share], Blocks]:
    """The parts and blocks of latents: their table, and branches of which only those that read the input grow with it, in O(N M)."""
    blocks = walked(_blocks(latents, at), latents.walk)
    parts = {"embedding": share(Learned(), at), **by_name(blocks), "final norm": share(latents.norm, at)}
    return {f"{LATENTS}{name}": part for name, part in parts.items()}, sums(blocks)


def _queries(model: Model, at: Setting) -> dict[str, Share]:
    """The vectors that the blocks begin with in place of the front end's."""
    if model.queries is None:
        return {}
    return {"queries": share(model.queries.positions, replace(at, context_length=model.queries.count or model.context_length))}


def _blocks(stack: Layered, at: Setting) -> list[list[dict[str, Share]]]:
    """Every block of a stack; the first branch that reads the memory keeps it for the others."""
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
    """The tables that these branches share with those behind them."""
    return frozenset(cost_attention.shared_table(branch) for branch in branches) - {None}


def _layered(stack: Layered) -> bool:
    """True if every layer reads a memory of its own."""
    return isinstance(stack, Model) and stack.encoder is not None and stack.encoder.memory == "layers"


def _block(block: Block, at: Setting) -> list[dict[str, Share]]:
    """Each branch of a block with the norms and the residual that the block's order puts around it, by name."""
    found: list[dict[str, Share]] = []
    for i, branch in enumerate(block.branches):
        parallel, last = block.order == "parallel", i == len(block.branches) - 1
        # In bf16 each branch rounds the shared input for itself.
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
    """True if something behind the last branch of ``block`` needs its output in the backward pass."""
    return (
        block.order in ("post", "sandwich") or not isinstance(block.residual, (Add, NoResidual)) or bool(block.dropout or block.drop_path)
    )


def _table(stack: Stack, width: int, vocab_size: int | None) -> int:
    """Parameters of the token table."""
    if not isinstance(stack.frontend, Text) or vocab_size is None:
        return 0
    return vocab_size * (width if stack.frontend.join == "add" else width // 2)
