"""Loading of a published checkpoint as a model built of qkv's parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.interop.adapters.read import StoredAdapter
from qkv.interop.checkpoint import PublishedCheckpoint, open_checkpoint
from qkv.interop.files.divided import divide_rows
from qkv.interop.files.folder import Stored, held_by
from qkv.interop.files.mapped import watch
from qkv.interop.files.places import CONFIG
from qkv.interop.files.safetensors_file import Entry, in_place
from qkv.interop.files.slices import with_slices
from qkv.interop.images import read_processor, sized_for
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family, ignored_keys, named_as_now, read_spec, without_prefix
from qkv.interop.mapping.names import Match, Reasons, matches, reason_for
from qkv.interop.mapping.narrow import convert_inward, narrow_of
from qkv.interop.registry import choose
from qkv.interop.sounds import read_sound_processor
from qkv.interop.writing import answering, beginning, going_on, unused_settings
from qkv.models.edit.assign import Place, place, places_of
from qkv.models.edit.quantize import can_hold_packed, hold_packed
from qkv.models.transformer import Transformer
from qkv.ops.quantized.packed import PackedMatrix
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.system.allocator import apart_from_kept_memory
from qkv.system.allowance import limit_threads
from qkv.system.errors import UserError, nearest
from qkv.tokenizers.folder import file_of_target, holds_tokenizer
from qkv.tokenizers.gguf.file import is_gguf
from qkv.tokenizers.tokenizer import Tokenizer

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class PublishedModel:
    """Loaded checkpoint in Hugging Face or GGUF format: model, tokenizer, settings, and ignored tensors and keys.

    ``tokenizer`` is None if the folder has none; ``target_tokenizer`` is that of targets if it is another one;
    ``labels`` is empty if the config names no classes. ``used`` is the number of tensors loaded. ``ignored`` and
    ``ignored_config`` list (name, reason) of tensors and config keys that were not loaded; ``kept`` contains the
    ignored tensors that an export writes back, by published name, and ``kept_config`` the keys of the config that go
    with them. ``begin``: ids with which the decoder of an
    encoder–decoder starts. ``adapter``: PEFT adapter that was merged into the weights. ``processor``: processor of
    images or sounds from ``preprocessor_config.json``, or None. ``forms``: number of quantised tensors by the name of
    their format in the file, such as "Q4_1".
    """

    folder: Path
    family: str
    architecture: str
    model: Transformer
    tokenizer: Tokenizer | None
    sample: Generation
    labels: tuple[str, ...]
    used: int
    ignored: tuple[tuple[str, str], ...]
    ignored_config: tuple[tuple[str, str], ...]
    begin: tuple[int, ...] = ()
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    adapter: StoredAdapter | None = None
    processor: Processor | None = None
    target_tokenizer: Tokenizer | None = None
    forms: Mapping[str, int] = field(default_factory=dict)
    kept_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Model:
        """Spec of the loaded model."""
        return self.model.spec

    @property
    def quantization(self) -> str:
        """Numbers of quantised tensors in the file by format, as text for people; "" if there are none."""
        several = ", ".join(f"{count} as {form}" for form, count in sorted(self.forms.items()))
        return several and f"{several}; 'generate', 'chat' and 'serve' keep them in 8 and 4 bits"


def load_published(
    source: str | Path,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    pickles: bool = False,
    copy: bool = False,
    narrow: bool = False,
) -> PublishedModel:
    """Load the checkpoint in a local folder or GGUF file or, if there is none, the published model of that name.

    ``dtype``: "fp32", "bf16", "fp16" or a torch dtype; default: the dtype of most elements in the files. ``revision``:
    branch, tag or commit of a published model. ``pickles``: if there are no safetensors files, read tensors (and
    nothing else) from ``pytorch_model.bin``. Peak memory while loading is the weights plus a few tensors.

    Tensors of safetensors files are memory-mapped if ``dtype`` leaves them as stored: read on first use and never
    written back. A matrix stored (in, out) becomes a transposed view. If the file is modified or truncated later, the
    next call of the model raises ``UserError``. ``copy`` reads everything into memory instead, contiguous; this is
    always done on Windows, where a mapped file cannot be renamed.

    ``narrow``: keep matrices and tables that a file stores in 8 bits or less in 8 or 4 bits; the model is then for
    inference on the CPU only. ``qkv.interop.gguf.blocks`` states the rounding. By default they are converted to fp32.
    Raises ``UserError``.
    """
    return read_published(open_checkpoint(source, revision, pickles), dtype, pickles, copy, narrow)


def read_published(
    checkpoint: PublishedCheckpoint,
    dtype: torch.dtype | str | None = None,
    pickles: bool = False,
    copy: bool = False,
    narrow: bool = False,
) -> PublishedModel:
    """Load an opened checkpoint; see ``load_published``. Raises ``UserError``."""
    limit_threads()
    folder = checkpoint.folder
    stored = checkpoint.tensors(pickles, copy)
    config = checkpoint.config(held_by(stored))
    family, architecture = choose(config)
    family = family.in_gguf if is_gguf(folder) else family
    stored = named_as_now(family, stored)
    spec = read_spec(family, architecture, config)
    processor = read_processor(folder, spec) or read_sound_processor(folder, spec) or spec.frontend.own_processor
    model, precision = _empty(sized_for(spec, processor), folder), _precision(dtype, stored)
    with apart_from_kept_memory():
        ignored = fill(model, family, architecture, stored, precision, Origin(folder, checkpoint.names()), narrow)
    _watch(model, stored)
    tokenizer = _tokenizer(checkpoint.tokenizer_folder, family.template)
    return PublishedModel(
        folder,
        family.name,
        architecture,
        model.eval(),
        tokenizer,
        answering(folder, config) if model.encoder is not None else going_on(folder, tokenizer, config),
        labels_of(config) or _numbered(model.spec),
        len(stored) - len(ignored),
        tuple(ignored),
        (*ignored_keys(family, config), *unused_settings(folder, config)),
        beginning(folder, config) if model.encoder is not None else (),
        _read_extra(family, architecture, stored, precision),
        checkpoint.adapter,
        processor,
        None if (target := file_of_target(checkpoint.tokenizer_folder)) is None else Tokenizer.load(target),
        Counter(form for tensor in stored.values() if (form := getattr(tensor, "form", ""))),
        {key: config.values[key] for key in family.architectures[architecture].kept_config if key in config.values},
    )


def described(source: str | Path, revision: str | None = None) -> tuple[Transformer, Family, str]:
    """Return (model on the meta device, family, architecture name) of a published checkpoint, without reading weights.

    ``source``: folder or published name. Raises ``UserError``.
    """
    checkpoint = open_checkpoint(source, revision)
    family, architecture = checkpoint.family()
    return _empty(read_spec(family, architecture, checkpoint.config()), checkpoint.folder), family, architecture


def _empty(spec: Model, folder: Path) -> Transformer:
    """Build a model on the meta device, without memory; errors name the config in ``folder``."""
    try:
        with torch.device("meta"):
            return Transformer(spec)
    except (RuntimeError, OverflowError) as error:
        raise UserError(
            f"{folder / CONFIG} gives sizes that no tensor can have: {str(error).splitlines()[0]}"
        ) from None


class Origin(NamedTuple):
    """Checkpoint in error messages: its path, and names in it by published name, where they differ."""

    path: Path
    names: Mapping[str, str]

    def __str__(self) -> str:
        return str(self.path)

    def stored_name(self, name: str) -> str:
        """Return the name in the checkpoint of the tensor with the published name ``name``."""
        return self.names.get(name, name)


def fill(
    model: nn.Module,
    family: Family,
    architecture: str,
    stored: Mapping[str, Stored],
    dtype: torch.dtype | None,
    source: Origin,
    narrow: bool = False,
) -> list[tuple[str, str]]:
    """Load the stored tensors into ``model`` one by one; return (name, reason) of each tensor that is ignored.

    ``dtype``: dtype of the loaded tensors, None: as stored; ``source``: the checkpoint, for messages; ``narrow``: keep
    quantised matrices in 8 and 4 bits. Raises ``UserError`` for a tensor that is missing or unexpected, or whose shape
    differs from the config's.
    """
    entry = family.architectures[architecture]
    rows, reasons = family.rows(architecture), _reasons(family, entry)
    if family.prefix and not any(name.startswith(family.prefix) for name in stored):
        rows = without_prefix(family, rows)
        reasons = {name.removeprefix(family.prefix): reason for name, reason in reasons.items()}
    pairs = matches(model, rows)
    stored = divide_rows(stored, family.divisions_of(model))
    stored = with_slices(stored, [name for match in pairs for name in match.theirs])
    places = places_of(model)
    first, tied = _shared(model, pairs)
    ignored = _ignored(stored, first, tied, reasons, source)
    _check_zeros(entry.zeros, stored, source)
    _check_same({name: entry.same[name] for name, _ in ignored if name in entry.same}, stored, source)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for match in first:
        _check(match, shapes[match.ours], stored, source)
    packed = _packed(places, (first, tied), stored, source) if narrow else {}
    wide = [match for match in first if match.ours not in packed]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for match, tensor in zip(
            wide, threads.map(lambda match: _read(match, shapes[match.ours], stored, dtype), wide), strict=True
        ):
            place(places[match.ours], tensor)
    for name, matrix in packed.items():
        hold_packed(model, name, places[name], matrix)
    _check_tied(model, (wide, tied), stored, dtype, source)
    return ignored


def _reasons(family: Family, entry: Architecture) -> Reasons:
    """Return the tensors of an architecture that are not loaded, with the reasons."""
    same = {name: f"the same as {first}" for name, first in entry.same.items()}
    return {**same, **family.ignored, **entry.ignored, **entry.kept, **entry.zeros}


def _packed(
    places: Mapping[str, Sequence[Place]],
    rules: tuple[Sequence[Match], Sequence[Match]],
    stored: Mapping[str, Stored],
    source: Origin,
) -> dict[str, PackedMatrix]:
    """Read each quantised matrix that the model can hold in 8 or 4 bits, by the name of the model's tensor.

    ``rules``: the result of ``_shared``. A matrix stored under two names is omitted, because its values have to be
    compared. Raises ``UserError`` for weights that are not finite.
    """
    first, tied = rules
    twice = {id(places[match.ours]) for match in tied if any(name in stored for name in match.theirs)}
    several = [m for m in first if can_hold_packed(places[m.ours]) and id(places[m.ours]) not in twice]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        matrices = threads.map(lambda match: _packed_matrix(match, stored, source), several)
        return {match.ours: one for match, one in zip(several, matrices, strict=True) if one is not None}


def _packed_matrix(match: Match, stored: Mapping[str, Stored], source: Origin) -> PackedMatrix | None:
    parts = [part for name in match.theirs if (part := narrow_of(stored[name])) is not None]
    matrix = convert_inward(match.way, parts, match.cut) if len(parts) == len(match.theirs) else None
    if matrix is None:
        return None
    if not matrix.finite:
        name = source.stored_name(match.theirs[0])
        raise UserError(f"{source}: the tensor {name!r} has weights that are not finite numbers")
    return matrix.packed()


def _shared(model: nn.Module, rules: Sequence[Match]) -> tuple[list[Match], list[Match]]:
    """Return (first match of each tensor of ``model``, further matches of shared tensors, such as a tied head)."""
    tensors, seen = model.state_dict(keep_vars=True), set[int]()
    first, repeats = list[Match](), list[Match]()
    for match in rules:
        (repeats if id(tensors[match.ours]) in seen else first).append(match)
        seen.add(id(tensors[match.ours]))
    return first, repeats


def _ignored(
    stored: Mapping[str, Stored],
    first: Sequence[Match],
    tied: Sequence[Match],
    reasons: Mapping[str, str],
    source: Origin,
) -> list[tuple[str, str]]:
    names = {name for match in first for name in match.theirs}
    again = {name for match in tied for name in match.theirs} - names
    ignored, unexpected = list[tuple[str, str]](), list[str]()
    for name in sorted(stored.keys() - names):
        reason = "shared with another tensor, and equal to it" if name in again else reason_for(name, reasons)
        if reason is None:
            unexpected.append(name)
        else:
            ignored.append((name, reason))
    missing = sorted(names - stored.keys())
    if missing:
        name = source.stored_name(missing[0])
        raise UserError(
            f"{source} lacks the tensor {name!r}{_more(missing)}, which its config requires; "
            f"{_near(name, set(unexpected))}"
        )
    if unexpected:
        expected = _near(unexpected[0], {source.stored_name(name) for name in names})
        raise UserError(
            f"{source} has the tensor {unexpected[0]!r}{_more(unexpected)}, which its config does not use; {expected}"
        )
    return ignored


def _read_extra(
    family: Family, architecture: str, stored: Mapping[str, Stored], dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Read the stored tensors that qkv's model lacks but an export writes back unchanged, by published name."""
    reasons = family.extra_tensors(architecture)
    named = {family.written_name(architecture, name): tensor for name, tensor in stored.items()}
    return {
        name: _cast(tensor.read(), dtype) for name, tensor in named.items() if reason_for(name, reasons) is not None
    }


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _near(name: str, names: Mapping[str, Any] | set[str]) -> str:
    clause = nearest(name, names)
    return clause if clause.startswith("did you mean") else "no known name is close to it"


