"""A published family: its config as a spec, a spec as its config, and the names of its tensors as a literal table that reads both ways."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from torch import nn

from qkv.interop.config import Config
from qkv.interop.ways import PLAIN, Cut, Way, cut_of
from qkv.spec.base import problems_of
from qkv.spec.errors import SpecError, UserError, nearest
from qkv.spec.heads import Head
from qkv.spec.model import Model

Reasons = Mapping[str, str]
"""Why what is named is ignored."""


class Row(NamedTuple):
    """One line of a name table. ``{i}`` is the number of a layer, and ``*`` is ``weight`` or ``bias``, on both sides the same; in theirs
    ``{i-1}`` is the number before it.

    A row holds where the model has ``ours``: a bias that a model lacks needs no row of its own. With ``where`` it holds only for specs
    of which that is true, for families that name one thing in two ways; the first row that holds is taken.
    """

    ours: str
    theirs: str | tuple[str, ...]
    way: Way = PLAIN
    where: Callable[[Model], bool] | None = None


@dataclass(frozen=True)
class Architecture:
    """What one name under ``architectures`` stands for: a head, the config's keys about it, and its names."""

    head: Callable[[Config], Head]
    config: Callable[[Head], dict[str, Any] | None]
    """The inverse of ``head``: the keys that give this head; None if none do."""
    names: tuple[Row, ...] = ()
    ignored: Reasons = field(default_factory=dict)
    """Names of tensors that this architecture's files may hold and that nothing here needs."""
    kept: Reasons = field(default_factory=dict)
    """Names of tensors that are ignored too, and written again as they were read."""
    zeros: Reasons = field(default_factory=dict)
    """Names of tensors that are ignored where every number in them is 0, and refused where not."""
    bare: bool = False
    """True if it is the body alone, whose names are written without the family's prefix."""
    typical: Mapping[str, Any] = field(default_factory=dict)
    """Keys that published configs of this architecture say otherwise than the family's."""


@dataclass(frozen=True)
class Family:
    """``spec`` and ``config`` are inverse: ``config(spec)`` is None, or keys of which ``spec`` makes the same model again."""

    name: str
    model_types: tuple[str, ...]
    architectures: Mapping[str, Architecture]
    """The first one stands for a config that names none."""
    spec: Callable[[Config, Head], Model]
    config: Callable[[Model], dict[str, Any] | None]
    names: tuple[Row, ...]
    prefix: str = ""
    """What stands before the body's names in a file of a model with a head; files of the body alone, and old ones, go without."""
    ignored: Reasons = field(default_factory=dict)
    ignored_config: Reasons = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a config lacks, as the published config class has them, where ``spec`` names none or another one."""
    typical: Mapping[str, Any] = field(default_factory=dict)
    """Keys that published configs of the family say otherwise than the default."""
    copies: Callable[[Model], Mapping[str, str]] = field(default=lambda spec: {})
    """Names under which the published library reads a shared tensor once more, each with the name that it is written under."""
    older: Mapping[str, str] = field(default_factory=dict)
    """Parts of names as old files write them, and as they are written now."""

    def rows(self, architecture: str) -> tuple[Row, ...]:
        """The table of body and head."""
        return (*self.names, *self.architectures[architecture].names)

    def written(self, architecture: str) -> tuple[Row, ...]:
        """The table of the files that are written."""
        rows = self.rows(architecture)
        return without_prefix(self, rows) if self.architectures[architecture].bare else rows

    def written_name(self, architecture: str, name: str) -> str:
        """As a file that is written has it."""
        return name.removeprefix(self.prefix) if self.architectures[architecture].bare else name

    def kept(self, architecture: str) -> Reasons:
        """What such a file may hold beside the model, by the names that it has there."""
        return {self.written_name(architecture, name): reason for name, reason in self.architectures[architecture].kept.items()}


@dataclass(frozen=True)
class Match:
    """One tensor of a model, the names under which a file holds it, and how they are one another."""

    ours: str
    theirs: tuple[str, ...]
    way: Way
    cut: Cut


def matches(model: nn.Module, rows: Sequence[Row]) -> list[Match]:
    """What the table says of each tensor of ``model``, every name of a shared one included. Raises ``LookupError`` for one without a row."""
    spec: Any = getattr(model, "spec", None)
    patterns = [(re.compile(_pattern(row.ours)), row) for row in rows if row.where is None or row.where(spec)]
    found = []
    for name in model.state_dict(keep_vars=True):
        hit = next(((match, row) for pattern, row in patterns if (match := pattern.fullmatch(name))), None)
        if hit is None:
            raise LookupError(f"no row of the name table stands for {name!r}")
        match, row = hit
        theirs = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
        owner = model.get_submodule(name.rsplit(".", 2)[0]) if name.count(".") > 1 else model
        found.append(Match(name, tuple(_filled(each, match.groupdict()) for each in theirs), row.way, cut_of(owner)))
    return found


def _pattern(ours: str) -> str:
    escaped = re.escape(ours).replace(r"\{i\}", r"(?P<i>\d+)")
    return escaped.replace(r"\*", "(?P<leaf>weight|bias)")


def _filled(theirs: str, groups: Mapping[str, str]) -> str:
    numbered = re.sub(r"\{i(-\d+)?\}", lambda found: str(int(groups["i"]) + int(found[1] or 0)), theirs)
    return numbered.replace("*", groups.get("leaf", "*"))


T = TypeVar("T")


def named_as_now(family: Family, stored: Mapping[str, T]) -> dict[str, T]:
    """``stored`` with the names of old files as they are written now; one whose new name is there too keeps its own."""
    found: dict[str, T] = {}
    for name, tensor in stored.items():
        now = functools.reduce(lambda so_far, pair: so_far.replace(*pair), family.older.items(), name)
        found[name if now in stored else now] = tensor
    return found


def without_prefix(family: Family, rows: Iterable[Row]) -> tuple[Row, ...]:
    """The table of a file that holds the body's names bare."""

    def bare(name: str) -> str:
        return name.removeprefix(family.prefix)

    return tuple(row._replace(theirs=bare(row.theirs) if isinstance(row.theirs, str) else tuple(map(bare, row.theirs))) for row in rows)


