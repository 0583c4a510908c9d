"""Costs as tables, for the command line and notebooks."""

from __future__ import annotations

from qkv.costs.cost import Cost
from qkv.costs.measuring.machine import Machine, stored_machine, usable_memory
from qkv.report.figures import short, size
from qkv.report.fragment import tables_fragment


def cost_html(counted: Cost) -> str:
    """Build the HTML of a cost for a notebook, with speeds if this machine was measured."""
    tables = [(PARTS, parts(counted)), (["quantity", "value"], quantities(counted, stored_machine()))]
    return tables_fragment(title("Cost", counted), tables)


def title(name: str, counted: Cost) -> str:
    """Build the title of the tables: name, size of the model, and the counted rows and positions."""
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


PARTS = ["part", "parameters", "FLOPs, forward", "kept for backward"]
"""Column titles of the table of parts."""


def parts(counted: Cost) -> list[list[object]]:
    """Build the table of a model's parts, and their total."""
    named = [*counted.parts.items(), ("total", counted.total)]
    return [[name.replace("_", " "), part.parameters, short(part.flops), size(part.saved)] for name, part in named]


def quantities(counted: Cost, machine: Machine | None) -> list[tuple[str, str]]:
    """Build the table of FLOPs, memory and estimated speed on ``machine``, as text."""
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
        *([("parameters that one position uses", f"{counted.active_parameters:,}")] if counted.total.idle else []),
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
