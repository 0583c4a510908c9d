"""Roles of attention heads by score, beside the loss when a head is taken out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.layers.context import Context
from qkv.layers.observable import list_points
from qkv.layers.signal import Signal
from qkv.layers.tap import Location
from qkv.lens.capture import edits
from qkv.lens.capture.regions import Region
from qkv.lens.record import record
from qkv.lens.views.attention_maps import AttentionMap, attention_maps
from qkv.lens.views.damage import Damage
from qkv.lens.views.heads import head_points, head_terms, list_slots, through_heads
from qkv.lens.views.stream import Stream, answer, read_stream
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError

ROLES: Mapping[str, str] = {
    "previous token": "mean weight on the position before (Voita et al. 2019; Olsson et al. 2022)",
    "duplicate token": "mean weight on earlier positions with the same token, where there are any (Wang et al. 2022)",
    "induction": "mean weight on the positions after earlier occurrences of the same token, where there are any "
    "(prefix matching, Olsson et al. 2022)",
    "sink": "mean weight on the first position, from all later ones (Xiao et al. 2023)",
    "delimiter": "mean weight on delimiters, the first position left out (Clark et al. 2019)",
    "copying": "share of positions whose token is among the five highest logits when the head's value there alone "
    "passes through its output projection, the final norm and the head (copy score, Wang et al. 2022)",
    "no-op": "share of positions where the head adds less than 1 % of the length of the stream "
    "(Kobayashi et al. 2020; Guo et al. 2024)",
}
"""Definition of each role's score, between 0 and 1, with its source."""
BY_WEIGHTS = ("previous token", "duplicate token", "induction", "sink", "delimiter")
"""Roles that attention weights alone decide."""
_TOP, _SAMPLED, _QUIET = 5, 32, 0.01


@dataclass(frozen=True)
class HeadRole:
    """Head of a branch, with its scores by role (see ``ROLES``); roles that the rows cannot show are left out.

    path, call, stack, layer, head: place of the head, see ``BranchPlace``. role: that of the highest score by weights
    if it reaches the threshold; else "no-op" if that score does; else "". loss: with the head replaced by its mean;
    rise: its difference from the loss of the whole model, in nats per position; interval: 95 % bootstrap interval of
    the rise over rows. They are None for heads that were not taken out.
    """

    path: str
    call: int
    stack: str
    layer: int
    head: int
    scores: Mapping[str, float]
    role: str
    loss: float | None = None
    rise: float | None = None
    interval: tuple[float, float] | None = None