def _check(match: Match, shape: torch.Size, stored: Mapping[str, Stored], source: Origin) -> None:
    parts = match.way.outward(torch.empty(shape, device="meta"), match.cut)
    if match.way.accepts([stored[name].shape for name in match.theirs], [tuple(part.shape) for part in parts]):
        return
    for name, part in zip(match.theirs, parts, strict=True):
        if stored[name].shape != tuple(part.shape):
            shapes = f"{list(stored[name].shape)}, but its config requires {list(part.shape)}"
            raise UserError(f"{source}: the tensor {source.stored_name(name)!r} has the shape {shapes}")


def _check_zeros(zeros: Mapping[str, str], stored: Mapping[str, Stored], source: Origin) -> None:
    for name, reason in zeros.items():
        if name in stored and bool(stored[name].read().any()):
            raise UserError(
                f"{source}: the tensor {source.stored_name(name)!r} has values other than 0, which qkv does not "
                "support; "
                f"it supports {reason}"
            )


def _check_same(same: Mapping[str, str], stored: Mapping[str, Stored], source: Origin) -> None:
    for name, first in same.items():
        if not torch.equal(stored[name].read(), stored[first].read()):
            raise _differing(name, first, source)


def _differing(name: str, first: str, source: Origin) -> UserError:
    return UserError(
        f"{source}: {source.stored_name(name)!r} and {source.stored_name(first)!r} are one shared tensor in qkv's "
        "model of this config, but their values differ"
    )


