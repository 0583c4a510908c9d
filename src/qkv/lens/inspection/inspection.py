"""Inspection of a model on one input: views, each computed at its first use, as data and as a page."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from qkv.layers.linear.quantized import QuantizedLinear
from qkv.lens.inspection.packing import ArrayBlock
from qkv.lens.inspection.reading import read_input, read_row
from qkv.lens.inspection.subject import AblatedHead, Subject
from qkv.lens.inspection.views import VIEWS
from qkv.lens.views.places import list_branches
from qkv.models.edit.quantize import widened
from qkv.report.inspection.page import inspection_page
from qkv.report.markup import tag
from qkv.runs.run import Run, task_of
from qkv.runs.storage.files import clear_errors
from qkv.system.errors import UserError, nearest
from qkv.system.files import write_file

_LONGEST = 2048
"""Number of positions that a model without a limit of its own may have, if it was not made for more."""


@dataclass(frozen=True)
class Inspection:
    """Inspection of a model on one input; notebooks show its page.

    ``subject``: model, input, and the heads that are taken out.   ``title``: name of the model and the input.
    ``row``, ``answer``: input as it was given, see ``inspect_run``.
    """

    subject: Subject
    title: str
    row: Mapping[str, Any] | int
    answer: str | None = None
    _views: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def view(self, name: str) -> Mapping[str, Any]:
        """Compute a view, one of ``VIEWS``, once: ``data``, and ``block`` with its arrays (see ``ArrayBlock``); or
        ``refused``, a sentence why the model has no such view. Raises ``UserError`` for another name.
        """
        if name not in VIEWS:
            raise UserError(f"views: {name!r} given; {nearest(name, VIEWS)}")
        if name not in self._views:
            block = ArrayBlock()
            try:
                with self.subject.edited():
                    self._views[name] = {"data": VIEWS[name](self.subject, block), "block": block.text()}
            except UserError as error:
                self._views[name] = {"refused": str(error)}
        return self._views[name]

    @cached_property
    def sides(self) -> dict[str, dict[str, Any]]:
        """Fields of ``Side`` by name of each stack that reads an input."""
        return {
            name: {each.name: getattr(side, each.name) for each in fields(side)}
            for name, side in self.subject.read.sides.items()
        }

    def plain(self, views: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the title, the sides and the views (default: all) as plain data."""
        return {
            "title": self.title,
            "sides": self.sides,
            "ablated": [[head.path, head.number] for head in self.subject.ablated],
            "order": list(VIEWS),
            "views": {name: self.view(name) for name in (VIEWS if views is None else views)},
        }

    def page(self, views: Iterable[str] | None = None, row: Mapping[str, Any] | None = None) -> str:
        """Return a self-contained HTML page with the views (default: all).

        ``row``: input that the page of a server lets a person change; None for a page that stands alone.
        """
        return inspection_page({**self.plain(views), "row": row})

    def save(self, path: str | Path, views: Iterable[str] | None = None) -> Path:
        """Write the page to a file and return its path. Raises ``UserError`` if it cannot be written."""
        with clear_errors(str(path)):
            write_file(Path(path), self.page(views).encode())
        return Path(path)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the page in a frame."""
        style = "width:100%;height:780px;border:0"
        return tag("iframe", srcdoc=self.page(), style=style, title=self.title)


def inspect_run(
    run: Run,
    row: Mapping[str, Any] | int,
    answer: str | None = None,
    ablated: Sequence[tuple[str, int]] = (),
    position: int | None = None,
    over: str | None = None,
) -> Inspection:
    """Read one input and return its inspection, of which nothing is computed yet.

    ``row``: inputs of the run's task by name, or the number of a row of the run's held-out data. ``answer``: text that
    an encoder–decoder writes; by default its own. ``ablated``: (path of a branch, number of a head) of heads that are
    taken out. ``position``: position whose prediction is explained; by default the last one, or the gap of a text.
    ``over``: text over which neurons are read; by default held-out rows of the run.

    Quantised weights are computed with in fp32. Raises ``UserError``.
    """
    if any(isinstance(module, QuantizedLinear) for module in run.model.modules()):
        # Products with narrow weights round the activations too, which gradients and sums of parts do not survive.
        run = replace(run, model=widened(copy.deepcopy(run.model)))
    heads = tuple(_head(run, each) for each in ablated)
    read = read_row(run, row) if isinstance(row, int) else read_input(run, row, answer)
    count, limit = len(read.sides["model"].labels), run.model.spec.position_limit
    if count > (limit or max(_LONGEST, run.recipe.model.context_length)):
        what = f"the model reads {limit:,}" if limit else f"views show at most {_LONGEST:,}"
        raise UserError(f"the input has {count:,} positions, and {what}; give a shorter one")
    if position is not None:
        if not isinstance(position, int) or not -count <= position < count:
            raise UserError(f"position: {position!r} given, but the input has {count:,} positions, counted from 0")
        read = replace(read, position=position)
    return Inspection(Subject(run, read, heads, over), _title(run, row), row, answer)


def _head(run: Run, head: Any) -> AblatedHead:
    """Return a head. Raises ``UserError`` for one that the model does not have."""
    if not isinstance(head, (tuple, list)) or len(head) != 2 or not isinstance(head[1], int):
        raise UserError(f'ablate: {head!r} given, but a head is a pair such as ("blocks.0.branches.0", 3)')
    path, number = head
    branches = list_branches(run.model, lambda b: "head_outputs" in b.points() and hasattr(b.spec, "num_heads"))
    heads = {str(branch.name): cast("Any", branch.spec).num_heads for _, branch in branches}
    if path not in heads:
        raise UserError(f"ablate: the model has no branch {path!r} with heads; {nearest(path, heads)}")
    if not 0 <= number < heads[path]:
        raise UserError(f"ablate: {path} has the heads 0 to {heads[path] - 1}; {number} given")
    return AblatedHead(path, number)


def _title(run: Run, row: Mapping[str, Any] | int) -> str:
    name = run.folder.name or str(run.folder)
    if isinstance(row, int):
        return f"{name}: row {row:,} of the held-out data"
    return f"{name}, {task_of(run).spec.kind.replace('_', ' ')}"
