"""Commands that use a published model."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.interop.load import PublishedModel
    from qkv.runs.run import Run

_SHOWN = 4
"""Maximum number of tasks of a config for which a command is shown."""


def commands_of(folder: Path, checkpoint: PublishedModel) -> list[str]:
    """List the commands that use a published model: those of its head, embedding, search, reranking and fine-tuning."""
    from qkv.runs.inference.rerank import scorer_kind
    from qkv.runs.run import task_of
    from qkv.runs.storage.load import run_of
    from qkv.runs.uses.zero_shot import inference_classes
    from qkv.training.usage import usage

    name, commands, run = shlex.quote(str(folder)), list[str](), None
    with contextlib.suppress(UserError):  # a head for which there is no task
        run = run_of(checkpoint)
        commands.append(usage(task_of(run), folder)[1])
    if checkpoint.tokenizer is None:
        return commands
    if run is not None and task_of(run).transcribes:
        return [*commands, f"qkv transcribe {name} talk.wav --format srt"]
    if run is not None:
        commands += _of_text_to_text(run, name)
        if task_of(run).finds_entities:
            commands.append(f'qkv predict {name} "…" --group first --json')
        with contextlib.suppress(UserError):
            inference_classes(run)
            commands.append(f'qkv predict {name} "…" --label LABEL --label LABEL')
        if run.model.spec.decodes and checkpoint.tokenizer.chat_template is not None:
            commands.append(f"qkv chat {name}")
        if scorer_kind(run, None) in ("cross-encoder", "language model"):
            commands.append(f'qkv rerank {name} "QUERY" "DOCUMENT" "DOCUMENT"')
    commands += [f'qkv embed {name} "…"', f'qkv search {name} FILE "…"']
    return [*commands, f"qkv train finetune --from {name} --data FILE"]


def _of_text_to_text(run: Run, name: str) -> list[str]:
    """List the commands for the languages and the tasks of a model that writes a text from a text."""
    from qkv.interop.writing import settings_of_tasks
    from qkv.runs.run import task_of
    from qkv.runs.uses.text_to_text import language_tokens

    if not task_of(run).writes_from_source:
        return []
    languages = language_tokens(run.tokenizer)
    source, target = [*languages.tokens, "", ""][:2]
    codes = f"--from {source} --to {target}" if languages.begins_target else f"--to {source}"
    translate = [f'qkv predict {name} "…" {codes}'] if languages.tokens else []
    tasks = list(settings_of_tasks(run.folder))[:_SHOWN]
    return [*translate, *(f'qkv predict {name} "…" --task {shlex.quote(task)}' for task in tasks)]