def _check_tied(
    model: nn.Module,
    rules: tuple[Sequence[Match], Sequence[Match]],
    stored: Mapping[str, Stored],
    dtype: torch.dtype | None,
    source: Origin,
) -> None:
    """Raise ``UserError`` if a file stores a shared tensor under two names with different values.

    ``rules``: the result of ``_shared``.
    """
    first, tied = rules
    tensors = model.state_dict(keep_vars=True)
    for match in (match for match in tied if any(name in stored for name in match.theirs)):
        owner = next(other.theirs[0] for other in first if tensors[other.ours] is tensors[match.ours])
        for name, part in zip(match.theirs, match.way.outward(tensors[match.ours].detach(), match.cut), strict=True):
            if name in stored and not torch.equal(_cast(stored[name].read(), dtype), part):
                raise _differing(name, owner, source)


def _read(match: Match, shape: torch.Size, stored: Mapping[str, Stored], dtype: torch.dtype | None) -> Tensor:
    """Build a tensor of the model from its stored parts.

    The result is a view of the mapped file if the layout allows; otherwise each part is read directly into its place.
    """
    stored_dtype = stored[match.theirs[0]].dtype
    target = dtype if dtype is not None and stored_dtype.is_floating_point else stored_dtype
    view = _as_it_lies(match, shape, stored) if target == stored_dtype else None
    if view is not None:
        return view
    ours = torch.empty(shape, dtype=target)
    parts = match.way.outward(ours, match.cut)
    if any(part.untyped_storage().data_ptr() != ours.untyped_storage().data_ptr() for part in parts):
        return match.way.inward([_cast(stored[name].read(), dtype) for name in match.theirs], match.cut)
    for name, part in zip(match.theirs, parts, strict=True):
        stored[name].read_into(part)
    return ours


