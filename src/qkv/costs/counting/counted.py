"""Count the cost of a model while the model itself runs forward and backward on tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_iter

from qkv.costs.checks import PRECISIONS
from qkv.costs.counting.counter import BackwardHook, Counter, Segment, Tally
from qkv.costs.counting.losses import memory_of, random_batch, summed_loss
from qkv.costs.counting.sizes import Reduced, reduced
from qkv.costs.shares import FLOAT, Blocks, Share, added
from qkv.layers.branch import Branch, MemoryBranch, matrices
from qkv.layers.tap import Tap
from qkv.models.edit.adapt import adapt
from qkv.models.stack.layered import Layered
from qkv.models.transformer import Stack, Transformer
from qkv.ops.selection.choices import assuming, twin_of
from qkv.spec.model import Model
from qkv.spec.models.adapt import Whole
from qkv.spec.training import Training
from qkv.state.tree import nbytes

ENCODER, LATENTS, INNER, OWN = "encoder ", "latents' ", "segmentation's ", ""
"""Prefixes of the names of parts: of encoders, latents, segmentations, and of the model's own stack."""


_AROUND = 1.5
"""Ratio of the time of a decoding step, including Python code, to the time of its operators; measured on five
models.
"""
HERE = "here"
"""Value of ``attention`` and ``irregular`` that means the implementations chosen in this process."""


@dataclass(frozen=True)
class Asked:
    """Arguments of ``cost`` with all defaults filled in."""

    model: Model
    batch_size: int
    length: int
    source_length: int
    precision: str
    attention: str
    irregular: str
    training: Training = field(hash=False)

    @property
    def decodes(self) -> bool:
        """True if the model can decode."""
        return self.model.decodes

    @property
    def partly(self) -> bool:
        """True if only some parameters are trained."""
        return self.training.adapt != Whole() or bool(self.training.frozen)


@dataclass(frozen=True)
class Trained:
    """Numbers of parameters. parameters: trainable; matrices: trainable and in matrices of blocks; added: in
    adapters.
    """

    parameters: int
    matrices: int
    added: int


@dataclass(frozen=True)
class Counted:
    """Result of counting. parts, blocks, encoder, latents, inner: see ``Cost``.

    kept: bytes saved at the end of the forward pass.   peak: maximum bytes beyond weights and optimiser state, without
    the gradients that earlier passes of the update have accumulated.
    """

    parts: dict[str, Share]
    blocks: Blocks
    encoder: Blocks
    latents: Blocks
    inner: Blocks
    trained: Trained
    kept: int
    peak: int


@dataclass(frozen=True)
class Key:
    """Key of a part: prefix of its stack, name, index of its layer in order of execution (None outside layers), index
    of its branch.
    """

    stack: str
    name: str
    layer: int | None = None
    branch: int = 0


_SEGMENTATION = Key(OWN, "segmentation")
Stage = tuple[str, int | str]
"""Label of a segment of the run: (prefix of the stack, index of the layer in order of execution, or "embedding" or
"end").
"""


