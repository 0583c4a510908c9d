"""Options of commands that prompt a model with examples, without slow imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from qkv.generation.few_shot import Template
    from qkv.runs.inference.ask import FewShotRows


class PromptOptions(NamedTuple):
    """Options of prompts with examples."""

    examples: Annotated[
        str | None, typer.Option(metavar="FILE", help="Table of examples with labels (CSV, TSV, JSONL, …).")
    ] = None
    template: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text of an example, fields in braces; default: {text}, {label}.")
    ] = None
    num_examples: Annotated[int, typer.Option(metavar="K", min=0, help="Maximum number of examples in the prompt.")] = 8

    def form(self) -> Template:
        """Parse the text of ``--template``, in which ``\\n`` is a line break. Raises ``UserError``."""
        from qkv.generation.few_shot import TEMPLATE, Template

        return Template(TEMPLATE if self.template is None else self.template.replace("\\n", "\n"))

    def example_rows(self, columns: Mapping[str, str]) -> FewShotRows:
        """Read the table of ``--examples``; no rows without it. Raises ``UserError``."""
        from qkv.runs.inference.ask import FewShotRows, read_rows

        if self.examples is None:
            return FewShotRows([], None, [])
        return read_rows(self.examples, self.form(), "--examples", columns, labelled=True)