def _as_it_lies(match: Match, shape: torch.Size, stored: Mapping[str, Stored]) -> Tensor | None:
    """Return a tensor of the model as a view of a mapped file, without a copy; None if that is impossible.

    A view of a single stored tensor may have its axes in another order. Several stored tensors must be consecutive
    parts of the model's tensor, as q, k, v are.
    """
    theirs = [entry for entry in (stored[name] for name in match.theirs) if isinstance(entry, Entry)]
    if len(theirs) != len(match.theirs):
        return None
    if len(theirs) == 1:
        return _viewed(match, theirs[0])
    ours = torch.empty(shape, device="meta")
    parts, end = match.way.outward(ours, match.cut), 0
    for part in parts:
        if (part._base is not ours and part is not ours) or not part.is_contiguous() or part.storage_offset() != end:
            return None
        end += part.numel()
    return in_place(theirs, shape) if end == ours.numel() else None


def _viewed(match: Match, entry: Entry) -> Tensor | None:
    """Return a tensor of the model as a view of a single mapped tensor; None if its elements have to be reordered."""
    theirs = torch.empty(entry.shape, device="meta")
    ours = match.way.inward([theirs], match.cut)
    lying = in_place([entry], entry.shape) if ours is theirs or ours._base is theirs else None
    return None if lying is None else match.way.inward([lying], match.cut)


