"""The model: front end, blocks, norm, head. The only place that counts positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.frontends.text import TextFrontend
from qkv.layers.branch import Branch
from qkv.layers.context import Context, Tap
from qkv.layers.norms import build_norm
from qkv.models.block import Block
from qkv.models.heads import LanguageModelHead
from qkv.spec.errors import UserError, dotted
from qkv.spec.model import Model, Text


class State(NamedTuple):
    """What a model remembers of each row.

    positions (B): how many it has seen.   limit (1): the fixed capacity, 0 where it grows.   blocks: one state a branch.
    """

    positions: Tensor
    limit: Tensor
    blocks: tuple[tuple[Any, ...], ...]


class Transformer(nn.Module):
    """ids (B, N) -> logits (B, N, V).

    Cut a row anywhere and pass the state along: the logits are those of one call, for rows of different lengths too.
    """

    def __init__(self, spec: Model):
        super().__init__()
        assert isinstance(spec.frontend, Text)
        self.spec = spec
        self.frontend = TextFrontend(spec.frontend, spec)
        self.blocks = nn.ModuleList(Block(block, spec.width, f"blocks.{i}") for i, block in enumerate(spec.layers))
        self.norm = build_norm(spec.norm, spec.width)
        table = self.frontend.table
        if spec.head.tied and table.shape[1] != spec.width:
            raise UserError("model.head.tied: a tied head needs token vectors of the full width, and concatenated positions halve them")
        self.head = LanguageModelHead(spec.head, table.shape[0], spec.width, table if spec.head.tied else None)
        self.recompute = False
        """Activation checkpointing: each block's inner values are computed again in the backward pass."""

    @property
    def branches(self) -> list[Branch]:
        """Every branch in order, from all blocks."""
        return [slot.body for block in self.blocks for slot in block.branches]  # type: ignore[union-attr]

    @property
    def rewindable(self) -> bool:
        """True if the latest positions can be taken back."""
        return all(branch.rewindable for branch in self.branches)

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        """The state before the first position. ``capacity`` None: buffers double as needed; a number: they never move."""
        self._needs_causal()
        if capacity is not None and capacity < 1:
            raise UserError(f"a state with a capacity of {capacity} holds no position; give at least 1, or none to let it grow")
        device = self.frontend.table.device
        blocks = tuple(tuple(slot.body.init_state(batch, capacity) for slot in block.branches) for block in self.blocks)  # type: ignore[union-attr]
        zeros = torch.zeros(batch, dtype=torch.long, device=device)
        return State(zeros, torch.full_like(zeros, capacity or 0), blocks)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes that the branches must keep after ``length`` positions."""
        return sum(branch.state_bytes(length, batch) for branch in self.branches)

    def rewind(self, state: State, lengths: Tensor) -> State:
        """The state as it was after ``lengths`` (B) positions of each row. Raises if a branch cannot go back."""
        if not self.rewindable:
            stuck = next(b for b in self.branches if not b.rewindable)
            raise UserError(f"the state of {stuck.spec.kind!r} cannot be cut to a length; keep a copy of it (rows) from before")
        if bool(((lengths > state.positions) | (lengths < 0)).any()):
            raise UserError(f"a state can only be rewound to what it has seen: {lengths.tolist()} asked, {state.positions.tolist()} seen")
        return state._replace(positions=lengths.to(state.positions))

    def forward(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None, segments: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, State | None]:
        """(logits (B, N, V), the next state). lengths (B): real tokens of each row; segments (B, N): documents of packed rows."""
        x, state = self.features(ids, state, lengths, segments, tap)
        return self.head(x), state

    def features(
        self, ids: Tensor, state: State | None = None, lengths: Tensor | None = None, segments: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, State | None]:
        """What the head reads: (vectors (B, N, D), the next state)."""
        context = self._context(ids, state, lengths, segments, tap)
        x = self.frontend(ids, context)
        if state is None:
            for block in self.blocks:
                x = self._through(block, x, context)
            return self.norm(x, context), None
        after = []
        for block, remembered in zip(self.blocks, state.blocks, strict=True):
            x, kept = block(x, context, remembered)
            after.append(kept)
        came = ids.shape[1] if lengths is None else lengths
        return self.norm(x, context), State(state.positions + came, state.limit, tuple(after))

    def _through(self, block: nn.Module, x: Tensor, context: Context) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(lambda x: block(x, context)[0], x, use_reentrant=False)  # type: ignore[no-any-return]
        return block(x, context)[0]

    def _context(self, ids: Tensor, state: State | None, lengths: Tensor | None, segments: Tensor | None, tap: Tap | None) -> Context:
        count = ids.shape[1]
        steps = torch.arange(count, device=ids.device)[None]
        if state is None:
            context = Context(steps if segments is None else _restarted(segments), lengths, segments, end=count, tap=tap)
            self._fits(count)
            return context
        if segments is not None:
            raise UserError("packed documents (segments) cannot be joined with a state; give each document a row of its own")
        past = state.positions
        first = int(past[0]) if past.shape[0] else 0
        level = lengths is None and (past.shape[0] < 2 or bool((past == first).all()))
        end = first + count if level else int((past + (count if lengths is None else lengths)).max())
        limit = int(state.limit[0]) if past.shape[0] else 0
        if limit and end > limit:
            raise UserError(f"the state holds {limit} positions and {end} are needed; give init_state a larger capacity, or none")
        self._fits(end)
        positions = steps + first if level else past[:, None] + steps
        if self.frontend.limit is not None:  # padding may stand past the table's end
            positions = positions.clamp(max=self.frontend.limit - 1)
        return Context(positions, lengths, None, past, first if level else None, end, tap)

    def _fits(self, end: int) -> None:
        limit = self.frontend.limit
        if limit is not None and end > limit:
            raise UserError(
                f"{end} positions are more than the {limit} that the learned position table holds (model.context_length); "
                "shorten the input, or use positions without an end (sinusoidal, rope, alibi, none)"
            )

    def _needs_causal(self) -> None:
        if not self.spec.causal:
            path = dotted(("model", *self.spec.first_not_causal()))
            raise UserError(f"{path}: this branch sees later positions, so the model cannot decode one token at a time; use a causal mask")


def _restarted(segments: Tensor) -> Tensor:
    """Positions that begin at 0 in each document of a packed row; (B, N)."""
    steps = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return steps - torch.where(starts, steps, 0).cummax(1).values