def reason_for(name: str, reasons: Reasons) -> str | None:
    """Why a tensor of a file is ignored; None if it may not be. ``{i}`` is any number, ``*`` any text."""
    for pattern, reason in reasons.items():
        if re.fullmatch(re.escape(pattern).replace(r"\{i\}", r"\d+").replace(r"\*", ".*"), name):
            return reason
    return None


def choose(families: Iterable[Family], config: Config) -> tuple[Family, str]:
    """The family and the architecture that a config names. Raises ``UserError`` that names the nearest known."""
    by_type = {name: family for family in families for name in family.model_types}
    family: Family = config.word("model_type", allowed=by_type)
    named = config.items("architectures")
    architecture = str(named[0]) if named else next(iter(family.architectures))
    if architecture not in family.architectures:
        raise UserError(
            f"{config.source}: the architecture {architecture!r} is not known for {family.name}; {nearest(architecture, family.architectures)}"
        )
    return family, architecture


def read_spec(family: Family, architecture: str, config: Config) -> Model:
    """The spec of a config, every key used or ignored for a reason. Raises ``UserError``."""
    config.assume(family.defaults)
    try:
        spec = family.spec(config, family.architectures[architecture].head(config))
    except ValidationError as error:
        raise SpecError(problems_of(error, Model), config.source) from None
    config.finish({**COMMON, **family.ignored_config})
    return spec


def ignored_keys(family: Family, config: Config) -> Iterator[tuple[str, str]]:
    """(key, reason) of what the config holds and ``read_spec`` had no use for."""
    reasons = {**COMMON, **family.ignored_config}
    for key in sorted(config.values.keys() - config.asked):
        yield key, reasons[key]


COMMON: Reasons = {
    **dict.fromkeys(("transformers_version", "_name_or_path", "_commit_hash", "name_or_path"), "says where the file comes from"),
    **dict.fromkeys(("torch_dtype", "dtype"), "the files of weights say their own precision"),
    **dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id"), "the tokenizer says it"
    ),
    **dict.fromkeys(("use_cache", "output_attentions", "output_hidden_states", "return_dict", "torchscript"), "how a call answers"),
    **dict.fromkeys(("gradient_checkpointing", "pretraining_tp", "attn_implementation", "_attn_implementation"), "how it is computed"),
    **dict.fromkeys(("task_specific_params", "finetuning_task", "max_length", "do_sample"), "settings of generation and of tasks"),
    **dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"), "names of classes; read where the head has some"),
    "architectures": "read to choose the head",
    "model_type": "read to choose the family",
    "auto_map": "code of others, which is never run",
    "is_encoder_decoder": "the family says it",
    "chunk_size_feed_forward": "how it is computed",
}
"""Keys of any config that change nothing of what a model computes. A quantization_config is not among them."""
