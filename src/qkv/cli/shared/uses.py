"""Commands that use a published model."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.spec.errors import UserError

if TYPE_CHECKING:
    from qkv.interop.load import PublishedModel


def commands_of(folder: Path, found: PublishedModel) -> list[str]:
    """List the commands that use a published model: those of its head, embedding, search, reranking and fine-tuning."""
    from qkv.runs.inference.rerank import scorer_kind
    from qkv.runs.inference.zero_shot import inference_classes
    from qkv.runs.storage.load import run_of
    from qkv.runs.storage.published import recipe_of
    from qkv.tasks.registry import task_of_recipe
    from qkv.training.usage import usage

    name, told, run = shlex.quote(str(folder)), list[str](), None
    with contextlib.suppress(UserError):  # a head for which there is no task
        told.append(usage(task_of_recipe(recipe_of(found)), folder)[1])
        run = run_of(found)
    if run is not None and found.tokenizer is not None:
        with contextlib.suppress(UserError):
            inference_classes(run)
            told.append(f'qkv predict {name} "…" --label LABEL --label LABEL')
        if run.model.spec.decodes and found.tokenizer.chat_template is not None:
            told.append(f"qkv chat {name}")
        kind = scorer_kind(run, None)
        if kind in ("cross-encoder", "language model"):
            told.append(f'qkv rerank {name} "QUERY" "DOCUMENT" "DOCUMENT"')
    if found.tokenizer is None:
        return told
    told += [f'qkv embed {name} "…"', f'qkv search {name} FILE "…"']
    return [*told, f"qkv train finetune --from {name} --data FILE"]
