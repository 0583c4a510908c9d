"""The state contract on random models: ``python -m tests.fuzz.contract --specs 500``.

A failure is printed with its seed and a small spec that has it.

Forms, masks, positions, norms and hybrids are those of ``draw``; beside it equal logits under ``top_k``, few tokens
that repeat, and rows of several chunks where a hash sorts them. Each model goes through checks of
``tests.contracts.battery``: cuts, ragged rows, forks, going back.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from tests.contracts.battery import failures, subject_like
from tests.contracts.samples import VOCABULARY
from tests.contracts.subjects import Stack, whole_model
from tests.fuzz import draw

from qkv.mixers.attention.attention import Attention as AttentionModule
from qkv.spec.branches import Attention, Branch
from qkv.spec.files.plain import plain
from qkv.spec.heads import LanguageModelHead
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Axial, ByLength, LayerNorm, NoRelative, Rope
from qkv.system.errors import UserError

ASKED = (
    "ragged rows",
    "rows: reorder, drop, fork",
    "join",
    "rewind",
    "packed documents",
    "causality",
    "padding",
    "zero positions",
)
"""Demand on each model: rows of any lengths in pieces of any, forked and gone back with, equal each row at once."""
THOROUGH = (
    *ASKED,
    "cut anywhere",
    "fixed capacity",
    "state bytes",
    "save, load, convert",
    "single precision",
    "growth by doubling",
)
"""What every tenth is asked. Left out are loops, which are written for what the battery itself runs on, rows of 1,100
positions, and differences, which are no gradients where logits are equal."""
ROUNDED = ("save, load, convert", "single precision")
"""Left out where keys are picked by score or hash: scores nearly equal in float64 may change places in float32."""
ROW, STEADY = 48, 1e-11
"""Length of the rows, and bound of the change, by which ``is_well_conditioned`` judges a model."""
LENGTH = 160
"""Positions that each model has room for."""


class Case(NamedTuple):
    """A model, of how many tokens its rows are made, and whether the queries of ``top_k`` are 0."""

    spec: Model
    tokens: int
    zero: bool

    def subject(self) -> Stack:
        """What the battery runs on."""
        found = whole_model(self.spec)
        found.tokens = self.tokens
        found.apart = tuple(range(LENGTH))  # a drawn model may well say nothing of its input
        for module in found.module.modules():
            if self.zero and isinstance(module, AttentionModule) and module.part.top_k:
                module.qkv.weight.data[: module.sizes[0]] = 0
        return found


def case(seed: int) -> Case:
    """The one with this number."""
    chance = draw.seeded(seed)
    spec = draw.model(chance, chance.choice(draw.DECODING))
    for _ in range(draw.TRIES):
        try:
            drawn = Case(_fitted(chance, spec), chance.choice([1, 2, VOCABULARY]), chance.random() < 0.3)
            if is_well_conditioned(drawn):
                return drawn
        except UserError:
            pass
        spec = draw.model(chance, chance.choice(draw.DECODING))
    raise draw.Exhausted(f"seed {seed}: no model that the battery can run on")


def is_well_conditioned(drawn: Case) -> bool:
    """Whether outputs are finite, in fp32 too, and change by at most ``STEADY`` if all weights change by 1e-14.

    Without a norm before squared activations, or in the memory of a segment, a model amplifies rounding until no two
    ways to compute it agree: outputs of 1e251 after four segments, or 2e-3 for a change of 1e-14.
    """
    subject = drawn.subject()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(min(drawn.tokens, VOCABULARY), (2, ROW), generator=generator)
    with torch.no_grad():
        before = subject.whole(x)
        for weight in subject.module.parameters():
            weight.mul_(1 + 1e-14 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        change = (subject.whole(x) - before).abs().max()
        single = subject_like(subject, torch.float32).whole(x)
    return bool(before.isfinite().all() and single.isfinite().all() and change <= STEADY)


def _fitted(chance: random.Random, spec: Model) -> Model:
    """``spec`` with room for the battery's rows, a head that answers at each position, more that is equal or hashed."""
    blocks = tuple(_block(chance, block) for block in spec.blocks)
    head = spec.head if isinstance(spec.head, LanguageModelHead) else LanguageModelHead(tied=False)
    encoder = spec.encoder and spec.encoder.changed(frontend=_roomy(spec.encoder.frontend), context_length=LENGTH)
    frontend = _roomy(spec.frontend)
    return spec.changed(
        blocks=blocks,
        head=head,
        encoder=encoder,
        frontend=frontend,
        context_length=LENGTH,
        init_std=min(spec.init_std, 0.1),  # squares of larger weights, layer upon layer, overflow
    )


