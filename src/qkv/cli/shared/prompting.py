"""Options of commands that prompt a model with examples, without slow imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qkv.generation.few_shot import Template

Examples = Annotated[
    str | None, typer.Option(metavar="FILE", help="Table of examples with labels (CSV, TSV, JSONL, …).")
]
TemplateText = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text of an example, fields in braces; default: {text}, {label}.")
]
NumExamples = Annotated[int, typer.Option(metavar="K", min=0, help="Maximum number of examples in the prompt.")]
NUM_EXAMPLES = 8


def template_of(text: str | None) -> Template:
    """Parse the text of ``--template``, in which ``\\n`` is a line break; None: the default. Raises ``UserError``."""
    from qkv.generation.few_shot import TEMPLATE, Template

    return Template(TEMPLATE if text is None else text.replace("\\n", "\n"))