def repeated_tokens(
    vocab_size: int, rows: int = 8, length: int = 24, seed: int = 0, first: int | None = None
) -> Tensor:
    """Return rows of ``length`` random tokens that follow once more, (rows, 2 length), after the token ``first`` if
    given, which is not drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(vocab_size - (first is not None), (rows, length), generator=generator)
    if first is None:
        return torch.cat((half, half), 1)
    half += half >= first
    return torch.cat((torch.full((rows, 1), first), half, half), 1)


@torch.no_grad()
def head_roles(
    model: Transformer,
    rows: Signal | Tensor | None = None,
    source: Signal | Tensor | None = None,
    delimiters: Collection[int] = (),
    ablate: int | None = None,
    start: int = 0,
    threshold: float = 0.4,
) -> list[HeadRole]:
    """Return every head with attention weights between the positions of a stack, with its scores and its role, in the
    order of computation.

    rows: input; default: repeated random tokens, of which the second half counts for the loss. source: input of the
    encoder. delimiters: ids of tokens such as full stops. ablate: number of heads with the highest scores of each role
    that are taken out in turn; None: all heads; 0: none. A head is taken out by replacing its output by its mean over
    rows, position by position (mean ablation, Wang et al. 2022), or over positions if there is a single row. start:
    first position whose loss counts; see ``Damage`` for the loss. threshold: lowest score of a role.

    Raises ``UserError`` for a model without tokens and no rows, and for ablate < 0.
    """
    if ablate is not None and ablate < 0:
        raise UserError(f"ablate is {ablate}; allowed: at least 0, or None to take out every head")
    if rows is None:
        if model.vocab_size is None:
            raise UserError("the model reads no tokens, so repeated tokens cannot be made; give rows of its input")
        rows = repeated_tokens(model.vocab_size).to(model.device)
        start = rows.shape[1] // 2
    signal, read = Signal.of(rows), None if source is None else Signal.of(source)
    heads = _scored(model, signal, read, delimiters, threshold)
    chosen = _highest(heads, ablate)
    if not chosen:
        return heads
    damage, outputs = Damage(model, signal, read, start), _outputs(model, signal, read, heads)
    return [_taken_out(head, damage, outputs) if i in chosen else head for i, head in enumerate(heads)]


def _outputs(model: Transformer, signal: Signal, source: Signal | None, heads: Sequence[HeadRole]) -> dict[str, int]:
    """Return the number of head outputs of each branch that has any; both heads of a pair of differential attention
    have one.
    """
    points = list_points(model)
    paths = [path for path in dict.fromkeys(head.path for head in heads) if f"{path}.head_outputs" in points]
    if not paths:
        return {}
    records = record(model, signal, *(f"{path}.head_outputs" for path in paths), source=source).records
    return {location.module: value.shape[1] for location, value in records.items()}


def _taken_out(head: HeadRole, damage: Damage, outputs: Mapping[str, int]) -> HeadRole:
    if head.path not in outputs:
        return head
    region = Region(f"{head.path}.head_outputs", heads=[head.head % outputs[head.path]])
    tap = edits.ablate(region, "rows" if damage.signal.num_rows > 1 else "positions")
    loss, rise, interval = damage.after(tap)
    return replace(head, loss=loss, rise=rise, interval=interval)


def _highest(heads: Sequence[HeadRole], count: int | None) -> set[int]:
    """Return the indices of the heads with the ``count`` highest scores of each role; all of them if None."""
    if count is None:
        return set(range(len(heads)))
    chosen = set[int]()
    for role in ROLES:
        scores = [(head.scores[role], -i) for i, head in enumerate(heads) if role in head.scores]
        chosen |= {-place for _, place in sorted(scores, reverse=True)[:count]}
    return chosen


def _scored(
    model: Transformer, signal: Signal, source: Signal | None, delimiters: Collection[int], threshold: float
) -> list[HeadRole]:
    """Return the heads with the scores of all roles, before any is taken out."""
    heads, maps = list[HeadRole](), attention_maps(model, signal, source)
    stream = None if model.segmentation is not None else _read_writes(model, signal, source)
    for each in maps:
        read = source if each.stack == "encoder" and source is not None else signal
        square = each.weights.shape[-1] == each.weights.shape[-2] and len(each.weights) == read.num_rows
        if each.kind != "self" or not square or each.stack not in ("model", "encoder"):
            continue
        scores = _weight_scores(each.weights, read, _ids(each, read), delimiters)
        if each.stack == "model" and stream is not None:
            scores |= _write_scores(model, signal, stream, each)
        for head in range(each.weights.shape[1]):
            numbers = {name: float(values[head % len(values)]) for name, values in scores.items()}
            heads.append(_head(each, head, {n: score for n, score in numbers.items() if score == score}, threshold))
    return heads


def _head(each: AttentionMap, head: int, scores: dict[str, float], threshold: float) -> HeadRole:
    best = max((name for name in BY_WEIGHTS if name in scores), key=scores.__getitem__, default="")
    role = best if best and scores[best] >= threshold else "no-op" if scores.get("no-op", 0.0) >= threshold else ""
    return HeadRole(each.path, each.call, each.stack, each.layer, head, scores, role)


def _ids(each: AttentionMap, read: Signal) -> Tensor | None:
    """Return the token of each position (B, N); None if positions are no tokens."""
    values = read.values
    tokens = values.dim() == 2 and not values.is_floating_point()
    return values if tokens and values.shape[1] == each.weights.shape[2] else None


def _weight_scores(weights: Tensor, read: Signal, ids: Tensor | None, delimiters: Collection[int]) -> dict[str, Tensor]:
    """Return the score (H) of each role that weights (B, H, N, N) show; NaN where the rows do not show it."""
    weights, real = at_least_single(weights), _real(read, weights)
    count = weights.shape[-1]
    earlier = torch.ones(count, count, dtype=torch.bool, device=weights.device).tril(-1)
    later = real & (torch.arange(count, device=weights.device) > 0)
    first = torch.arange(count, device=weights.device) == 0
    scores = {
        "previous token": _weight_on(weights, earlier & ~earlier.tril(-2), later),
        "sink": _weight_on(weights, first.expand(count, count), later),
    }
    if ids is None:
        return scores
    same = (ids[:, :, None] == ids[:, None]) & earlier
    after = F.pad(same, (1, 0))[..., :-1] & earlier
    scores["duplicate token"] = _weight_on(weights, same, real & same.any(-1))
    scores["induction"] = _weight_on(weights, after, real & after.any(-1))
    if delimiters:
        marks = torch.isin(ids, torch.tensor(sorted(delimiters), device=ids.device)) & ~first
        scores["delimiter"] = _weight_on(weights, marks[:, None].expand_as(same), later & marks.any(-1, keepdim=True))
    return scores


def _real(read: Signal, weights: Tensor) -> Tensor:
    """Return the mask (B, N), True at positions that are not padding, of weights (B, H, N, N)."""
    steps = torch.arange(weights.shape[-1], device=weights.device).expand(len(weights), -1)
    return torch.ones_like(steps, dtype=torch.bool) if read.lengths is None else steps < read.lengths[:, None]


def _weight_on(weights: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    """Return the mean weight of each head (H) on the ``keys`` (B or 1, N, N) of the ``queries`` (B, N), both masks; NaN
    without queries.
    """
    total = (weights * (keys if keys.dim() == 2 else keys[:, None])).sum(-1) * queries[:, None]
    return total.sum((0, 2)) / queries.sum()


def _read_writes(model: Transformer, signal: Signal, source: Signal | None) -> Stream:
    """Return the stream with the values that show what heads add to it."""
    values = [f"{slot.name}.v" for slot in list_slots(model) if "v" in slot.body.points()]
    return read_stream(model, signal, source, [*head_points(model), *values])


def _write_scores(model: Transformer, signal: Signal, stream: Stream, each: AttentionMap) -> dict[str, Tensor]:
    """Return the scores (H) "no-op" and "copying" of a branch; none if its heads do not add to the stream one by
    one.
    """
    slot = next(slot for slot in list_slots(model) if slot.name == each.path)
    after = [i for i, point in enumerate(stream.points) if point.path == f"{each.path}.residual_after"]
    with evaluating(model):
        terms = head_terms(slot, stream.records, each.call, range(each.weights.shape[2]), stream.vectors[0].shape[-1])
        if not terms or len(after) <= each.call:
            return {}
        before, real = stream.vectors[after[each.call] - 1], _real(signal, each.weights)
        sizes = torch.stack([term.norm(dim=-1) for term in terms])
        quiet = (sizes < _QUIET * before.norm(dim=-1)) & real
        scores = {"no-op": quiet.sum((1, 2)) / real.sum()}
        v, ids = stream.records.get(Location(each.call, each.path, "v")), _ids(each, signal)
        if v is not None and ids is not None and model.spec.head.predicts_tokens and v.shape[2] == ids.shape[1]:
            v = v.repeat_interleave(max(1, len(terms) // v.shape[1]), 1)
            values = through_heads(slot.body.ending(), v)
            if len(values) == len(terms) + 1:
                none = torch.zeros_like(before)
                added = [slot.residual.joined(none, value) for value in values[:-1]]
                scores["copying"] = _copying(model, added, ids, real)
    return scores


def _copying(model: Transformer, values: Sequence[Tensor], ids: Tensor, real: Tensor) -> Tensor:
    """Return the copy score (H) of what each head would add if it read a position alone, H tensors (B, N, D), with the
    tokens there (B, N).
    """
    tokens, places = ids[real].unique(return_inverse=True)
    first = torch.full_like(tokens, len(places)).scatter_reduce(0, places, torch.arange(len(places)).to(places), "amin")
    chosen = first[torch.linspace(0, len(first) - 1, min(_SAMPLED, len(first))).long()]
    expected, shares = ids[real][chosen], []
    context = Context(torch.zeros(1, 1, dtype=torch.long, device=ids.device))
    for vectors in values:
        logits = answer(model, vectors[real][chosen][:, None], context)[:, 0]
        best = logits.topk(min(_TOP, logits.shape[-1]), -1).indices
        shares.append((best == expected[:, None]).any(-1).double().mean())
    return torch.stack(shares)