class _Run:
    """Model without values that is run under a ``Counter``."""

    def __init__(self, request: Asked, small: Reduced):
        self.asked, self.small, self.counter = request, small, Counter()
        with self._counting():
            self.model = Transformer(small.model)
            self.before = {id(p) for p in self.model.parameters()}
            if request.partly:
                adapt(self.model, request.training)
            self.batch = random_batch(self.model, request)
        self.step: dict[str, int] = {}
        self.stage: Stage = (OWN, "end")
        for key, module in self.modules():
            self.counter.watch(module, lambda key=key: key)
        for prefix, layered in self.stacks():
            for i, block in enumerate(layered.blocks):
                self._watch_block(prefix, i, block, len(layered.walked))
            if isinstance(layered, Stack):
                layered.frontend.register_forward_hook(self._staged((prefix, "embedding")))

    @contextmanager
    def _counting(self) -> Iterator[None]:
        with self.counter, assuming(self._assumed):
            yield

    def _assumed(self, op: str, case: str, among: Collection[str]) -> str | None:
        """Choose an implementation without timing: for attention the requested one, for other ops the first candidate,
        torch's own.
        """
        if not among:
            return None
        if op != "attention":
            return next(iter(among))
        choice = self.asked.irregular if case.startswith("any mask") else self.asked.attention
        return choice if choice != HERE else twin_of(op, case) or "sdpa"

    def stacks(self) -> Iterator[tuple[str, Layered]]:
        """Yield (prefix of its parts, stack) of each stack, in order of execution."""
        model = self.model
        inner = model.segmentation and model.segmentation.inner
        stacks = ((ENCODER, model.encoder), (LATENTS, model.all_latents), (INNER, inner), (OWN, model))
        return ((prefix, layered) for prefix, layered in stacks if layered is not None)

    def modules(self) -> Iterator[tuple[Key, nn.Module]]:
        """Yield (key, module) of the parts outside layers; of modules that share weights, the owner comes first."""
        model = self.model
        yield Key(OWN, "embedding"), model.frontend
        if model.encoder is not None:
            yield Key(ENCODER, "embedding"), model.encoder.frontend
            yield Key(ENCODER, "final norm"), model.encoder.norm
        if model.all_latents is not None:
            yield Key(LATENTS, "embedding"), model.all_latents.vectors
            yield Key(LATENTS, "final norm"), model.all_latents.norm
        for prefix, layered in self.stacks():
            if layered.depth_average is not None:
                yield Key(prefix, "depth average"), layered.depth_average
        if model.queries is not None:
            yield Key(OWN, "queries"), model.queries
        yield Key(OWN, "final norm"), model.norm
        yield Key(OWN, "head"), model.head
        if model.segmentation is not None:
            yield _SEGMENTATION, model.segmentation
            if model.segmentation.inner is not None:
                yield Key(INNER, "final norm"), model.segmentation.inner.norm

    def _watch_block(self, prefix: str, i: int, block: nn.Module, blocks: int) -> None:
        def entered(*_: Any) -> None:
            self.step[prefix] = (self.step.get(prefix, -1) + 1) % blocks  # each segment passes through all blocks

        block.register_forward_pre_hook(entered)
        for name, j, module in parts_of(block):
            self.counter.watch(module, lambda name=name, j=j: Key(prefix, name, self.step.get(prefix, i), j))
        block.register_forward_hook(lambda *hooked: self._staged((prefix, self.step[prefix]))(*hooked))

    def _staged(self, stage: Stage) -> Callable[..., Any]:
        """Return a forward hook that ends a stage, and starts its backward stage when the backward pass arrives
        there.
        """

        def hook(module: nn.Module, inputs: Any, out: Any) -> Any:
            if self.counter.backward or not torch.is_grad_enabled():
                return None
            self.counter.end_block()
            self.counter.mark(stage)
            x, *rest = out if isinstance(out, tuple) else (out,)
            if not x.requires_grad:
                return None
            x = BackwardHook.apply(x, lambda: self._reached(stage))
            return (x, *rest) if rest else x

        return hook

    def _reached(self, stage: Stage) -> None:
        self.counter.mark(self.stage)
        self.stage = stage

    def state_bytes(self, branch: Branch, layer: int) -> int:
        """Return the bytes of a branch's decoding state after all positions, in the precision of the weights.

        They include the state that a branch computes from a memory, such as an encoder's output.
        """
        request, item = self.asked, PRECISIONS[self.asked.precision]
        segmentation = request.model.segmentation
        length = segmentation.positions_held(request.length) if segmentation else request.length
        size = branch.state_bytes(length, request.batch_size) * item // FLOAT
        if not isinstance(branch, MemoryBranch):
            return size
        with self._counting(), torch.no_grad():
            memory = memory_of(self.model, self.batch)
            assert memory is not None
            state = branch.init_state(request.batch_size, memory=memory.of_layer(layer))
        floats = (t.numel() for t in tree_iter(state) if isinstance(t, Tensor) and t.is_floating_point())
        return size + nbytes(state) - (FLOAT - item) * sum(floats)

    def train(self, plain: bool = False) -> tuple[list[Segment], int]:
        """Run the forward and backward passes of one update; return (segments, number of forward segments).

        plain: let reversible blocks save activations too, as they do with a tap.
        """
        self.model.zero_grad()
        passes = 2 if self.asked.training.accumulate > 1 else 1  # from the second pass on, gradients exist
        for _ in range(passes):
            with self._counting():
                result = self._pass(Tap() if plain and self.asked.model.reversible else None)
        return result

    def _pass(self, tap: Tap | None) -> tuple[list[Segment], int]:
        counter, bf16 = self.counter, self.asked.precision == "bf16"
        counter.start(self.model.parameters())
        self.step, self.stage = {}, (OWN, "end")
        with counter.saving(Key(OWN, "head")):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = summed_loss(self.model, self.batch, tap)
            counter.mark((OWN, "end"))
            forward, counter.backward = len(counter.segments), True
            (loss / self.batch.num_targets).backward()
        counter.mark(self.stage)
        return list(counter.segments), forward

    def decode(self) -> dict[Key, Tally]:
        """Run one decoding step after ``length`` - 1 positions; return part -> tally."""
        request, model = self.asked, self.model.eval()
        with self._counting(), torch.no_grad():
            generator = torch.Generator()
            state = model.init_state(request.batch_size, request.length, memory_of(model, self.batch))
            if request.length > 1:
                _, state = model(model.frontend.random(request.batch_size, request.length - 1, generator), state)
            self.counter.start(model.parameters())
            self.step = {}
            model(model.frontend.random(request.batch_size, 1, generator), state)
        return dict(self.counter.tallies)  # type: ignore[arg-type]


