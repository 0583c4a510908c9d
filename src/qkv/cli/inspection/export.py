"""Command ``qkv export``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from qkv.cli.shared.runs import Copy, ModelFolder, output_file, run_or_published
from qkv.interop.files.places import is_sentence_folder
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.models.transformer import Transformer
    from qkv.spec.model import Model
    from qkv.spec.processors import Processor
    from qkv.tokenizers.tokenizer import Tokenizer

EXAMPLES = """\
qkv export runs/my
qkv export runs/my --out my-model --dtype bf16
qkv export runs/my --format gguf --dtype q8_0
qkv export runs/adapted --format peft
qkv export runs/classifier --format onnx
"""

FORMATS = {
    "hf": "a folder in Hugging Face format, which the transformers library and serving engines open",
    "gguf": "one file, which llama.cpp opens",
    "peft": "only the adapter of a run trained with training.adapt: lora, in the format of the PEFT library",
    "onnx": "model.onnx for onnxruntime and others, for any number and length of rows, with tokenizer and labels",
}


_Check = Annotated[
    bool | None,
    typer.Option(
        "--check/--no-check",
        help="Open the result with the transformers library, or llama.cpp, and compare logits; "
        "default: for models up to 2 GiB in fp32.",
    ),
]


def export_command(
    run: ModelFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Output folder, a file for gguf; default: beside the run, RUN-FORMAT or RUN.gguf."
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(metavar="hf|gguf|peft|onnx", help="Output format; gguf: of llama.cpp; peft: only the adapter."),
    ] = "hf",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="fp32|bf16|fp16", help="Precision of the weights; gguf also q8_0 and q4_0. Default: unchanged."
        ),
    ] = None,
    check: _Check = None,
    copy: Copy = False,
) -> None:
    """Export a trained model in a format that other libraries open: Hugging Face folder, GGUF, adapter, or ONNX."""
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
    source = run if format == "onnx" and is_sentence_folder(run) else run_or_published(run)
    if format == "gguf":
        place = output_file("--out", out or source.with_name(f"{source.name}.gguf"))
        said = _write_gguf(_read(source, copy), place, dtype, check)
    else:
        place = out or source.with_name(f"{source.name}-{format}")
        said = _write_folder(format, source, place, (dtype, check, copy))
    typer.echo(f"{place}: {said}")


def _write_folder(format: str, source: Path, folder: Path, options: tuple[str | None, bool | None, bool]) -> str:
    """Export to the new folder ``folder``; return the message. ``options``: dtype, check and copy."""
    dtype, check, copy = options
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name another folder with --out")
    if format == "peft":
        return _write_adapter(source, folder, dtype, copy)
    if format == "onnx":
        return _write_onnx(source, folder, dtype, copy)
    return _write(_read(source, copy), folder, dtype, check)


def _write_onnx(source: Path, folder: Path, dtype: str | None, copy: bool) -> str:
    """Write the model of ``source`` as an ONNX file to ``folder``; return a sentence on its inputs and outputs."""
    from qkv.interop.load import precision
    from qkv.interop.onnx.save import pooled_as, save_beside, save_onnx
    from qkv.interop.sentence import read_sentence

    if dtype not in (None, "fp32"):
        raise UserError(f"--dtype {dtype}: an ONNX file is written in fp32; leave the option out")
    settings = read_sentence(source) if is_sentence_folder(source) else None
    read = _read(source if settings is None else settings.body, copy)
    model = read.model.to(precision("fp32"))
    with _partial(folder) as partial:
        said = save_onnx(model, partial, settings and pooled_as(settings))
        save_beside(partial, model.spec, read.tokenizer, read.labels, read.temperature, read.processor)
    return said


def _write_gguf(read: _Source, file: Path, dtype: str | None, check: bool | None) -> str:
    """Write ``file`` through a temporary file; return the message with family, weight type and comparison."""
    from qkv.interop.check import LIMIT, size_of
    from qkv.interop.gguf.check import compare_gguf
    from qkv.interop.gguf.write import save_gguf

    if file.exists():
        raise UserError(f"{file} exists; name another file with --out")
    partial = file.with_name(f"{file.stem}-partial-{os.getpid()}.gguf")
    try:
        written = save_gguf(read.model, partial, read.tokenizer, dtype, read.family, read.ends)
        asked = size_of(read.model) <= LIMIT if check is None else check
        said = compare_gguf(partial, written.type) if asked else "not compared with llama.cpp"
        partial.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return "\n".join((f"{written.family}, {written.type}", *written.notes, said))


def _write_adapter(source: Path, folder: Path, dtype: str | None, copy: bool) -> str:
    """Write the adapter of ``source`` to ``folder`` in PEFT's format; return the message that lists its files."""
    from qkv.interop.adapters.write import save_adapter
    from qkv.interop.load import precision
    from qkv.runs.storage.load import load_adapted

    if not (source / "spec.yaml").is_file():
        raise UserError(
            f"{source} is a published checkpoint; only a run trained with an adapter can be exported as peft"
        )
    run = load_adapted(source, copy=copy)
    model = run.model.to(precision(dtype)) if dtype else run.model
    begun = run.recipe.start.checkpoint
    found = save_adapter(model, run.recipe.training, folder, begun, _adapted(begun))
    said = f"an adapter of rank {found.config['r']} on {', '.join(found.config['target_modules'])}"
    if found.rows is None:
        return said
    run.tokenizer.save(folder)
    return (
        f"{said}\nit includes a token table of {found.rows:,} rows: call model.resize_token_embeddings({found.rows}) "
        "before loading the adapter"
    )


