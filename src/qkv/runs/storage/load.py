"""Load runs from folders, and published checkpoints as runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.data.batching.batch import INPUT
from qkv.data.vocabulary import Vocabulary
from qkv.interop.files.mapped import MappedFile, watch
from qkv.interop.files.places import is_published, may_be_name
from qkv.interop.load import PublishedModel, load_published
from qkv.layers.linear.lora import fold
from qkv.models.edit.adapt import add_adapters, narrow_frozen
from qkv.models.edit.quantize import compute_in_fp32
from qkv.models.transformer import Transformer
from qkv.models.wide import build_wide
from qkv.runs.metrics import rows_of
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import CheckpointStore, read_checkpoint, save_weights, take_weights
from qkv.runs.storage.files import map_tensors, read_metadata
from qkv.runs.storage.folder import SPEC, WEIGHTS, check_kept, check_succeeded, had_best, locked
from qkv.runs.storage.identity import MADE_WITH, check_unedited, edited, made_with, write_parts
from qkv.runs.storage.published import recipe_of
from qkv.spec.extension.outside import RECORD
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.device import inference_device
from qkv.system.errors import UserError
from qkv.tokenizers.absent import NO_TEXT, AbsentTokenizer


def load(
    source: str | Path,
    accept_changes: bool = False,
    copy: bool = False,
    keep_adapters: bool = False,
    device: str | None = None,
    **published: Any,
) -> Run:
    """Load the run in the folder ``source``, or the published checkpoint in that folder or of that name.

    Before the first validation of a run in progress, the weights are those of its newest checkpoint.

    accept_changes: load the folder even if spec or vocabulary were edited since the weights were stored, or if its
        training failed, and use the newest checkpoint if the best weights are missing.
    copy: read weights into memory instead of mapping their file.
    keep_adapters: keep adapters such as LoRA, if any, separate from the weights.
    device: device that computes, such as "cuda"; default: the environment variable ``QKV_DEVICE``, else the CPU.
    published: dtype, revision and pickles, as for ``qkv.interop.load.load_published``. Without dtype, a checkpoint in
        bf16 or fp16 computes in fp32 on the CPU, see ``qkv.models.edit.quantize.compute_in_fp32``, and block-quantised
        weights of a GGUF file stay in 8 and 4 bits; ``load_stored`` and other devices do not do so.

    Raises UserError if the folder is neither, or a file in it is missing, damaged, edited or belongs to another model,
    if its training failed, and for a device that this machine does not have.
    """
    place = inference_device(device)
    narrow = place.type == "cpu" and published.get("dtype") is None
    run = _load(source, (accept_changes, copy, keep_adapters), published, narrow)
    if place.type != "cpu":
        run.model.to(place)
        if run.wide is not None:
            run.wide.to(place)
    elif narrow:
        compute_in_fp32(run.model)
    return run


def load_stored(
    source: str | Path,
    accept_changes: bool = False,
    copy: bool = False,
    keep_adapters: bool = False,
    **published: Any,
) -> Run:
    """Load a run or published checkpoint as ``load`` does, but keep its weights in the precision in which they are
    stored.

    Block-quantised weights of a GGUF file are converted to fp32, which can be trained, exported and quantised again.
    """
    return _load(source, (accept_changes, copy, keep_adapters), published, narrow=False)


def _load(source: str | Path, how: tuple[bool, bool, bool], published: Mapping[str, Any], narrow: bool) -> Run:
    """Load a run or checkpoint. ``how``: accept_changes, copy and keep_adapters of ``load``; ``narrow``: keep
    block-quantised weights of a published file in 8 and 4 bits.
    """
    folder, (accept_changes, copy, keep_adapters) = Path(source), how
    if not (folder / SPEC).is_file():
        if is_published(folder) or (not folder.exists() and may_be_name(str(source))):
            return run_of(load_published(source, **published, copy=copy, narrow=narrow))
        raise UserError(f"{folder} is not a run folder: it holds no {SPEC}")
    if published:
        raise UserError(f"{next(iter(published))!r} only applies to published checkpoints, but {folder} is a run")
    run = load_adapted(folder, accept_changes, copy)
    if not keep_adapters:
        fold(run.model)
    return run


def load_adapted(folder: Path, accept_changes: bool = False, copy: bool = False) -> Run:
    """Load the run in ``folder`` as ``load`` does, but keep adapters such as LoRA, if any, separate from the
    weights.
    """
    recipe = read_recipe(folder)
    if not accept_changes:
        check_succeeded(folder)
    tensors, metadata, source = _weights(folder, recipe, accept_changes, copy)
    if not accept_changes:
        check_unedited(metadata.get(MADE_WITH), recipe, folder)
    run = _with_weights(folder, recipe, tensors, int(metadata.get("step", 0)))
    watch(run.model, [source] if source else [])
    return run


def load_checkpoints(folder: Path) -> Iterator[Run]:
    """Yield the run in ``folder`` with the weights of each checkpoint that is kept in it, the oldest first; adapters,
    if any, are merged. Raises UserError for a damaged checkpoint.
    """
    recipe = read_recipe(folder)
    for path in reversed(CheckpointStore(folder / "resume").paths()):
        checkpoint = read_checkpoint(path, ("weights",))
        check_unedited(checkpoint.state.get(MADE_WITH), recipe, folder)
        run = _with_weights(folder, recipe, checkpoint.tensors["weights"], checkpoint.step)
        fold(run.model)
        yield run


def _with_weights(folder: Path, recipe: Recipe, tensors: Mapping[str, Tensor], step: int) -> Run:
    """Return the run with the given weights, those of ``step``."""
    vocabulary = Vocabulary.load(folder)
    with torch.device("meta"):
        model = Transformer(recipe.model)
        add_adapters(model, recipe.training)
        narrow_frozen(model, recipe.training, recipe.quantized)
    wide = recipe.wide and build_wide(recipe.wide, model.head.num_outputs)
    take_weights(model, tensors, folder / WEIGHTS, wide)
    return Run(folder, recipe, model.eval(), vocabulary, rows_of(folder), step, wide=wide)


def _weights(
    folder: Path, recipe: Recipe, accept_changes: bool, copy: bool
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], MappedFile | None]:
    """Return (tensors, metadata, mapped file) of a run's best weights, or of its newest checkpoint if no best weights
    were saved yet.
    """
    path = folder / WEIGHTS
    if path.exists():
        return map_tensors(path, copy)
    checkpoint = CheckpointStore(folder / "resume").load(lambda _: None)
    had = had_best(checkpoint, recipe, rows_of(folder))
    if path.exists():  # the training process has meanwhile written it after its first validation
        return map_tensors(path, copy)
    if checkpoint is None:
        raise UserError(
            f"the run in {folder} has no weights{'' if had else ' yet'}: {path} is missing, and there is no checkpoint"
        )
    if not accept_changes:
        check_kept(folder, had)
    return checkpoint.tensors["weights"], {"step": checkpoint.step, MADE_WITH: checkpoint.state.get(MADE_WITH)}, None


def changed(run: Run) -> str | None:
    """Describe the first change to recipe or vocabulary in the folder of ``run`` since its weights were written; None
    if unchanged.
    """
    path = run.folder / WEIGHTS
    if path.exists():
        return edited(read_metadata(path).get(MADE_WITH), run.recipe, run.folder)
    return f"{path} is missing" if had_best(None, run.recipe, run.metrics) else None


def accept(folder: Path) -> str | None:
    """Accept an edited recipe, vocabulary or file of a user-defined part in the run folder ``folder``: store the
    weights again, with a record of the edited state. If the best weights are missing, store the weights of the newest
    checkpoint.

    Returns a description of the change, from ``changed``. Raises UserError if the weights do not fit the spec.
    """
    with locked(folder):
        run, path = load_adapted(folder, accept_changes=True), folder / WEIGHTS
        change = changed(run)
        if change:
            stored = read_metadata(path) if path.exists() else {"step": run.step}
            stored.pop("sha256", None)
            save_weights(path, run.model, {**stored, MADE_WITH: made_with(run.recipe, folder)}, run.wide)
        if write_parts(run.recipe, folder):
            change = change or f"the file of a part of your own, in {folder / RECORD},"
    return change


def run_of(checkpoint: PublishedModel) -> Run:
    """Return a loaded published checkpoint as a run without training. Raises ``UserError`` if no task fits its head."""
    recipe = recipe_of(checkpoint)
    name = next(iter(recipe.data.processors), INPUT)
    processors = {} if checkpoint.processor is None else {name: checkpoint.processor}
    absent = NO_TEXT if processors else AbsentTokenizer.of_published(checkpoint.folder)
    tokenizer = checkpoint.tokenizer or absent
    vocabulary = Vocabulary(tokenizer, checkpoint.target_tokenizer or tokenizer, checkpoint.labels, processors)
    return Run(checkpoint.folder, recipe, checkpoint.model, vocabulary, [], 0, checkpoint.ignored_config)
