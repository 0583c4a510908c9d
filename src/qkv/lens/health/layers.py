"""Checks of the layers of a run: updates, gradients, activations, attention, heads, units, logits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from qkv.lens.health.evidence import Evidence
from qkv.lens.health.gauge import GRADIENT, RATIO, layers_of
from qkv.lens.health.probe import DEAD, ENTROPY, HEAD, LARGEST, LOGIT, SCORE, STREAM
from qkv.lens.health.records import curve, median_ratios, newest, places
from qkv.lens.health.verdict import Severity, Verdict

HIGH_RATIO, LOW_RATIO = 0.2, 1e-5
"""Limits of ‖ΔW‖ / ‖W‖ of the median layer in one update: a fifth in any step, and a hundredth of the usual value,
about 1e-3, in half of the steps.
"""
STILL = 1e-3
"""A layer stands still if its update-to-weight ratio is below this share of that of the median layer."""
VANISHED = 1e-4
"""Minimum ratio of a branch's gradient norm to that of the median branch."""
DEAD_UNITS = 0.5
"""Maximum share of dead units of a layer."""
IDLE = 0.01
"""A head does nothing if its output is smaller than this share of the mean head of its layer."""
COLLAPSED = 0.1
"""Minimum mean entropy of the heads of a layer, as a share of the entropy of equal weights."""
LARGEST_SCORE = 100.0
"""Maximum magnitude of an attention score."""
LARGEST_LOGIT = 128.0
"""Maximum magnitude of a logit: from here on, numbers of bf16, with 8 significant bits, are 1 apart, a factor e."""
LARGEST_VALUE = 65504.0
"""Largest number of fp16."""
_SHOWN = 6


def check_update_ratio(e: Evidence) -> Verdict | None:
    """Compare the update-to-weight ratio of the median layer with its limits."""
    moving = [ratio for ratio in _ratios(e).values() if ratio > 0]
    by_step = median_ratios(e.records)
    if not moving or not by_step:
        return None
    usual, largest = statistics.median(moving), max(by_step.values())
    source = "CS231n, Stanford: about 1e-3"
    sentence = (
        f"an update changes the weights of the median layer by {usual:.1e} of their size, and by at most "
        f"{largest:.1e}; usual is 1e-3 (CS231n), allowed {LOW_RATIO:g} to {HIGH_RATIO:g}"
    )
    high, low = largest > HIGH_RATIO, usual < LOW_RATIO
    severity: Severity = "alarm" if high or low else "good"
    cure = e.with_rate(0.1 if high else 10) if high or low else ""
    value, limit = (largest, HIGH_RATIO) if high else (usual, LOW_RATIO)
    return Verdict("update_ratio", severity, sentence, value, limit, source, cure)


def check_still_layers(e: Evidence) -> Verdict | None:
    """Find layers that do not train: their ratio is far below that of the others, or nothing in them has a gradient."""
    ratios = _ratios(e)
    if len(ratios) < 2:
        return None
    middle = statistics.median(ratios.values())
    slowest = min(ratios.values())
    still = [place for place, ratio in ratios.items() if ratio < STILL * middle] + _untrained(e)
    sentence = f"the slowest layer changes by {slowest / middle if middle else 0:.1e} of the median layer's ratio"
    if still:
        sentence = f"{_names(still)} do{'es' * (len(still) == 1)} not train: {sentence}"
    sentence += f"; a layer below {STILL:g} of it stands still"
    cure = e.cure("training.rates={}", "training.frozen=[]") if still else ""
    severity: Severity = "warning" if still else "good"
    return Verdict("still_layers", severity, sentence, slowest, STILL * middle, "relative measure", cure, tuple(still))


