"""Random specs of tiny models, drawn from the register: the kinds of every slot, the types and bounds of every field.

A part that is registered under ``qkv.`` is drawn without a word here. ``model(chance)`` gives a spec that parses; the
same state of ``chance`` (a ``random.Random``) gives the same spec.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from qkv.spec.base import Part, Spec
from qkv.spec.branches import Branch, Masked
from qkv.spec.errors import SpecError
from qkv.spec.files.plain import is_slot
from qkv.spec.heads import Head
from qkv.spec.masks import Causal, Mask, Prefix, Window
from qkv.spec.model import Block, Encoder, Frontend, Latents, Model, Queries, Text
from qkv.spec.models.segmentation import Segmentation
from qkv.spec.parts import Axial, NoPositions, Norm, Positions

S = TypeVar("S", bound=Spec)

FORMS = ("decoder", "prefix", "encoder", "encoder_decoder", "latents", "segmented", "bag")
"""decoder: no position sees a later one.   prefix: none behind a row's own prefix does.
encoder: positions may see all.   encoder_decoder: a second stack is read.
latents: these read the input.   segmented: a decoder that reads segments.   bag: no block at all."""
DECODING = ("decoder", "prefix", "encoder_decoder", "segmented")
"""Forms of which each model decodes."""

INTEGERS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 20)
FLOATS = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0, 1.5, 2.0, 8.0, 100.0)
WIDTHS = (4, 6, 7, 8, 9, 12, 16, 24)
TRIES = 400


class Exhausted(AssertionError):
    """The register holds something of which no valid spec was found."""


def seeded(seed: int) -> random.Random:
    """The source of the spec with this number."""
    return random.Random(f"qkv {seed}")


def model(chance: random.Random, form: str | None = None) -> Model:
    """A valid model of a form, of any one by default."""
    form = form or chance.choice(FORMS)
    return _until(lambda: _model(chance, form), lambda found: _is(found, form), f"a model of the form {form}")


def part(chance: random.Random, slot: type[Part], depth: int = 2) -> Part:
    """A valid part of a slot, each kind equally likely."""
    return _until(
        lambda: _of_kind(chance, _kind(chance, slot, depth), depth), lambda _: True, f"a part of {slot.__name__}"
    )


OF_ONE_WIDTH = ("rope_axes",)
"""Parts whose sizes must add up to the width of a head, which no draw does: tests/layers/test_rope_axes.py."""

Masks = Callable[[random.Random], Mask]


def branch(
    chance: random.Random,
    width: int,
    fits: Callable[[Branch], bool],
    masks: Masks | None = None,
    of: type[Branch] = Branch,
) -> Branch:
    """A branch of a model of this width, of a class; ``masks`` draws the mask of those that have one."""

    def drawn() -> Branch:
        kind = chance.choice([kind for kind in kinds(Branch) if issubclass(kind, of)])
        mask = {"mask": masks(chance)} if masks and issubclass(kind, Masked) else {}
        return kind.parse({**fields(chance, kind), **mask})

    return _until(drawn, lambda found: fits(found) and not found.width_problems(width), f"a branch of width {width}")


def causal(chance: random.Random) -> Mask:
    """A mask under which no position sees a later one."""
    other = part(chance, Mask)
    return chance.choice([Causal(), Causal() & other, other & Causal()])


def prefixed(chance: random.Random) -> Mask:
    """A mask under which the positions of a row's prefix see each other."""
    found = Causal() | Prefix()
    return chance.choice([found, found & Window(size=5), Prefix() | Causal()])


def fields(chance: random.Random, spec: type[Spec], depth: int = 2) -> dict[str, Any]:
    """Values for a spec's fields: the needed ones, each other with a chance of 1/3, or 2/3 where a part fills it."""
    found: dict[str, Any] = {}
    for name, field in spec.model_fields.items():
        if field.is_required() or chance.random() < (
            2 / 3 if any(isinstance(leaf, type) and is_slot(leaf) for leaf in _leaves(field.annotation)) else 1 / 3
        ):
            value = _value(chance, field.annotation, tuple(field.metadata), depth - 1)
            if value is not _LEAVE_OUT:
                found[name] = value
    return found


def kinds(slot: type[Part]) -> list[type[Part]]:
    """The parts of a slot that the package registers, by name, as a seed has one model whatever was imported before it;
    not the tests' own, nor those of grids or of fixed rows.
    """
    own = (kind for kind in slot.kinds().values() if kind.__module__.startswith("qkv."))
    return [
        kind
        for kind in sorted(own, key=lambda kind: kind.kind)
        if getattr(kind, "axes", 1) == 1 and not getattr(kind, "fixed_rows", False) and kind.kind not in OF_ONE_WIDTH
    ]


