"""Command ``qkv info``."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.runs import run_folder
from qkv.cli.shared.uses import commands_of
from qkv.interop.files.places import is_published, is_sentence_folder

if TYPE_CHECKING:
    from qkv.interop.sentence import EmbeddingSettings

EXAMPLES = """\
qkv info
qkv info runs/my
qkv info ./all-MiniLM-L6-v2
"""

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")


def info_command(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN|FOLDER]", help="A run folder, or a folder in Hugging Face format.")
    ] = None,
) -> None:
    """Show versions, machine, and data and cache folders; or a summary of a run or a published folder."""
    from qkv.report.table import print_table

    if run is None:
        print_table("qkv", ["property", "value"], _installation())
        return
    published = (is_published(run) or is_sentence_folder(run)) and not (run / "spec.yaml").is_file()
    folder = run if published else run_folder(run)
    print_table(str(run), ["property", "value"], _published(folder) if published else _run(folder))
    from qkv.report.figures import size
    from qkv.runs.storage.files import files_in

    typer.echo()
    base = folder.parent if folder.is_file() else folder
    print_table(
        "", ["file", "size"], [(str(path.relative_to(base)), size(count)) for path, count in files_in(folder).items()]
    )


def _installation() -> list[tuple[str, Any]]:
    import torch

    from qkv.ops.native.library import described
    from qkv.system.cache import cache_folder
    from qkv.system.device import accelerator
    from qkv.system.optional import PATHS, turned_off
    from qkv.system.processor import processor_name

    off = [name for name in PATHS if turned_off(name)]
    return [
        ("qkv", f"{metadata.version('qkv')}, in {Path(__file__).parents[2]}"),
        ("Python", f"{platform.python_version()}, {platform.platform()}"),
        *((name, metadata.version(name)) for name in _PACKAGES),
        ("processor", processor_name()),
        ("threads of torch", torch.get_num_threads()),
        ("vector instructions", torch.backends.cpu.get_cpu_capability()),
        ("native kernel", described()),
        *([("paths turned off", ", ".join(off))] if off else []),
        ("accelerator", str(accelerator() or "none; the CPU is used")),
        ("QKV_DATA", os.environ.get("QKV_DATA") or "not set"),
        ("cache", f"{cache_folder()} ({_stored(cache_folder())})"),
        ("data sets", _data_sets()),
    ]


def _stored(folder: Path) -> str:
    from qkv.report.figures import size
    from qkv.runs.storage.files import files_in

    files = files_in(folder)
    return f"{size(sum(files.values()))} in {len(files)} files" if files else "empty"


def _data_sets() -> str:
    """List the known data sets; note which of them must be downloaded or are not available."""
    from qkv.data.corpora.named import KNOWN, NAMES
    from qkv.data.records.named import TABLES
    from qkv.system.cache import cache_folder

    folders = [Path(os.environ["QKV_DATA"])] if os.environ.get("QKV_DATA") else []
    folders.append(cache_folder() / "data")
    lines: list[str] = []
    for name in (*NAMES, *TABLES):
        where = TABLES[name].folder or name if name in TABLES else name
        here = (name not in KNOWN and name not in TABLES) or any((folder / where).is_dir() for folder in folders)
        files = [file for split in TABLES[name].splits.values() for file in split] if name in TABLES else []
        lines.append(
            name
            if here
            else f"{name} (to be downloaded)"
            if all(file.url for file in files)
            else f"{name} (not available)"
        )
    return ", ".join(lines)


def _published(folder: Path) -> list[tuple[str, Any]]:
    """Build the table of a Hugging Face or sentence-transformers folder: its contents and the commands that use it."""
    from qkv.interop.load import load_published
    from qkv.interop.sentence import read_sentence

    sentence = read_sentence(folder) if is_sentence_folder(folder) else None
    checkpoint = load_published(sentence.body if sentence else folder)
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    rows: list[tuple[str, Any]] = [
        ("family", f"{checkpoint.family} ({checkpoint.architecture})"),
        ("model", _stack(spec)),
        ("head", spec.head.kind.replace("_", " ")),
        ("parameters", sum(parameter.numel() for parameter in checkpoint.model.parameters())),
        ("precision", str(next(checkpoint.model.parameters()).dtype).removeprefix("torch.")),
        ("quantised tensors", checkpoint.quantization or None),
        ("context length", spec.context_length),
        ("tokenizer", f"{tokenizer.vocab_size:,} ids" if tokenizer else "none"),
        ("classes", ", ".join(checkpoint.labels[:8]) + (" …" if len(checkpoint.labels) > 8 else "") or None),
    ]
    if sentence:
        normalised = ", scaled to length 1" if sentence.normalise else ""
        rows += [
            ("pooling", " + ".join(sentence.poolings) + _behind(sentence) + normalised),
            ("embedded length", f"at most {sentence.max_length} tokens" if sentence.max_length else None),
            ("prompts", ", ".join(sentence.prompts) or None),
        ]
    rows += [("commands" if not i else "", command) for i, command in enumerate(commands_of(folder, checkpoint))]
    return [row for row in rows if row[1] is not None]


def _behind(sentence: EmbeddingSettings) -> str:
    """Return the kinds and sizes of the modules behind the pooling as text, such as ", Dense to 512"."""
    named = [(projection.digest.partition(" ")[0], projection.width) for projection in sentence.projections]
    return "".join(f", {kind} to {width}" if kind == "Dense" else f", {kind}" for kind, width in named)


def _run(folder: Path) -> list[tuple[str, Any]]:
    from qkv.runs.metrics import steps_in_all
    from qkv.runs.run import task_of
    from qkv.runs.storage.load import changed, load

    run = load(folder, accept_changes=True)
    steps = [row["step"] for row in run.metrics if row.get("loss") is not None]
    validated = [row["val_loss"] for row in run.metrics if row.get("val_loss") is not None]
    training, model = run.recipe.training, run.recipe.model
    change, quantized = changed(run), run.recipe.quantized
    return [
        ("recipe", run.recipe.name or "unnamed"),
        ("task", run.recipe.task.kind),
        ("description", run.recipe.description or None),
        ("data", run.recipe.data.source),
        *(
            [("tokenizer", f"{run.recipe.data.text_tokenizer.kind}, {run.tokenizer.vocab_size:,} ids")]
            if run.vocabulary.has_text
            else []
        ),
        *([("processors", ", ".join(run.vocabulary.processors))] if run.vocabulary.processors else []),
        ("model", _stack(model)),
        ("context length", model.context_length),
        ("parameters", run.num_parameters),
        *([("weights of linear layers", f"{quantized.bits} bits")] if quantized else []),
        ("steps", f"{max(steps, default=0):,} of {steps_in_all(run.metrics, training.steps):,}"),
        ("best validation loss", f"{min(validated):.4f} {task_of(run).loss_unit}" if validated else "not measured yet"),
        ("weights of step", run.step),
        *([("changed since", change)] if change else []),
    ]


def _stack(model: Any) -> str:
    """Describe layers, width and branches of the blocks: ``2 layers of width 64: attention + feed_forward | gru``."""
    from qkv.report.figures import counted

    pattern = " | ".join(" + ".join(branch.kind for branch in block.branches) for block in model.blocks)
    return f"{counted(len(model.layers), 'layer')} of width {model.width}{': ' * bool(pattern)}{pattern}"