def _watch(model: Transformer, stored: Mapping[str, Stored]) -> None:
    files = dict.fromkeys(entry.source for entry in stored.values() if isinstance(entry, Entry) and entry.source)
    watch(model, files)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def precision(name: str) -> torch.dtype:
    """Return the torch dtype of the precision ``name``, such as "bf16". Raises ``UserError`` for an unknown name."""
    if name not in PRECISIONS:
        raise UserError(f"there is no precision {name!r}; {nearest(name, PRECISIONS)}")
    return PRECISIONS[name]


def _precision(dtype: torch.dtype | str | None, stored: Mapping[str, Stored]) -> torch.dtype:
    """Return the dtype of the loaded tensors. Raises ``UserError`` for fp8 tensors without scales."""
    bare = next((name for name, tensor in stored.items() if str(tensor.dtype).startswith("torch.float8")), None)
    if bare is not None:
        raise UserError(
            f"the tensor {bare!r} is in fp8, but the config has no quantization_config that says how to scale it"
        )
    if dtype is not None:
        return precision(dtype) if isinstance(dtype, str) else dtype
    numbers = Counter[torch.dtype]()
    for tensor in stored.values():
        if tensor.dtype.is_floating_point:
            numbers[tensor.dtype] += tensor.numbers
    return numbers.most_common(1)[0][0] if numbers else torch.float32


def _tokenizer(folder: Path, template: str) -> Tokenizer | None:
    """Load the tokenizer of the folder; return None if it has none. Raises ``UserError`` if its file cannot be used.

    template: chat template if the folder has none, see ``Family.template``.
    """
    tokenizer = Tokenizer.load(folder) if holds_tokenizer(folder) else None
    without = tokenizer is not None and tokenizer.chat_template is None
    return tokenizer.with_chat_template(template) if tokenizer and without and template else tokenizer


def labels_of(config: Config) -> tuple[str, ...]:
    """Return the class names in a config, in the order of their indices; empty if it names none."""
    named = config.table("id2label").values
    return tuple(str(named[key]) for key in sorted(named, key=int)) if all(key.isdecimal() for key in named) else ()


def _numbered(spec: Model) -> tuple[str, ...]:
    """Return the default class names LABEL_0, LABEL_1, … of a model with a classification head."""
    return tuple(f"LABEL_{i}" for i in range(0 if spec.head.writes_text else spec.head.classes or 0))