def _until(draw: Callable[[], S], fits: Callable[[S], bool], what: str) -> S:
    for _ in range(TRIES):
        try:
            found = draw()
        except SpecError:
            continue
        if fits(found):
            return found
    raise Exhausted(f"{what}: none of {TRIES} was valid")


def _is(spec: Model, form: str) -> bool:
    fits = {"decoder": spec.causal, "prefix": not spec.causal}.get(form, True)
    return fits and (spec.decodes or form not in DECODING)  # a front end may read whole rows


def _model(chance: random.Random, form: str) -> Model:
    width = chance.choice(WIDTHS)
    data = {
        "width": width,
        "context_length": chance.choice([1, 5, 12, 16]),
        "frontend": _frontend(chance, width, latents=form == "latents"),
        "head": _head(chance),
        "init_std": chance.choice([0.02, 0.1, 0.5]),
        **_FORMS[form](chance, width),
    }
    return Model.parse(data)


def _frontend(chance: random.Random, width: int, latents: bool = False) -> Frontend:
    def drawn() -> Frontend:
        data = {**fields(chance, Text), "vocab_size": chance.randint(3, 40)}
        data["width"] = chance.choice([None, width, *WIDTHS]) if latents else None
        return Text.parse(
            data | ({"positions": _positions(chance, data["width"] or width)} if "positions" in data else {})
        )

    return _until(drawn, lambda _: True, "a front end")


def _positions(chance: random.Random, width: int) -> Positions:
    """Any kind; the axes of a grid side by side, where it says their widths, have those of a sum."""
    found = part(chance, Positions)
    if isinstance(found, Axial) and found.widths:
        first = chance.randint(1, width - 1)
        return found.changed(shape=(4, 5), widths=(first, width - first))
    return found  # type: ignore[return-value]


OF_OTHER_SIGNALS = ("contrastive", "matching", "speech_codes", "spectrum_decoder", "wave_decoder")
"""Heads that read what only their own front ends have, such as latent vectors of sounds, or an encoder."""


def _head(chance: random.Random) -> Head:
    def drawn() -> Head:
        kind = _kind(chance, Head, 2)
        while kind.kind in OF_OTHER_SIGNALS:
            kind = _kind(chance, Head, 2)
        sizes = {"num_classes": chance.randint(1, 5), "blank": 0}
        return kind.parse(fields(chance, kind) | {name: n for name, n in sizes.items() if name in kind.model_fields})  # type: ignore[return-value]

    return _until(drawn, lambda _: True, "a head")


def _block(chance: random.Random, branches: list[Branch]) -> Block:
    def drawn() -> Block:
        data = {**fields(chance, Block), "branches": branches, "merge": None}  # of grids, which no text has
        norms = data.get("norms")
        return Block.parse(data | ({"norms": [*norms, *norms, *norms][: len(branches)]} if norms else {}))

    return _until(drawn, lambda _: True, "a block")


def _layers(
    chance: random.Random, width: int, fits: Callable[[Branch], bool], masks: Masks | None = None, reads: bool = False
) -> dict[str, Any]:
    """Pattern, number of layers and final norm; ``reads``: its first branch reads a memory."""
    pattern = []
    for number in range(chance.choice([1, 1, 2, 3])):
        found = [branch(chance, width, fits, masks) for _ in range(chance.choice([1, 2, 2, 3]))]
        if reads and not number:
            found[chance.randrange(len(found))] = branch(chance, width, lambda b: b.reads_memory)
        pattern.append(_block(chance, found))
    if any(block.reversible for block in pattern):
        pattern = [block for block in pattern if block.reversible]
    more = {} if chance.random() < 0.5 else {"num_layers": len(pattern) + chance.randint(0, 2)}
    return {"blocks": pattern, "norm": part(chance, Norm), **more}


def _alone(b: Branch) -> bool:
    return not b.reads_memory


def _prefixed(b: Branch) -> bool:
    return b.decodes and not b.reads_memory


def _decoder(chance: random.Random, width: int) -> dict[str, Any]:
    return _layers(chance, width, lambda b: b.causal and _alone(b), masks=causal)