def _roomy(frontend: Any) -> Any:
    assert isinstance(frontend, Text)
    positions = frontend.positions
    if isinstance(positions, Axial):
        positions = positions.changed(shape=(*positions.shape[:-1], LENGTH))
    return frontend.changed(vocab_size=VOCABULARY, positions=positions)


def _block(chance: random.Random, block: Block) -> Block:
    return block.changed(branches=tuple(_branch(chance, branch) for branch in block.branches))


def _branch(chance: random.Random, branch: Branch) -> Branch:
    relative = getattr(branch, "relative", None)
    if isinstance(relative, Rope) and isinstance(relative.scaling, ByLength):  # exact up to this length
        scaling = relative.scaling.changed(original_length=LENGTH)
        branch = branch.changed(relative=relative.changed(scaling=scaling))
    if isinstance(branch, LSHAttention):
        return branch.changed(chunk_length=chance.choice([2, 3, 5, 8]))
    if isinstance(branch, HyperAttention):
        sizes = {name: chance.choice([1, 2, 3, 5, 20]) for name in ("block", "samples", "exact_up_to")}
        return branch.changed(**sizes, sampling="uniform")
    if not isinstance(branch, Attention) or chance.random() < 0.5:
        return branch
    branch = branch.changed(top_k=chance.choice([1, 2, 4]))
    if chance.random() < 0.5:
        return branch
    relative = NoRelative() if isinstance(branch.relative, Rope) else branch.relative
    return branch.changed(head_dim=1, qk_norm=LayerNorm(), relative=relative)


def asked(found: Case, seed: int) -> tuple[str, ...]:
    """The checks of the case with this number."""
    picks = any(
        isinstance(branch, (LSHAttention, HyperAttention)) or getattr(branch, "top_k", None)
        for b in found.spec.blocks
        for branch in b.branches
    )
    if seed % 10:
        return ASKED
    # A buffer of segments has room for 64 of them at least, more than the rows of the battery have.
    segments = found.spec.segmentation is not None
    left_out = (*(ROUNDED if picks else ()), *(("growth by doubling",) if segments else ()))
    return tuple(name for name in THOROUGH if name not in left_out)


def broken(found: Case, checks: tuple[str, ...] = ASKED) -> tuple[str, str] | None:
    """The first check that a case fails, and what it said; None where it keeps the contract."""
    return next(iter(failures(found.subject(), checks)), None)


def smallest(found: Case, check: str, tries: int = 200) -> Case:
    """``found`` with all left out without which it still fails the check."""
    for _ in range(tries):
        smaller = next((one for one in _smaller(found) if _fails(one, check)), None)
        if smaller is None:
            break
        found = smaller
    return found


def _fails(found: Case, check: str) -> bool:
    try:
        return any(failures(found.subject(), [check]))
    except Exception:
        return False


def _smaller(found: Case) -> Iterator[Case]:
    if found.zero:
        yield found._replace(zero=False)
    if found.tokens != VOCABULARY:
        yield found._replace(tokens=VOCABULARY)
    for data in _without_one(plain(found.spec, in_slot=False)):
        try:
            spec = Model.parse(data)
        except UserError:
            continue
        if spec != found.spec and spec.decodes and spec.vocab_size == VOCABULARY and spec.context_length == LENGTH:
            yield found._replace(spec=spec)


def _without_one(data: Any) -> Iterator[Any]:
    """``data`` with one key or item less, the outermost first."""
    if isinstance(data, dict):
        yield from ({k: v for k, v in data.items() if k != name} for name in data if name not in ("kind", "frontend"))
        for name, value in data.items():
            yield from ({**data, name: inner} for inner in _without_one(value))
    elif isinstance(data, list):
        yield from (data[:i] + data[i + 1 :] for i in range(len(data)))
        for i, value in enumerate(data):
            yield from ([*data[:i], inner, *data[i + 1 :]] for inner in _without_one(value))


def main() -> int:
    """Run the script; 1 if a model breaks the contract."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--specs", type=int, default=500, help="how many (default: 500)")
    options.add_argument("--seed", type=int, default=0, help="of the first (default: 0)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    began, wrong = time.perf_counter(), 0
    for seed in range(chosen.seed, chosen.seed + chosen.specs):
        found = case(seed)
        failed = broken(found, asked(found, seed))
        if failed:
            wrong += 1
            small = smallest(found, failed[0])
            print(
                f"seed {seed} fails {failed[0]!r}: {failed[1]}\n"
                f"  tokens {small.tokens}, zero {small.zero}: {small.spec.essential()}",
                flush=True,
            )
    print(f"{chosen.specs} models, {wrong} of them wrong, {time.perf_counter() - began:.0f} s")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
