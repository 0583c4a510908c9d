"""Command ``qkv why``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.interop.files.places import is_published
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.models.transformer import Transformer
    from qkv.spec.model import Model
    from qkv.spec.models.quantization import Quantization
    from qkv.spec.training import Training

EXAMPLES = """\
qkv why
qkv why runs/my
qkv why runs/my --fresh
qkv why char_shakespeare_cpu model.context_length=1024
"""

_VOCABULARY, _LARGEST, _LONGEST = 256, 500_000_000, 1024


def why_command(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="[SPEC|RUN]", help="A recipe, a model, a run folder or a published checkpoint."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes, such as model.width=512.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard choices measured earlier on this machine and measure again.")
    ] = False,
) -> None:
    """Run one training step and one decoding step of each kind of block, and show which implementations were used,
    and how a text is decoded. For a quantised run or a published checkpoint, only the decoding step is run.

    The speedup of a measured choice is relative to torch's default implementation on this machine in the requested
    precision. Measured choices are cached per processor, settings and versions.
    """
    from qkv.ops.selection.choices import all_choices
    from qkv.ops.selection.choices_cache import choices_file
    from qkv.report.table import print_table
    from qkv.spec.files.yaml_io import read_spec
    from qkv.spec.model import Model
    from qkv.spec.recipe import Recipe
    from qkv.spec.training import Training

    if fresh:
        _forget()
    if spec and is_published(spec):
        path = _try_published(spec, overrides or [])
    else:
        source = read_spec(spec, overrides or []) if spec else Model()
        recipe, model = (source, source.model) if isinstance(source, Recipe) else (None, source)
        path = _try(_one_of_each(model), recipe.training if recipe else Training(), recipe and recipe.quantized)
    choices = sorted(all_choices(), key=lambda choice: choice.op)
    rows = [(c.op, c.case, c.twin, "" if c.gain is None else f"{c.gain:.2f} ×", c.reason) for c in choices]
    print_table(
        str(spec or "a model of default sizes"), ["operation", "case", "implementation", "speedup", "reason"], rows
    )
    if path:
        typer.echo(f"\na text is decoded by {path}")
    if (file := choices_file()).exists():
        typer.echo(f"\nmeasured choices are cached in {file}; --fresh measures again")


def _forget() -> None:
    from qkv.ops.selection.choices_cache import choices_file, forget

    try:
        forget()
    except OSError as error:
        raise UserError(f"the choices cached in {choices_file()} cannot be deleted: {error.strerror}") from None


def _one_of_each(model: Model) -> Model:
    """Reduce ``model`` to one layer per listed block and a small vocabulary; neither affects the choice of kernels."""
    from qkv.costs.cost import cost

    if not (model.frontend.reads_tokens and model.head.predicts_tokens):
        raise UserError(
            "'qkv why' runs only language models: they read tokens and predict tokens; give the spec of one"
        )
    frontend = model.frontend.changed(vocab_size=_VOCABULARY)
    small = model.changed(num_layers=len(model.blocks), frontend=frontend)
    parameters = cost(small).parameters
    if parameters > _LARGEST:
        raise UserError(
            f"one block of each kind has {parameters:,} parameters, too many to run here; reduce model.width"
        )
    return small


def _try_published(place: Path, overrides: list[str]) -> str:
    """Decode one token with a published checkpoint; return the decoding path, or "" if it generates no text."""
    from qkv.runs.storage.load import load

    if overrides:
        raise UserError(f"{overrides[0]!r} changes a spec, and {place} has trained weights; leave it out")
    return _decode(load(place).model)


def _decode(model: Transformer) -> str:
    """Decode one token after a prompt; return the decoding path, or "" if the model generates no text."""
    import torch

    from qkv.models.fast.native_token import decoding_path

    if not model.spec.decodes or model.encoder is not None or not model.vocab_size:
        return ""
    length = min(model.spec.context_length, model.limit or _LONGEST)
    prompt = torch.randint(model.vocab_size, (1, length - 1), device=model.device)
    model.eval()
    with torch.inference_mode():
        _, state = model(prompt, model.init_state(1))
        model.decode([[0]], state)
        return decoding_path(model)


def _try(model: Model, training: Training, quantized: Quantization | None) -> str:
    """Train and decode one step with a model of a spec; return the decoding path, or "" if it generates no text."""
    import torch

    from qkv.data.batching.batch import Batch
    from qkv.models.build import build
    from qkv.models.edit.quantize import quantize
    from qkv.ops.linear.precision import autocast
    from qkv.spec.tasks import NextToken
    from qkv.system.device import training_device
    from qkv.tasks.text.next_token import NextTokenTask
    from qkv.training.optim.optimisers import build_optimizer

    device = training_device()
    transformer = build(model).to(device)
    ids = torch.randint(_VOCABULARY, (2, model.context_length + 1), device=device)
    if quantized is None:
        with autocast(training.precision, device):
            loss = NextTokenTask(NextToken()).summed_loss(transformer, Batch.of(ids[:, :-1], ids[:, 1:]))
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        build_optimizer(training.optimizer, transformer).step()
    else:  # quantised weights cannot be trained
        quantize(transformer, quantized)
    return _decode(transformer)