def _segmented(chance: random.Random, width: int) -> dict[str, Any]:
    found = _layers(chance, width, lambda b: b.causal and _alone(b) and not b.reads_types, masks=causal)
    return {**found, "segmentation": part(chance, Segmentation)}


def _prefix(chance: random.Random, width: int) -> dict[str, Any]:
    found = _layers(chance, width, _prefixed, causal)
    last = _block(chance, [branch(chance, width, lambda b: b.reads_prefix, prefixed, Masked)])
    found.pop("num_layers", None)
    return {**found, "blocks": [*found["blocks"], last]}


def _encoder_decoder(chance: random.Random, width: int) -> dict[str, Any]:
    read = {
        "frontend": _frontend(chance, width),
        "context_length": chance.choice([5, 16]),
        **_layers(chance, width, _alone),
    }
    read |= {name: value for name, value in fields(chance, Encoder).items() if name in ("memory", "share_embedding")}
    return {"encoder": Encoder.parse(read), **_layers(chance, width, lambda b: b.causal, masks=causal, reads=True)}


def _latents(chance: random.Random, width: int) -> dict[str, Any]:
    own = chance.choice([None, width, *WIDTHS])
    reading = _layers(chance, own or width, lambda b: True, reads=True)
    latents = {"count": chance.randint(1, 5), "width": own, "rounds": chance.choice([1, 1, 2]), **reading}
    found: dict[str, Any] = {"latents": latents, "blocks": []}
    if chance.random() < 0.7:
        found |= _layers(chance, width, lambda b: True, reads=True)
        positions = _positions(chance, width)
        if chance.random() < 0.7 and not isinstance(positions, NoPositions):
            found["queries"] = Queries.parse({"count": chance.choice([None, 1, 3]), "positions": positions})
    latents["once"] = chance.choice([0, 0, 1])
    Latents.parse(latents)
    return found


_FORMS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "decoder": _decoder,
    "prefix": _prefix,
    "encoder": lambda chance, width: _layers(chance, width, _alone),
    "encoder_decoder": _encoder_decoder,
    "latents": _latents,
    "segmented": _segmented,
    "bag": lambda chance, width: {"blocks": [], "norm": _layers(chance, width, _alone)["norm"]},
}


class _LeaveOut:
    """No value: the field keeps its default."""


_LEAVE_OUT = _LeaveOut()


def _kind(chance: random.Random, slot: type[Part], depth: int) -> type[Part]:
    return chance.choice([kind for kind in kinds(slot) if depth > 0 or not _holds(kind, slot)])


def _of_kind(chance: random.Random, kind: type[S], depth: int) -> S:
    return kind.parse(fields(chance, kind, depth))


@cache
def _holds(kind: type[Part], slot: type[Part]) -> bool:
    return any(slot in _leaves(field.annotation) for field in kind.model_fields.values())


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for arg in inner for leaf in _leaves(arg)] if inner else [annotation]


def _value(chance: random.Random, annotation: Any, bounds: tuple[Any, ...], depth: int) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(chance, inner[0], (*bounds, *inner[1:]), depth)
    if origin in (Union, UnionType):
        return _value(chance, chance.choice(inner), bounds, depth)
    if origin is Literal:
        return chance.choice(inner)
    if origin is tuple:
        least = max((bound.min_length for bound in bounds if hasattr(bound, "min_length")), default=0)
        return [_value(chance, inner[0], (), depth) for _ in range(chance.randint(least, max(least, 2)))]
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        if is_slot(annotation):
            return part(chance, annotation, depth)  # type: ignore[type-var]
        return _of_kind(chance, annotation, depth)
    return _scalar(chance, annotation, bounds)


def _scalar(chance: random.Random, annotation: Any, bounds: tuple[Any, ...]) -> Any:
    if annotation is type(None):
        return None
    if annotation is bool:
        return chance.random() < 0.5
    if annotation in (int, float):
        values = [value for value in (INTEGERS if annotation is int else FLOATS) if inside(value, bounds)]
        return chance.choice(values) if values else _LEAVE_OUT
    return _LEAVE_OUT  # texts name files and columns


def inside(value: float, bounds: tuple[Any, ...]) -> bool:
    """True if the bounds of a field (``annotated_types``) let a number through."""
    tests = {
        "gt": lambda b: value > b,
        "ge": lambda b: value >= b,
        "lt": lambda b: value < b,
        "le": lambda b: value <= b,
    }
    return all(test(getattr(bound, name)) for bound in bounds for name, test in tests.items() if hasattr(bound, name))