def parts_of(block: nn.Module) -> Iterator[tuple[str, int, nn.Module]]:
    """Yield (name, branch, module) of the branches, norms, residuals and the merge of a block."""
    if block.merge is not None:
        yield "merge", 0, block.merge  # type: ignore[misc]
    if block.norm is not None:
        yield "norm", 0, block.norm  # type: ignore[misc]
    for j, slot in enumerate(block.branches):  # type: ignore[arg-type]
        yield slot.body.spec.kind, j, slot.body
        for name, module in slot.named_children():
            if name != "body":
                yield name.removesuffix("_after"), j, module


def counted(request: Asked) -> Counted:
    """Count the cost of a model. Results are cached, except for implementations chosen in this process (``HERE``)."""
    return _counted(request) if HERE in (request.attention, request.irregular) else _remembered(request)


@lru_cache(maxsize=128)
def _remembered(request: Asked) -> Counted:
    return _counted(request)


@torch.random.fork_rng(devices=[])  # counting during a training run must not change its random numbers
def _counted(request: Asked) -> Counted:
    """Build the model without memory; run a training step, and a decoding step if the model decodes."""
    small = reduced(request.model, whole=request.partly)
    run = _Run(request, small)
    segments, forward = run.train(plain=True)
    shares = {key: _share(tally) for key, tally in run.counter.tallies.items()}
    if request.model.reversible:  # a branch is recomputed completely
        shares = {key: replace(share, ending=0) if key.stack == OWN else share for key, share in shares.items()}
    if request.training.recompute or request.model.reversible:
        run.model.recompute_blocks(request.training.recompute)
        segments, forward = run.train()
    learns = [p for p in run.model.parameters() if p.requires_grad]
    maps = sum(p.numel() for p in matrices(run.model) if p.requires_grad)
    extra = sum(p.numel() for p in run.model.parameters() if id(p) not in run.before)
    for key, cost in _sizes(run).items():
        shares[key] = shares.get(key, Share()) + cost
    for key, tally in (run.decode() if request.model.decodes else {}).items():
        if key.stack in (OWN, INNER):
            shares[key] = replace(shares.get(key, Share()), step=tally.flops, step_calls=round(_AROUND * tally.calls))
    parts, layers = _laid_out(run, shares)
    total = added(*parts.values())
    trained = (
        Trained(sum(p.numel() for p in learns), maps, extra)
        if request.partly
        else Trained(total.parameters, total.matrices, 0)
    )
    missing = (
        FLOAT * (total.parameters - sum(p.numel() for p in run.model.parameters())) if request.model.reversible else 0
    )
    if request.partly or request.training.accumulate > 1:
        missing = 0
    last, peak = _over_time(small, segments, forward, missing)
    return Counted(
        parts, layers[OWN], layers.get(ENCODER, ()), layers.get(LATENTS, ()), layers.get(INNER, ()), trained, last, peak
    )


def _share(tally: Tally) -> Share:
    return Share(**{f.name: getattr(tally, f.name) for f in fields(tally)})


