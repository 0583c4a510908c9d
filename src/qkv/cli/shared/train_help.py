"""Help of ``qkv train VERB``: only the options that apply to the verb."""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperCommand

from qkv.choosing.verbs import VERBS
from qkv.cli.shared.verbs import FINETUNE, table_options

_SUMMARIES = {
    "classify": "Train a classifier of texts, pairs of texts, images, series of numbers or graphs, on a table with a "
    "column of classes, or on a folder of images or clips.",
    "multilabel": "Train a model that gives texts any number of labels, on a table with a column of lists of labels.",
    "regress": "Train a model that predicts a number from a text, an image, a series of numbers or a graph, on a table "
    "with a column of numbers.",
    "transcribe": "Train a model that transcribes sounds, or series of numbers, on a table with columns of files "
    "and of texts.",
    "tag": "Train a model that tags words, on CoNLL files or a table with columns of words and tags.",
    "answer": "Train a model that finds answers in a text, on SQuAD files or a table of questions and answers.",
    "translate": "Train a translator on two texts, line by line, or on a table with both languages.",
    "forecast": "Train a model that forecasts time series, on a table with columns of time stamps and numbers.",
    "edges": "Train a model that predicts missing edges of a graph, on a table of edges, 'nodes.csv | edges.csv' or an "
    ".npz file.",
    "summarize": "Train a model that summarizes texts, on a table with a column of summaries.",
    "caption": "Train a model that describes images, sounds or series of numbers in words, on a table with columns of "
    "files and of captions.",
    "match": "Train a model that places two inputs, such as images and texts, in one space of vectors, on a table with "
    "a column of each.",
    "compress": "Train a neural codec of sounds, on a table with a column of sound files, or on a folder of them.",
    "speak": "Train a model that speaks texts as codes of a neural codec (--codec), on a table with columns of texts, "
    "sound files and, for several voices, speakers.",
    "chat": "Train a chat model on conversations, from an existing model (--from), on a table with a column of "
    "messages, or of prompts and completions.",
    "prefer": "Train a chat model on preferences, from an existing model (--from), on a table with prompts and with "
    "chosen and rejected answers, or with answers and labels.",
    FINETUNE: "Finetune an existing model on a table; the task is inferred from the data, or set by --task.",
}
_REST = (
    "Columns that are not named are guessed and reported. All other settings are chosen for the data and this machine."
)


class Command(TyperCommand):
    """Typer command for ``qkv train``, whose help depends on the verb in the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and store its verb for ``get_help``."""
        ctx.meta["verb"] = next((arg for arg in args if arg in _SUMMARIES), "")
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Return the help text for the verb in the command line; without a verb, the help for recipes and texts."""
        verb: str = ctx.meta.get("verb", "")
        clone = copy.copy(self)
        clone.params = [param for param in self.params if applies(str(param.name), verb)]
        if verb:
            ctx.info_name = f"train {verb}"
            clone.help = f"{_SUMMARIES[verb]}\n\n{_REST}"
            command = f"qkv train {verb} "
            lines = (self.epilog or "").split("\n")
            clone.epilog = "\n".join(line for line in lines if "qkv train" not in line or command in line)
        return TyperCommand.get_help(clone, ctx)


def applies(option: str, verb: str) -> bool:
    """Return whether the parameter ``option`` of ``qkv train`` applies to ``verb``; "": a recipe or a text."""
    if option not in table_options():
        return not (option == "recipe" and verb)
    if option == "task":
        return verb == FINETUNE
    columns = {name for entry in VERBS.values() for name in (*entry.columns, *entry.settings)}
    if option not in columns:
        return bool(verb)
    return verb == FINETUNE or (verb != "" and option in (*VERBS[verb].columns, *VERBS[verb].settings))