def _untrained(e: Evidence) -> list[str]:
    """Return the layers without any recorded gradient although the recipe trains the whole model."""
    training = e.recipe.training
    if e.run is None or training.frozen or training.adapt.kind != "whole" or e.recipe.quantized is not None:
        return []
    recorded = set(places(e.records, GRADIENT))
    layers = layers_of(e.run.model, {p: name for name, p in e.run.model.named_parameters()})
    return [place for place in layers if place not in recorded] if recorded else []


def check_gradients(e: Evidence) -> Verdict | None:
    """Compare the gradient norms of the branches with each other."""
    norms = {place: statistics.median(curve(e.records, GRADIENT, place)[1]) for place in places(e.records, GRADIENT)}
    branches = {place: norm for place, norm in norms.items() if "." in place}
    if len(branches) < 2 or not any(branches.values()):
        return None
    middle = statistics.median(norm for norm in branches.values() if norm > 0)
    least = min(branches, key=lambda place: branches[place])
    ratio = branches[least] / middle
    ill = ratio < VANISHED
    sentence = (
        f"the smallest gradient norm of a branch, of {least}, is {ratio:.1e} of the median one; below {VANISHED:g} "
        "gradients vanish (Glorot & Bengio 2010)"
    )
    part = e.part(least)
    cure = e.cure_by(f"{part[0].rpartition('.branches')[0]}.order=pre" if part else "") if ill else ""
    source = "Glorot & Bengio 2010; relative measure"
    return Verdict("gradients", "warning" if ill else "good", sentence, ratio, VANISHED, source, cure, (least,))


def check_activations(e: Evidence) -> Verdict | None:
    """Compare the residual stream's largest value with what fp16 can hold, and state its growth over the layers."""
    largest, sizes = _values(e, LARGEST), list(_values(e, STREAM).values())
    if not largest:
        return None
    place = max(largest, key=lambda name: largest[name])
    growth = sizes[-1] / sizes[0] if sizes and sizes[0] else 1.0
    ill = largest[place] > LARGEST_VALUE
    sentence = (
        f"the largest value of the residual stream is {largest[place]:.3g}, at {place}, and its size grows "
        f"{growth:.3g} times over the layers; fp16 holds up to 65,504"
    )
    cure = e.cure_by("training.optimizer.weight_decay=0.1") if ill else ""
    return Verdict(
        "activations",
        "alarm" if ill else "good",
        sentence,
        largest[place],
        LARGEST_VALUE,
        "IEEE 754, half precision",
        cure,
    )


def check_logits(e: Evidence) -> Verdict | None:
    """Compare the largest logit with the precision of bf16."""
    logits = _values(e, LOGIT)
    if not logits or e.task is None or e.run is None:
        return None
    if not (e.run.model.spec.head.predicts_tokens or e.run.vocabulary.labels):
        return None
    largest = max(logits.values())
    ill = largest > LARGEST_LOGIT
    sentence = (
        f"the largest logit is {largest:.3g}; from {LARGEST_LOGIT:g} on, numbers of bf16 are 1 apart, and "
        "probabilities are off by a factor e (PaLM, Chowdhery et al. 2022, keeps logits small by a z-loss)"
    )
    cure = e.with_rate(1 / 3) if ill else ""
    source = "8 significant bits of bf16"
    return Verdict("logits", "warning" if ill else "good", sentence, largest, LARGEST_LOGIT, source, cure)


