"""Tables of selected implementations with reasons and gains, as printed by ``qkv why``.

Measured choices can differ between processes and change the last bits of a result. Each run therefore has a separate
table, stores its ``snapshot()`` with the weights and calls ``restore()`` when it resumes. All other code in the process
shares one table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import asdict, dataclass
from statistics import median
from types import TracebackType

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from qkv.ops.selection import timing
from qkv.ops.selection.choices_cache import recall, remember
from qkv.system.world import ALONE, World


@dataclass(frozen=True)
class Choice:
    """Implementation (``twin``) selected for the operator ``op`` in a case (shape, precision), with the reason."""

    op: str
    case: str
    twin: str
    reason: str
    gain: float | None = None
    """Measured speed-up over torch's default or the other precision; None if not measured or if the default fails."""


NOISE = 1.1
"""Ratio of two single timings below which the difference may be noise."""

CLEAR = 2.0
"""Speed-up below which alternating runs must confirm it, since other load may have slowed one candidate."""

SMALLEST, WON = 1.02, 0.8
"""Condition for a confirmed speed-up: (minimum median of the time ratios, minimum fraction of ratios above 1).

The second condition is a sign test.
"""

Assumption = Callable[[str, str, Collection[str]], str | None]
"""Function (op, case, candidates if they would be timed) -> name of the implementation, or None to decide as usual."""


class ChoiceTable:
    """Selected implementations by (op, case). Each run has a table; all other code in the process shares one. Processes
    that train one run together use the choices that the first one measured.
    """

    def __init__(self, world: World = ALONE):
        self._world = world
        self.choices: dict[tuple[str, str], Choice] = {}

    @property
    def stored(self) -> ChoiceTable:
        """Table that stores choices: this one."""
        return self

    def choose(self, op: str, case: str, decide: Callable[[], Choice], among: Collection[str]) -> Choice:
        """Return the choice for (op, case), see ``choose``."""
        choice = self.choices.get((op, case))
        if choice is None:
            choice = self._world.agree(_measured(op, case, decide, among)) if among else decide()
            self.choices[op, case] = choice
        return choice

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Return a context manager in which each process decides alone, for work that differs between processes.

        At its end all take the choices that the others made; of one case, that of the first process that met it.
        """
        world, before = self._world, len(self.choices)
        self._world = ALONE
        try:
            yield
        finally:
            self._world = world
        if world.size > 1 and world.sum([len(self.choices) - before])[0]:
            for choices in reversed(world.gather(list(self.choices.items())[before:])):
                self.choices.update(choices)

    def aside(self) -> ChoiceTable:
        """Return the table for work that one process does while the others go on: a copy, whose new choices the others
        do not need; this table if there are no others.
        """
        if self._world.size == 1:
            return self
        copy = ChoiceTable()
        copy.choices.update(self.choices)
        return copy

    def snapshot(self) -> list[dict[str, object]]:
        """Return all choices as plain data, for ``restore``."""
        return [asdict(choice) for choice in self.choices.values()]

    def restore(self, saved: list[dict[str, object]]) -> None:
        """Restore the choices ``saved`` by ``snapshot`` in an earlier process."""
        for item in saved:
            choice = Choice(**item)  # type: ignore[arg-type]
            self.choices[choice.op, choice.case] = choice


class _AssumedTable(ChoiceTable):
    """Table that asks the function ``assumption`` for each choice and stores nothing, for cost counts and tests."""

    def __init__(self, assumption: Assumption, below: ChoiceTable):
        super().__init__()
        self._assumption, self._below = assumption, below

    @property
    def stored(self) -> ChoiceTable:
        """Table in use outside the assumption, which stores choices."""
        return self._below

    def choose(self, op: str, case: str, decide: Callable[[], Choice], among: Collection[str]) -> Choice:
        """Return the implementation that the assumption names; if it names none, call ``decide``."""
        twin = self._assumption(op, case, among)
        return decide() if twin is None else Choice(op, case, twin, "assumed")


_process = ChoiceTable()
_table: ContextVar[ChoiceTable] = ContextVar("table", default=_process)
_traced = _process
"""Latest table in use that stores choices, for the compiler, which cannot trace context variables."""


class using:
    """Context manager in which operations read and store choices in ``table``.

    It may be entered several times, also in other threads.
    """

    def __init__(self, table: ChoiceTable):
        self._table, self._before = table, list[tuple[Token[ChoiceTable], ChoiceTable]]()

    def __enter__(self) -> ChoiceTable:
        global _traced
        self._before.append((_table.set(self._table), _traced))
        _traced = self._table.stored
        return self._table

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _traced
        token, _traced = self._before.pop()
        _table.reset(token)


def table() -> ChoiceTable:
    """Return the table of choices in use: the current run's, or outside a run the process's."""
    return _traced if torch.compiler.is_compiling() else _table.get()


def assuming(assumption: Assumption) -> using:
    """Context manager: select implementations by ``assumption``, without timing or storing choices.

    Used to count costs and in measurements.
    """
    return using(_AssumedTable(assumption, table().stored))


def references() -> using:
    """Context manager: every operation is its reference implementation, or torch's own; nothing is timed or stored."""
    return assuming(_reference)