def _sizes(run: _Run) -> dict[Key, Share]:
    """Count the parameters of each part and the state bytes of each branch.

    Shared parameters count for the first part that uses them.
    """
    shares: dict[Key, Share] = {}
    maps, met = {id(p) for p in matrices(run.model)}, set[int]()

    def share_of(module: nn.Module) -> Share:
        new = [p for p in module.parameters() if id(p) in run.before and id(p) not in met]
        met.update(id(p) for p in new)
        idle, unread = _idle(module, run.asked.batch_size) if new else (0, 0)
        maps_alone = sum(p.numel() for p in new if id(p) in maps)
        return Share(parameters=sum(p.numel() for p in new), matrices=maps_alone, idle=idle, unread=unread)

    modules, segmentation = dict(run.modules()), run.model.segmentation
    modules.pop(_SEGMENTATION, None)  # counted last, because it contains a stack that is counted separately
    for key, module in modules.items():
        shares[key] = share_of(module)
    for prefix, layered in run.stacks():
        for step, block in enumerate(layered.walked):
            for name, j, module in parts_of(block):
                key = Key(prefix, name, step, j)
                shares[key] = shares.get(key, Share()) + share_of(module)
                if prefix == OWN and isinstance(module, Branch) and run.asked.model.decodes:
                    shares[key] += Share(state=run.state_bytes(module, step))
    if segmentation is not None:
        carried = segmentation.own_bytes(run.asked.length, run.asked.batch_size)
        shares[_SEGMENTATION] = share_of(segmentation) + Share(state=carried * PRECISIONS[run.asked.precision] // FLOAT)
    return shares


def _idle(module: nn.Module, rows: int) -> tuple[int, int]:
    """Return the numbers of parameters that are not used for one position, and for ``rows`` positions."""
    return (module.idle_parameters(), module.idle_parameters(rows)) if isinstance(module, Branch) else (0, 0)


_ORDER = (
    (ENCODER, ("embedding", None, "depth average", "final norm")),
    (OWN, ("embedding",)),
    (LATENTS, ("embedding", None, "depth average", "final norm")),
    (INNER, (None, "depth average", "final norm")),
    (OWN, ("queries", "segmentation", None, "depth average", "final norm", "head")),
)
"""Names of the parts of each stack in order of execution; None: the layers of the stack."""


def _laid_out(run: _Run, shares: dict[Key, Share]) -> tuple[dict[str, Share], dict[str, Blocks]]:
    """Expand the costs of the executed layers to all layers of the original model; return (parts by name, branches of
    each layer by stack).
    """
    plans = {OWN: run.small.blocks, ENCODER: run.small.encoder, LATENTS: run.small.latents, INNER: run.small.inner}
    layers: dict[str, list[list[dict[str, Share]]]] = {}
    for prefix, layered in run.stacks():
        each = [_branches(shares, prefix, step, block) for step, block in enumerate(layered.walked)]
        layers[prefix] = [each[step] for step in plans[prefix].runs]
    parts: dict[str, Share] = {}
    for prefix, names in _ORDER:
        for name in names if prefix in layers else ():
            layer_branches = [{name: shares[Key(prefix, name)]}] if name and Key(prefix, name) in shares else []
            for costs in layer_branches if name else [branch for layer in layers[prefix] for branch in layer]:
                for kind, share in costs.items():
                    parts[prefix + kind] = parts.get(prefix + kind, Share()) + share
    sums = {
        prefix: tuple(tuple(added(*branch.values()) for branch in layer) for layer in stack)
        for prefix, stack in layers.items()
    }
    return parts, sums


def _branches(shares: dict[Key, Share], prefix: str, step: int, block: nn.Module) -> list[dict[str, Share]]:
    """Return the costs of an executed layer: for each of its branches, name -> share of branch, norms and residual."""
    branches: list[dict[str, Share]] = []
    for slot in block.branches:  # type: ignore[union-attr]
        merged = ("merge",) if block.merge is not None and not branches else ()
        names = (*merged, slot.body.spec.kind, "norm", "residual")
        branches.append({name: shares.get(Key(prefix, name, step, len(branches)), Share()) for name in names})
    return branches


def _over_time(small: Reduced, segments: Sequence[Segment], forward: int, missing: int) -> tuple[int, int]:
    """Expand memory to all layers of the original model; return (bytes kept at the end of the forward pass, peak
    bytes).

    missing: bytes of the gradients of reversible layers that were not run; the backward pass of all reversible layers
    is one segment.
    """
    times = {
        OWN: small.blocks.times,
        ENCODER: small.encoder.times,
        LATENTS: small.latents.times,
        INNER: small.inner.times,
    }
    now = last = peak = 0
    for i, segment in enumerate(segments):
        prefix, layer = segment.label  # type: ignore[misc]
        count = times[prefix][layer] if isinstance(layer, int) else 1
        more = missing if i == forward and missing else 0
        peak = max(peak, now + segment.rise + more, now + (count - 1) * segment.change + segment.rise + more)
        now += count * segment.change + more
        if i == forward - 1:
            last = now
    return last, peak