def _adapted(source: str | None) -> Model | None:
    """Return the spec of the base model ``source`` of an adapter run; None if it cannot be found."""
    from qkv.runs.start import find_start

    try:
        return None if source is None else find_start(source).model
    except UserError:
        return None


class _Source(NamedTuple):
    """Model to export.

    tokenizer, labels, begin: tokenizer, class names, and ids that start a target.   family: published family, "" if
    not known.   kept: tensors of the checkpoint that are written unchanged.   processor: processor of inputs other than
    text, or None.   temperature: divisor of the logits of a classifier, for calibrated probabilities.   ends: ids of
    tokens that end a text.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    labels: Sequence[str] = ()
    family: str = ""
    begin: Sequence[int] = ()
    kept: Mapping[str, Tensor] | None = None
    processor: Processor | None = None
    temperature: float = 1.0
    ends: Sequence[int] = ()


def _read(source: Path, copy: bool) -> _Source:
    from qkv.interop.load import load_published
    from qkv.models.wide import DEEP
    from qkv.runs.inference.end_tokens import end_ids
    from qkv.runs.storage.load import load
    from qkv.tasks.pairs.pairs import marks

    if not (source / "spec.yaml").is_file():
        found = load_published(source, copy=copy)
        own = found.model, found.tokenizer, found.labels, found.family, found.begin, found.kept, found.processor
        return _Source(*own, ends=found.sample.stop_token_ids)
    run = load(source, copy=copy, device="cpu")  # files are written from CPU memory
    if run.recipe.quantized is not None:
        raise UserError(f"{source} has quantised weights; export the original run")
    if not run.vocabulary.shared:
        raise UserError(f"{source} uses different tokenizers for input and output, which no published family supports")
    if run.model.wide is not None:
        worse = "" if run.model.wide.reads(DEEP) else "; on the validation data, it alone was better than the model"
        run.model.drop_wide()
        typer.echo(f"the linear path beside the model is left out, as no other library has it{worse}", err=True)
    begin = marks(run.vocabulary, getattr(run.recipe.task, "begin", ())).begin if run.model.encoder else ()
    tokenizer, processor = run.tokenizer if run.vocabulary.has_text else None, run.vocabulary.processor
    labels, heat = run.vocabulary.labels, run.temperature
    ends = end_ids(run)
    return _Source(run.model, tokenizer, labels, begin=begin, processor=processor, temperature=heat, ends=ends)


def _write(read: _Source, folder: Path, dtype: str | None, check: bool | None) -> str:
    """Export to ``folder`` through a temporary folder; return the message with family, architecture and comparison.

    ``check``: compare the logits with those of the transformers library; None: for small models only.
    """
    from qkv.interop.check import LIMIT, compare, size_of
    from qkv.interop.load import precision

    read = read._replace(model=read.model.to(precision(dtype))) if dtype else read
    with _partial(folder) as partial:
        family = _write_model(read, partial)
        asked = size_of(read.model) <= LIMIT if check is None else check
        unasked = "not compared with the transformers library, " + (
            "as it is large (--check)" if check is None else "as asked"
        )
        said = compare(read.model, partial) if asked else unasked
    return f"{family}\n{said}"


@contextmanager
def _partial(folder: Path) -> Generator[Path]:
    """Context manager that yields a temporary folder; at the end it is renamed to ``folder``, on errors removed."""
    partial = folder.with_name(f"{folder.name}-partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(folder)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_model(read: _Source, folder: Path) -> str:
    from qkv.interop.custom_code import save_with_code
    from qkv.interop.save import covering, save_published

    if covering(read.model.spec, read.family) is None:
        try:
            save_with_code(read.model, folder, read.tokenizer)
        except UserError as error:
            raise UserError(f"no published family that qkv knows has this structure, and {error}") from None
        return (
            "no published family has this structure, so the folder contains its own model code, modeling_qkv.py; "
            "transformers opens it with trust_remote_code=True if qkv is installed"
        )
    own = read.tokenizer, read.labels, read.family, read.begin, read.kept, read.processor
    written = save_published(read.model, folder, *own, read.ends)
    return f"{written.family.name} ({written.architecture})"
