"""Next commands for a trained run, depending on its task."""

from __future__ import annotations

import shlex
from pathlib import Path

from qkv.data.processors.processor import build_processor
from qkv.tasks.task import Task


def counted(task: Task) -> str:
    """Return the name of the items over which a task's loss is averaged, such as "tokens" or "examples"."""
    return f"{task.loss_unit.rpartition(' ')[2]}s"


def usage(task: Task, folder: str | Path, opening: str = "") -> tuple[str, str]:
    """Return (purpose, shell command) for using a trained run.

    ``qkv chat`` for chats, ``qkv predict`` for tasks with inputs, ``qkv search`` for matching, the command that the
    task names, else ``qkv generate``. ``opening``: example input.
    """
    name = shlex.quote(str(folder))
    if task.chats:
        return "chat", f"qkv chat {name}"
    if task.predicts_tables:
        return "predict", f"qkv predict {name} --data {opening if opening not in ('', '…') else 'new.csv'}"
    if task.generates_images:
        return "generate images", f"qkv generate {name} --image images.png --num-samples 16"
    if task.next_command:
        return task.next_command.split()[1], task.next_command.format(run=name)
    if task.couples_rows:
        return "search", f'qkv search {name} FOLDER "{opening or "…"}"'
    if not task.asks:
        return "generate text", f'qkv generate {name} "{opening or "Once upon a time"}"'
    if task.processor is not None:
        opening = build_processor(task.processor).example
    elif opening in ("", "…"):
        opening = task.example
    options = "".join(" --context @page.txt" if role == "context" else f" --set {role}=…" for role in task.asks[1:])
    return "predict", f'qkv predict {name} "{opening}"{options}'
