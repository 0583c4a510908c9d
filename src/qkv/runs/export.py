"""Export of runs and published checkpoints in formats that other libraries open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.interop.files.places import is_sentence_folder
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.data.vocabulary import Vocabulary
    from qkv.models.transformer import Transformer
    from qkv.spec.model import Model
    from qkv.spec.processors import Processor
    from qkv.tokenizers.tokenizer import Tokenizer

FORMATS = {
    "hf": "a folder in Hugging Face format, which the transformers library and serving engines open",
    "gguf": "one file, which llama.cpp opens",
    "peft": "only the adapter of a run trained with training.adapt: lora, in the format of the PEFT library",
    "onnx": "model.onnx for onnxruntime and others, for any number and length of rows, with tokenizer and labels",
}


class Exported(NamedTuple):
    """Result of an export.

    place: the folder, or the GGUF file.   summary: family or adapter, precision, and comparison with another
    library.   notes: sentences on what was left out.
    """

    place: Path
    summary: str
    notes: tuple[str, ...] = ()


def export(
    source: str | Path,
    place: Path,
    format: str = "hf",
    dtype: str | None = None,
    check: bool | None = None,
    copy: bool = False,
) -> Exported:
    """Write the run or published checkpoint ``source`` to ``place``, in one of ``FORMATS``.

    place: result of ``choose_place``. dtype: precision of the weights ("fp32", "bf16", "fp16"; GGUF also "q8_0" and
    "q4_0"); None: unchanged. check: compare the logits of the result, as another library opens it, with those of the
    model; None: for models up to 2 GiB in fp32. copy: as for ``load``. Raises ``UserError``.
    """
    source = Path(source)
    if format == "peft":
        return _write_adapter(source, place, dtype, copy)
    if format == "onnx":
        return _write_onnx(source, place, copy)
    read = _read(source, copy)
    summary = _write_gguf(read, place, dtype, check) if format == "gguf" else _write_folder(read, place, dtype, check)
    return Exported(place, summary, read.notes)


def choose_place(
    source: str | Path, out: str | Path | None, format: str, dtype: str | None = None, option: str = ""
) -> Path:
    """Return the folder, or for GGUF the file, to export to: ``out``, by default beside ``source``.

    Needs no torch. ``option``: prefix of argument names in error messages, such as "--" for the command line. Raises
    ``UserError`` for an unknown format, a place that is taken, and a precision that the format does not have.
    """
    if format not in FORMATS:
        raise UserError(f"there is no format {format!r}; {nearest(format, FORMATS)}")
    if format == "onnx" and dtype not in (None, "fp32"):
        raise UserError(f"{option}dtype {dtype}: an ONNX file is written in fp32; leave the option out")
    path = Path(source)
    if format == "gguf":
        file = path.with_name(f"{path.name}.gguf") if out is None else Path(out)
        if file.exists():
            raise UserError(f"{file} exists; name another file with {option}out")
        return file
    folder = path.with_name(f"{path.name}-{format}") if out is None else Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name another folder with {option}out")
    return folder


def _write_onnx(source: Path, folder: Path, copy: bool) -> Exported:
    """Write the model of ``source`` as an ONNX file to ``folder``; the summary names its inputs and outputs."""
    from qkv.interop.load import precision
    from qkv.interop.onnx.save import pooled_as, save_beside, save_onnx
    from qkv.interop.sentence import read_sentence

    settings = read_sentence(source) if is_sentence_folder(source) else None
    read = _read(source if settings is None else settings.body, copy)
    model = read.model.to(precision("fp32"))
    with _partial(folder) as partial:
        summary = save_onnx(model, partial, settings and pooled_as(settings))
        save_beside(partial, model.spec, read.tokenizer, read.labels, read.temperature, read.processor)
    return Exported(folder, summary, read.notes)


def _write_gguf(read: _Source, file: Path, dtype: str | None, check: bool | None) -> str:
    """Write ``file`` through a temporary file; return the message with family, weight type and comparison."""
    from qkv.interop.check import LIMIT, size_of
    from qkv.interop.gguf.check import compare_gguf
    from qkv.interop.gguf.write import save_gguf

    partial = file.with_name(f"{file.stem}-partial-{os.getpid()}.gguf")
    try:
        written = save_gguf(read.model, partial, read.tokenizer, dtype, read.family, read.ends)
        verify = size_of(read.model) <= LIMIT if check is None else check
        summary = compare_gguf(partial, written.type) if verify else "not compared with llama.cpp"
        partial.replace(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return "\n".join((f"{written.family}, {written.type}", *written.notes, summary))


def _write_adapter(source: Path, folder: Path, dtype: str | None, copy: bool) -> Exported:
    """Write the adapter of ``source`` to ``folder`` in PEFT's format; the summary names its rank and matrices."""
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
    adapter = save_adapter(model, run.recipe.training, folder, begun, _adapted(begun))
    summary = f"an adapter of rank {adapter.config['r']} on {', '.join(adapter.config['target_modules'])}"
    if adapter.rows is not None:
        run.tokenizer.save(folder)
        summary += (
            f"\nit includes a token table of {adapter.rows:,} rows: call model.resize_token_embeddings({adapter.rows}) "
            "before loading the adapter"
        )
    return Exported(folder, summary)


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
    tokens that end a text.   notes: sentences on what is left out.   kept_config: keys of the checkpoint's config that
    are written unchanged.
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
    notes: tuple[str, ...] = ()
    kept_config: Mapping[str, Any] | None = None