def check_attention(e: Evidence) -> Verdict | None:
    """Compare attention scores and entropy with their limits."""
    entropies: dict[str, list[float]] = {}
    for place, value in _values(e, ENTROPY).items():
        entropies.setdefault(place.rpartition(" ")[0], []).append(value)
    scores = _values(e, SCORE)
    if not entropies or not scores:
        return None
    means = {place: statistics.fmean(values) for place, values in entropies.items()}
    lowest = min(means, key=lambda place: means[place])
    ill = [p for p in means if means[p] < COLLAPSED and scores.get(p, 0.0) > LARGEST_SCORE]
    sentence = (
        f"attention scores reach {max(scores.values()):.3g}, and the lowest mean entropy of a layer, of {lowest}, is "
        f"{100 * means[lowest]:.3g} % of that of equal weights; a layer with scores above {LARGEST_SCORE:g} (Kimi K2, "
        f"2025) and less than {100 * COLLAPSED:g} % has collapsed (Zhai et al. 2023)"
    )
    if ill:
        sentence = f"{_names(ill)} collapsed: {sentence}"
    part = e.part(ill[0]) if ill else None
    cure = e.cure_by(f"{part[0]}.qk_norm=rms_norm" if part else "") if ill else ""
    source = "Kimi K2 (2025): scores above 100 are clipped; Zhai et al. 2023: entropy collapse"
    severity: Severity = "warning" if ill else "good"
    return Verdict("attention", severity, sentence, means[lowest], COLLAPSED, source, cure, tuple(ill))


def check_heads(e: Evidence) -> Verdict | None:
    """Find heads whose output is far smaller than that of the others of their layer."""
    sizes = _values(e, HEAD)
    if not sizes:
        return None
    idle = [place for place, size in sizes.items() if size < IDLE]
    smallest = min(sizes, key=lambda place: sizes[place])
    sentence = (
        f"the smallest output of a head, of {_head(smallest)}, is {sizes[smallest]:.2g} of the mean head of its layer; "
        f"below {IDLE:g} a head does nothing (Michel et al. 2019: many heads can be removed)"
    )
    part = e.part(idle[0]) if idle else None
    heads = getattr(part[1], "num_heads", 2) // 2 if part else 1
    cure = e.cure_by(f"{part[0]}.num_heads={max(1, heads)}" if part else "") if idle else ""
    severity: Severity = "warning" if idle else "good"
    names = tuple(map(_head, idle))
    if idle:
        sentence = f"{_names(names)} do{'es' * (len(idle) == 1)} nothing: {sentence}"
    source = "relative measure; Michel et al. 2019"
    return Verdict("idle_heads", severity, sentence, sizes[smallest], IDLE, source, cure, names)


def check_units(e: Evidence) -> Verdict | None:
    """Compare the share of dead units of each layer with ``DEAD_UNITS``."""
    shares = _values(e, DEAD)
    if not shares:
        return None
    ill = [place for place, share in shares.items() if share > DEAD_UNITS]
    most = max(shares, key=lambda place: shares[place])
    sentence = (
        f"{100 * shares[most]:.3g} % of the units of {most} are never active on held-out rows; above "
        f"{100 * DEAD_UNITS:g} % the layer is wasted (Lu et al. 2019; Voita et al. 2023 found up to 70 % in OPT-66B)"
    )
    cure = e.with_rate(1 / 3) if ill else ""
    severity: Severity = "warning" if ill else "good"
    source = "Lu et al. 2019: dying ReLU"
    return Verdict("dead_units", severity, sentence, shares[most], DEAD_UNITS, source, cure, tuple(ill))


def _ratios(e: Evidence) -> dict[str, float]:
    """Return the median update-to-weight ratio of each layer after the warm-up, in the middle half of the steps."""
    ratios = dict[str, float]()
    warmup = e.recipe.training.schedule.warmup
    for place in places(e.records, RATIO):
        steps, values = curve(e.records, RATIO, place)
        late = [v for s, v in zip(steps, values, strict=True) if s > warmup and e.steps / 4 <= s <= 3 * e.steps / 4]
        ratios[place] = statistics.median(late or values)
    return ratios


def _values(e: Evidence, quantity: str) -> Mapping[str, float]:
    """Return the values of a quantity inside the trained model, or else the last ones recorded in training."""
    inside = {name.removeprefix(f"{quantity} "): v for name, v in e.inside.items() if name.startswith(f"{quantity} ")}
    return inside or newest(e.records, quantity)


def _head(place: str) -> str:
    layer, _, number = place.rpartition(" ")
    return f"head {number} of {layer}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