def _reference(op: str, case: str, among: Collection[str]) -> str | None:
    """Name the reference implementation of attention, and the first candidate of other operations."""
    return "reference" if op == "attention" else next(iter(among), None)


def by_reference() -> bool:
    """Return True while a model is exported; every operation then uses its reference implementation.

    In an export, sizes are symbolic, so that no choice can depend on them, and other libraries lack the faster
    operators.
    """
    return torch.compiler.is_exporting()


def chosen(op: str, case: str) -> Choice | None:
    """Return the earlier choice for (op, case), or None if there is none; takes 0.3 µs, for frequent calls."""
    return table().choices.get((op, case))


def choose(op: str, case: str, decide: Callable[[], Choice], among: Collection[str] = ()) -> Choice:
    """Return the choice for (op, case); call ``decide`` if there is none yet.

    among: names of the candidates, if ``decide`` measures them; a measured choice is also cached for later processes.
    """
    return table().choose(op, case, decide, among)


def _measured(op: str, case: str, decide: Callable[[], Choice], among: Collection[str]) -> Choice:
    fields = recall(op, case)
    if fields is not None and fields["twin"] in among:
        return Choice(op, case, **fields)
    # This may run inside activation checkpointing, whose hooks would save the trial's tensors as the model's, or inside
    # inference mode, which forbids the trial's backward pass.
    with torch.inference_mode(False), saved_tensors_hooks(_as_it_is, _as_it_is):
        choice = decide()
    if choice.gain is not None:
        remember(op, case, {"twin": choice.twin, "reason": choice.reason, "gain": choice.gain})
    return choice


def fastest(op: str, case: str, plain: str, runs: Mapping[str, Callable[[], object]], what: str) -> Choice:
    """Time ``runs`` by name and choose the fastest. A small lead over ``plain`` must be confirmed by alternating runs.

    ``what``: description of the timed work, for the reason. A candidate that raises RuntimeError is unavailable; if all
    candidates fail, RuntimeError is raised with the error of ``plain``.
    """
    race = timing.race(runs)
    if not race.seconds:
        raise RuntimeError(race.failed[plain])
    best = min(race.seconds, key=lambda name: race.seconds[name])
    reason = format_race(what, race)
    if plain in race.failed:
        return Choice(op, case, best, reason)
    gain = race.seconds[plain] / race.seconds[best]
    if 1 < gain < CLEAR:
        gain = _confirmed(timing.duel(runs[plain], runs[best]))
    return Choice(op, case, best, reason, gain) if gain > 1 else Choice(op, case, plain, reason, 1.0)


def _confirmed(ratios: list[float]) -> float:
    """Return the median of the sorted time ``ratios`` if they show a speed-up beyond chance (sign test), else 1."""
    middle = median(ratios)
    return middle if middle > SMALLEST and sum(ratio > 1 for ratio in ratios) >= WON * len(ratios) else 1.0


def format_race(what: str, race: timing.Race) -> str:
    """Format the times of all candidates, fastest first, and the errors of those that cannot run."""
    times = ", ".join(f"{name} {s * 1e3:.3g}" for name, s in sorted(race.seconds.items(), key=lambda item: item[1]))
    return "; ".join(
        [f"{what}, ms: {times}", *(f"{name} does not run here ({reason})" for name, reason in race.failed.items())]
    )


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def twin_of(op: str, case: str) -> str | None:
    """Return the name of the implementation chosen for (op, case) outside ``assuming``; None if none was chosen."""
    choice = table().stored.choices.get((op, case))
    return None if choice is None else choice.twin


def all_choices() -> list[Choice]:
    """Return all choices of the current run, or outside a run of the process, in the order in which they were made."""
    return list(table().stored.choices.values())
