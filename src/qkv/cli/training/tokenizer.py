"""Command ``qkv tokenizer``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.runs import output_file
from qkv.spec import tokenizers as spec
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.data.corpora.text import TextSource

EXAMPLES = """\
qkv tokenizer train my.txt --kind wordpiece --vocab-size 8000 --out tokenizer.json
qkv tokenizer train src/*.py --kind code
qkv tokenizer show tokenizer.json "How is this split?"
"""

_ACTIONS = ("train", "show")
_MEASURED = 1 << 18


def tokenizer_command(
    action: Annotated[
        str, typer.Argument(metavar="train|show", help="Train a tokenizer on texts, or show how one splits a text.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE... | TOKENIZER TEXT", help="train: text files (may be gzipped); show: a tokenizer and a text."
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="Tokenizer scheme: bpe, wordpiece, unigram, words, code, …")] = "bpe",
    vocab_size: Annotated[int | None, typer.Option(help="Maximum vocabulary size; default: the scheme's.")] = None,
    lowercase: Annotated[bool | None, typer.Option(help="Lowercase the text; default: the scheme's.")] = None,
    min_frequency: Annotated[
        int | None, typer.Option(help="Minimum frequency of a word or piece; default: the scheme's.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("tokenizer.json"),
) -> None:
    """Train a tokenizer on text files and save it as tokenizer.json, or show the tokens of a text with their ids and
    offsets.
    """
    files = inputs or []
    if action == "train":
        output_file("--out", out, *files)
        fields = {"vocab_size": vocab_size, "lowercase": lowercase, "min_frequency": min_frequency}
        _train(_scheme(kind, {name: value for name, value in fields.items() if value is not None}), files, out)
    elif action == "show":
        if len(files) != 2:
            raise UserError(
                'show takes a tokenizer and one text, as in: qkv tokenizer show tokenizer.json "a text"; '
                f"{len(files)} were given"
            )
        _show(*files)
    else:
        raise UserError(f"there is no action {action!r}; {nearest(action, _ACTIONS)}")


def _scheme(kind: str, fields: dict[str, Any]) -> spec.Tokenizer:
    kinds = {name: part for name, part in spec.Tokenizer.kinds().items() if part is not spec.TokenizerFile}
    if kind not in kinds:
        raise UserError(f"there is no trainable tokenizer {kind!r}; {nearest(kind, kinds)}")
    for name in fields:
        if name not in kinds[kind].model_fields:
            having = ", ".join(sorted(other for other, part in kinds.items() if name in part.model_fields))
            raise UserError(
                f"--{name.replace('_', '-')} does not apply to the tokenizer {kind!r}; it applies to: {having}"
            )
    return kinds[kind].parse(fields)


def _train(scheme: spec.Tokenizer, files: list[str], out: Path) -> None:
    from qkv.data.corpora.text import TextSource
    from qkv.report.table import print_table
    from qkv.tokenizers.train import train

    sample = scheme.sample
    if not files and sample != 0:
        raise UserError(f"the tokenizer {scheme.kind!r} is trained on text; name at least one text file")
    paths = {name: Path(name).expanduser() for name in files}
    for name, path in paths.items():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{name} is not a regular file, and a text is read more than once; name a text file")
    texts = [TextSource.of_file(paths[name], name) for name in files]
    characters = sum(text.characters() for text in texts)
    if not characters and sample != 0:
        raise UserError(f"there is no text in {', '.join(files)}")
    tokenizer = train(scheme, _pieces(texts, characters, sample) if sample != 0 else ())
    tokenizer.save(out)
    rows: list[tuple[str, object]] = [
        ("kind", scheme.kind),
        ("ids", tokenizer.vocab_size),
        ("characters read", characters),
    ]
    if first := "".join(next(_pieces([text], characters, None), "") for text in texts)[:_MEASURED]:
        rows.append(("characters per token", round(len(first) / max(1, len(tokenizer.encode_array(first))), 2)))
    print_table(str(out), ["property", "value"], rows)


def _pieces(texts: list[TextSource], characters: int, most: int | None) -> Iterator[str]:
    """Yield pieces of ``texts`` that end at white space; an evenly spread sample if they exceed ``most`` characters."""
    from qkv.data.corpora.documents import pieces
    from qkv.tokenizers.coders import SpaceBorders

    every = max(1, -(-characters // most)) if most else 1
    blocks = (block for text in texts for block in pieces(text.blocks(), SpaceBorders(), None))
    for i, block in enumerate(blocks):
        if i % every == 0:
            yield from block.texts


def _show(file: str, text: str) -> None:
    from qkv.report.table import print_table
    from qkv.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(file)
    ids, spans = tokenizer.encode_offsets(text)
    rows = [
        (tokenizer.core.id_to_token(index), index, begin, end, repr(text[begin:end]))
        for index, (begin, end) in zip(ids, spans, strict=True)
    ]
    print_table(f"{len(text):,} characters, {len(ids):,} ids", ["piece", "id", "begin", "end", "text"], rows)