def _notes_of_tokenizers(vocabulary: Vocabulary, source: Path) -> tuple[str, ...]:
    """Return what an export leaves out. Raises ``UserError`` if input and output have different ids."""
    if not vocabulary.same_ids:
        raise UserError(f"{source} uses different tokenizers for input and output, and qkv writes only one")
    return () if vocabulary.shared else ("tokenizer.json splits all texts as those of the input; ids are the same",)


def _read(source: Path, copy: bool) -> _Source:
    from qkv.data.vocabulary import Vocabulary
    from qkv.interop.load import load_published
    from qkv.models.edit.quantize import widened
    from qkv.models.wide import DEEP
    from qkv.runs.inference.end_tokens import end_ids
    from qkv.runs.storage.load import load
    from qkv.tasks.pairs.pairs import marks

    if not (source / "spec.yaml").is_file():
        content = load_published(source, copy=copy)
        notes = ()
        if content.tokenizer is not None and content.target_tokenizer is not None:
            notes = _notes_of_tokenizers(Vocabulary(content.tokenizer, content.target_tokenizer), source)
        parts = (
            content.model,
            content.tokenizer,
            content.labels,
            content.family,
            content.begin,
            content.kept,
            content.processor,
        )
        return _Source(*parts, ends=content.sample.stop_token_ids, kept_config=content.kept_config, notes=notes)
    run = load(source, copy=copy, device="cpu")  # files are written from CPU memory
    if run.recipe.quantized is not None and run.recipe.training.adapt.adds_matrices:
        widened(run.model)
    elif run.recipe.quantized is not None:
        raise UserError(f"{source} has quantised weights; export the original run")
    notes = _notes_of_tokenizers(run.vocabulary, source)
    if run.wide is not None:
        worse = "" if run.wide.reads(DEEP) else "; on the validation data, it alone was better than the model"
        notes += (f"the linear path beside the model is left out, as no other library has it{worse}",)
    begin = marks(run.vocabulary, getattr(run.recipe.task, "begin", ())).begin if run.model.encoder else ()
    tokenizer = run.tokenizer if run.vocabulary.has_text else None
    processor = run.vocabulary.processor or next(iter(run.vocabulary.processors.values()), None)
    labels, heat = run.vocabulary.labels, run.temperature
    content = _Source(run.model, tokenizer, labels, begin=begin, processor=processor, temperature=heat)
    return content._replace(ends=end_ids(run), notes=notes)


def _write_folder(read: _Source, folder: Path, dtype: str | None, check: bool | None) -> str:
    """Export to ``folder`` through a temporary folder; return the message with family, architecture and comparison.

    ``check``: compare the logits with those of the transformers library; None: for small models only.
    """
    from qkv.interop.check import LIMIT, compare, size_of
    from qkv.interop.load import precision

    read = read._replace(model=read.model.to(precision(dtype))) if dtype else read
    with _partial(folder) as partial:
        family = _write_model(read, partial)
        verify = size_of(read.model) <= LIMIT if check is None else check
        unasked = "not compared with the transformers library, " + (
            "as it is large (option 'check')" if check is None else "as asked"
        )
        summary = compare(read.model, partial) if verify else unasked
    return f"{family}\n{summary}"


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
    parts = read.tokenizer, read.labels, read.family, read.begin, read.kept, read.processor
    written = save_published(read.model, folder, *parts, read.ends, read.kept_config)
    return f"{written.family.name} ({written.architecture})"
