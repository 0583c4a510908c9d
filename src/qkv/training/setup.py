"""From a recipe and a folder to everything that training needs, whether the run is new or goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qkv.data.batches import Batches
from qkv.data.corpus import Corpus, open_corpus
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.errors import Problem, SpecError, UserError
from qkv.spec.model import Text
from qkv.spec.recipe import Recipe
from qkv.spec.yaml_io import read_recipe, write_spec
from qkv.tasks.registry import build_task
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer
from qkv.training.checkpoint import Checkpoint, Checkpoints, load_weights
from qkv.training.events import Notice, OnEvent
from qkv.training.files import clear_errors, remove_partial
from qkv.training.identity import check_same_recipe, corpus_digest, recipe_digest
from qkv.training.surroundings import Surroundings

try:
    import fcntl
except ImportError:  # not a Unix; two processes in one folder are then not noticed
    fcntl = None

SPEC = "spec.yaml"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Setup:
    """A run that is ready to train. ``recipe`` has its vocabulary filled in."""

    folder: Path
    recipe: Recipe
    corpus: Corpus
    batches: Batches
    task: Task
    model: Transformer
    device: torch.device
    checkpoints: Checkpoints
    surroundings: Surroundings


def best_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make ``folder`` and hold it alone. Raises UserError if it cannot be written, or another process trains in it."""
    with clear_errors(f"the run folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl and handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is training in {folder}; wait for it, or name another folder") from None
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        if handle is not None:
            os.close(handle)  # which frees the lock, as the end of the process would


def prepare(recipe: Recipe, folder: Path, resume: bool, tell: OnEvent) -> tuple[Setup, Checkpoint | None]:
    """Open the text, check that ``recipe`` is the one of a run that is already in ``folder``, build the model.

    The checkpoint is the one from which the run goes on, its weights already in the model; None for a new run. Raises UserError where recipe, text or checkpoint do not fit together; the folder is then as it was.
    """
    with clear_errors(f"the run folder {folder}"):
        remove_partial(folder)
    known = _known(folder, resume)
    tokenizer = Tokenizer.load(folder) if known else None
    corpus = open_corpus(recipe.data, tokenizer)
    recipe = with_vocabulary(recipe, corpus.tokenizer)
    checkpoints = Checkpoints(folder / "resume", recipe.training.checkpoints.keep)
    checkpoint = checkpoints.load(lambda text: tell(Notice(text))) if known else None
    if known:
        check_same_recipe(known, recipe, checkpoint.step if checkpoint else 0, folder)
    training = recipe.training
    device = best_device()
    batches = Batches(corpus, recipe.data.batching, training.batch_size, recipe.model.context_length, training.seed)
    model = build(recipe.model, training.seed)
    if checkpoint and known:
        _check_facts(checkpoint.state, known, corpus, folder)
        load_weights(model, checkpoint.tensors["weights"], folder / "resume")
    surroundings = Surroundings(checkpoints.folder, device)
    different = surroundings.adopt()
    if different:
        tell(Notice(different))
    model.to(device)
    setup = Setup(folder, recipe, corpus, batches, build_task(recipe.task), model, device, checkpoints, surroundings)
    _write_identity(setup, known)
    return setup, checkpoint


def _known(folder: Path, resume: bool) -> Recipe | None:
    """The recipe of the run that is in ``folder``, if there is one."""
    if not (folder / SPEC).exists():
        return None
    if not resume:
        raise UserError(f"{folder} already holds a run; name another folder, or let it go on from there")
    return read_recipe(folder)


def with_vocabulary(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """``recipe`` with the size of the vocabulary filled in. Raises SpecError if the one it gives is too small."""
    frontend = recipe.model.frontend
    if not isinstance(frontend, Text):
        return recipe
    if frontend.vocab_size is None:
        return recipe.changed(model=recipe.model.changed(frontend=frontend.changed(vocab_size=tokenizer.vocab_size)))
    if frontend.vocab_size < tokenizer.vocab_size:
        sentence = (
            f"{frontend.vocab_size} ids are fewer than the {tokenizer.vocab_size} of the tokenizer; leave the key out to take its size"
        )
        raise SpecError([Problem(("model", "frontend", "vocab_size"), sentence)])
    return recipe


def _check_facts(state: dict[str, Any], known: Recipe, corpus: Corpus, folder: Path) -> None:
    if state["recipe"] != recipe_digest(known):
        raise UserError(f"{folder / SPEC} was changed after training began: it is not the recipe that the checkpoint was made with")
    if state["corpus"] != corpus_digest(corpus):
        raise UserError(
            f"the ids of {corpus.name!r} are not those that the run in {folder} was trained on: the text or {FILE_NAME} was changed; "
            "put it back, or name another folder"
        )


def _write_identity(setup: Setup, known: Recipe | None) -> None:
    """The files that make a folder a run's, the spec last: where it stands, the rest is there."""
    if known == setup.recipe:
        return
    with clear_errors(f"the run folder {setup.folder}"):
        if not known:
            setup.corpus.tokenizer.save(setup.folder / FILE_NAME)
        write_spec(setup.folder / SPEC, setup.recipe)
