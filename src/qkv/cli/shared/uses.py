"""Commands that use a published model."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.interop.load import PublishedModel


def commands_of(folder: Path, checkpoint: PublishedModel) -> list[str]:
    """List the commands that use a published model: those of its head, embedding, search, reranking and fine-tuning."""
    from qkv.runs.inference.rerank import scorer_kind
    from qkv.runs.inference.zero_shot import inference_classes
    from qkv.runs.run import task_of
    from qkv.runs.storage.load import run_of
    from qkv.training.usage import usage

    name, commands, run = shlex.quote(str(folder)), list[str](), None
    with contextlib.suppress(UserError):  # a head for which there is no task
        run = run_of(checkpoint)
        commands.append(usage(task_of(run), folder)[1])
    if checkpoint.tokenizer is None:
        return commands
    if run is not None:
        with contextlib.suppress(UserError):
            inference_classes(run)
            commands.append(f'qkv predict {name} "…" --label LABEL --label LABEL')
        if run.model.spec.decodes and checkpoint.tokenizer.chat_template is not None:
            commands.append(f"qkv chat {name}")
        if scorer_kind(run, None) in ("cross-encoder", "language model"):
            commands.append(f'qkv rerank {name} "QUERY" "DOCUMENT" "DOCUMENT"')
    commands += [f'qkv embed {name} "…"', f'qkv search {name} FILE "…"']
    return [*commands, f"qkv train finetune --from {name} --data FILE"]
