"""Sections of docs/claims.md: claims of papers, tested by recorded comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages import Section, entry_models, interval, made_on, origin, table
from qkv.comparison.ranking import SIGNIFICANT
from qkv.costs.cost import cost
from qkv.report.figures import fixed, short
from qkv.spec.recipes.comparison import factor_name

CLAIMS = {
    "simplified": "Simplified blocks train as well as plain ones, with 15 % fewer parameters (He & Hofmann 2024)",
    "depth_average": "Weighted averages over depth lower the loss at equal depth (Pagliardini et al. 2024)",
    "experts": "Experts lower the loss at equal parameters used by a position (Shazeer et al. 2017, Fedus et al. 2021)",
    "spatial_shift": "Spatial shifts instead of token-mixing networks are as good or better (Yu et al. 2022)",
    "monet": "A multilinear network without activation functions is as good as a Mixer (Cheng et al. 2024)",
    "mixer_without_activations": "Control: the same Mixer without activation functions",
}


def unused(name: str) -> dict[str, int]:
    """Number of parameters that one position leaves unused, by entry of the shipped comparison ``name``."""
    counted = {entry: cost(model) for entry, model in entry_models(name).items()}
    return {entry: found.parameters - found.active_parameters for entry, found in counted.items()}


def tested(results: Mapping[str, Any], idle: Mapping[str, int] | None) -> str:
    """Table of a comparison, and a sentence for each claim. idle: parameters that a position leaves unused."""
    rows = [row for row in results["entries"] if not row["failed"]]
    lines = [
        [
            row["name"],
            f"{row['parameters']:,}",
            *([] if idle is None else [f"{row['parameters'] - idle[row['name']]:,}"]),
            interval(row["mean"], row["interval"]),
            "" if row["difference"] is None else interval(row["difference"], row["difference_interval"], "+"),
            "" if row["p_corrected"] is None else f"{row['p_corrected']:.2g}",
            factor_name(row["rate"]),
            short(row["training_flops"]),
        ]
        for row in rows
    ]
    more = [] if idle is None else ["used by a position"]
    columns = ["model", "parameters", *more, results["metric"], "difference", "p (Holm)", "rate", "training FLOPs"]
    said = "\n".join(f"- {_verdict(row, rows[0], results)}" for row in rows if row["difference"] is not None)
    return f"{table(columns, lines)}\n{said}\n\n{origin(results)}\n"


def _verdict(row: Mapping[str, Any], baseline: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    claim, difference = CLAIMS.get(row["name"], row["name"]), row["difference"]
    fewer = row["parameters"] / baseline["parameters"] - 1
    sizes = "" if abs(fewer) < 0.01 else f"{100 * fewer:+.1f} % parameters, "
    measured = f"{sizes}{results['metric']} {interval(difference, row['difference_interval'], '+')}"
    if row["p_corrected"] is not None and row["p_corrected"] < SIGNIFICANT:
        better = (difference < 0) == results["lower_is_better"]
        return f"{claim}: {measured}, {'better' if better else 'worse'} than {results['baseline']} at the 5 % level."
    return f"{claim}: {measured}; no difference to {results['baseline']} is shown."


def scaling(results: Mapping[str, Any]) -> str:
    """Table of a scaling fit, its law and the check by a larger run."""
    (entry,) = results["entries"]
    lines = [
        [f"{run['parameters']:,}", short(run["tokens"]), "failed" if run["loss"] is None else fixed(run["loss"])]
        for run in [*entry["runs"], *([entry["larger"]] if entry["larger"] else [])]
    ]
    law = ", ".join(
        f"{name} = {short(value)} ({short(entry['ranges'][name][0])}–{short(entry['ranges'][name][1])})"
        for name, value in (entry["law"] or {}).items()
    )
    columns = ["parameters", "characters", results["metric"]]
    said = f"With intervals of 90 %: {law}. {' '.join(results['conclusions'])}"
    return f"{table(columns, lines)}\n{said}\n\n{made_on(results)}\n"


SECTIONS: dict[str, Section] = {
    "blocks": ("compare_blocks", lambda results: tested(results, unused("compare_blocks"))),
    "images": ("compare_images", lambda results: tested(results, None)),
    "scaling": ("compare_scaling", scaling),
}
