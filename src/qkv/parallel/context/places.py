"""Positions and documents of the keys of all ranks, which each rank knows, and the blocks of pairs that it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.ops.masks import Mask, Sites, Span
from qkv.parallel.context.layout import RankLayout
from qkv.parallel.context.ranks import Ranks
from qkv.system.errors import UserError

BLOCK = 512
"""Largest number of queries and of keys of a block."""


class PairBlock(NamedTuple):
    """Block of pairs that may see each other. whole: all of them do."""

    queries: slice
    keys: slice
    whole: bool


class RankPlaces:
    """Places of all ranks' positions in one forward pass, and what follows from them for each mask.

    keys: sites of this rank's queries and of the keys of each rank, in order of rank.
    """

    def __init__(self, sites: Sites, ranks: Ranks, layout: RankLayout):
        if sites.given is not None:
            raise UserError("attention over ranks cannot read a table of visible keys (visible); leave it out")
        self.sites, self._rank, self._layout = sites, ranks.rank, layout
        segments = [None] * ranks.size if sites.key_segment is None else ranks.gather(sites.key_segment)
        shared = zip(ranks.gather(sites.key), segments, strict=True)
        self.keys = [replace(sites, key=key, key_segment=segment, aligned=False) for key, segment in shared]
        self._queries = ranks.gather(sites.query)
        self._steps: dict[Mask, int] = {}
        self._blocks: dict[tuple[Mask, int], list[PairBlock]] = {}

    def whole(self) -> Sites:
        """Return the sites of the queries and keys of all ranks, in the order of the row."""
        order = self._layout.order(self.sites.key.shape[1]).to(self.sites.key.device)
        query = torch.cat(self._queries, 1)[:, order]
        key = torch.cat([each.key for each in self.keys], 1)[:, order]
        if self.sites.key_segment is None:
            return replace(self.sites, query=query, key=key)
        segment = torch.cat([each.key_segment for each in self.keys if each.key_segment is not None], 1)[:, order]
        return replace(self.sites, query=query, key=key, query_segment=segment, key_segment=segment)

    def steps(self, mask: Mask) -> int:
        """Return how often keys must move on to the next rank until each query has met all keys that it may see."""
        if mask not in self._steps:
            size = len(self.keys)
            parts = len(self._layout.of_rank(0))
            queries = [_borders(query, _pieces(query.shape[1], parts, query.shape[1])) for query in self._queries]
            keys = [_borders(each.key, _pieces(each.key.shape[1], parts, each.key.shape[1])) for each in self.keys]
            self._steps[mask] = max(
                step
                for step in range(size)
                for rank in range(size)
                if step == 0 or any(_may_see(mask, a, b) for a in queries[rank] for b in keys[(rank - step) % size])
            )
        return self._steps[mask]

    def blocks(self, mask: Mask, rank: int) -> list[PairBlock]:
        """Return the blocks of this rank's queries and the keys of ``rank`` that may hold a visible pair."""
        if (mask, rank) not in self._blocks:
            self._blocks[mask, rank] = list(self._seen(mask, self.keys[rank]))
        return self._blocks[mask, rank]

    def _seen(self, mask: Mask, sites: Sites) -> Iterator[PairBlock]:
        parts = len(self._layout.of_rank(0))
        queries, keys = (_pieces(t.shape[1], parts, BLOCK) for t in (sites.query, sites.key))
        ends = list(zip(keys, _borders(sites.key, keys), _documents(sites.key_segment, keys), strict=True))
        for rows, (query, of_rows) in zip(
            queries,
            zip(_borders(sites.query, queries), _documents(sites.query_segment, queries), strict=True),
            strict=True,
        ):
            for columns, key, documents in ends:
                if _may_see(mask, query, key) and _may_meet(of_rows, documents):
                    yield PairBlock(rows, columns, self._all_visible(mask, sites, query, key))

    @staticmethod
    def _all_visible(mask: Mask, sites: Sites, query: _Ends, key: _Ends) -> bool:
        plain = sites.key_segment is None and not key.empty_slots
        return plain and mask.sees_all(Span(query.first, query.last, key.first, key.last))


class _Ends(NamedTuple):
    """First and last position of a piece; empty_slots: it has slots without a position (-1), such as padding."""

    first: int
    last: int
    empty_slots: bool


def _may_see(mask: Mask, query: _Ends, key: _Ends) -> bool:
    return key.last >= 0 and mask.may_see(Span(query.first, query.last, key.first, key.last))


def _pieces(count: int, parts: int, most: int) -> list[slice]:
    """Divide ``count`` positions into ``parts`` equal chunks, and these into pieces of at most ``most``."""
    chunk = count // parts
    return [
        slice(first, min(first + most, begin + chunk))
        for begin in range(0, chunk * parts, max(chunk, 1))
        for first in range(begin, begin + chunk, most)
    ]


def _borders(positions: Tensor, pieces: Sequence[slice]) -> list[_Ends]:
    """Return the ends of each piece of positions (B or 1, N), over all rows."""
    positions = positions.cpu()
    ends = list[_Ends]()
    for piece in pieces:
        here = positions[:, piece]
        real = here[here >= 0]
        first, last = (int(real.min()), int(real.max())) if real.numel() else (0, -1)
        ends.append(_Ends(first, last, real.numel() < here.numel()))
    return ends


def _documents(segments: Tensor | None, pieces: Sequence[slice]) -> list[tuple[list[int], list[int]] | None]:
    """Return the smallest and the largest document number of each row in each piece; None without documents."""
    if segments is None:
        return [None] * len(pieces)
    segments = segments.cpu()
    return [(segments[:, piece].amin(1).tolist(), segments[:, piece].amax(1).tolist()) for piece in pieces]


def _may_meet(first: tuple[list[int], list[int]] | None, second: tuple[list[int], list[int]] | None) -> bool:
    """Return False if no row has the same document in both pieces."""
    if first is None or second is None:
        return True
    return any(a <= d and c <= b for a, b, c, d in zip(*first, *second, strict=True))


class Shared:
    """Base class of attention to keys that ranks share; it knows the places of one forward pass for all its layers."""

    def __init__(self, ranks: Ranks, layout: RankLayout):
        self.ranks, self.layout = ranks, layout
        self._places: RankPlaces | None = None

    def places(self, sites: Sites) -> RankPlaces:
        """Return the places of a forward pass, which all its layers know by the same ``sites``."""
        if self._places is None or self._places.sites is not sites:
            self._places = RankPlaces(sites, self.ranks, self.layout)
        return self._places
