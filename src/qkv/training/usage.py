"""What a person does next with a trained run: the commands that its task has a use for."""

from __future__ import annotations

import shlex
from pathlib import Path

from qkv.tasks.task import Task


def counted(task: Task) -> str:
    """What a task's targets are, such as tokens or examples: its loss is a mean over them."""
    return f"{task.loss_unit.rpartition(' ')[2]}s"


def usage(task: Task, folder: str | Path, opening: str = "") -> tuple[str, str]:
    """(what it does, the command): ``qkv predict`` for a task that answers, else ``qkv generate``; ``opening`` stands for the input."""
    name = shlex.quote(str(folder))
    if not task.asks:
        return "write with it", f'qkv generate {name} "{opening or "Once upon a time"}"'
    others = "".join(" --context @page.txt" if asked == "context" else f" --set {asked}=…" for asked in task.asks[1:])
    return "let it answer", f'qkv predict {name} "{opening or "…"}"{others}'
