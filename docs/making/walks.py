"""Print the source files that a call passes through, in the order of first use: ``python docs/making/walks.py [NAME]``.

A file is passed through if a function of it runs. Names: attention, token, text, chat; without a name, all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch

import qkv
from qkv.layers.context import Context
from qkv.mixers.attention import attention as mixer
from qkv.ops.attention import reference
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe

PACKAGE = Path(qkv.__file__).parent
MODEL = {
    "width": 16,
    "context_length": 64,
    "frontend": {"kind": "text", "vocab_size": 64},
    "blocks": [{"branches": ["attention(2)", "feed_forward"]}],
}
"""Plain decoder: learned positions, causal multi-head attention, feed-forward layers."""
RECIPE = {
    "data": {"source": "", "tokenizer": "characters"},
    "model": {**MODEL, "frontend": {"kind": "text"}},
    "training": {"steps": 2, "batch_size": 2},
}
TEXT = "User: the quick brown fox\nAssistant: jumps over the lazy dog\n" * 40
TEMPLATE = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}Assistant:"


def walk(call: Callable[[], Any]) -> list[str]:
    """Return the files of the package whose functions run during ``call``, in all threads that start in it."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(PACKAGE):
            files.setdefault(path.relative_to(PACKAGE).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(files)


def attention() -> list[str]:
    """Walk of plain multi-head attention on a whole row, computed by the reference."""
    branch = qkv.build(Model.parse(MODEL)).eval().branches[0]
    x, context = torch.randn(1, 8, 16), Context(torch.arange(8)[None])
    with torch.inference_mode(), patch.object(mixer, "attention", reference.attention):
        return walk(lambda: branch(x, context))


def token() -> list[str]:
    """Walk of one token that a plain model decodes."""
    model = qkv.build(Model.parse(MODEL)).eval()
    with torch.inference_mode():
        state = model.decode([[1]], model.init_state(1)).state
        return walk(lambda: model.decode([[2]], state))


def text() -> list[str]:
    """Walk of a text file: training of two steps, from the recipe to the run's report."""
    with tempfile.TemporaryDirectory() as folder:
        return walk(lambda: _train(Path(folder)))


def chat() -> list[str]:
    """Walk of the first chat request of a server, from HTTP to its answer."""
    with tempfile.TemporaryDirectory() as folder:
        run = _train(Path(folder))
        run.tokenizer.chat_template = TEMPLATE
        return walk(lambda: _ask(run))


def _ask(run: qkv.Run) -> None:
    from starlette.testclient import TestClient

    from qkv.serving.engine.model import ServedModel
    from qkv.serving.engine.service import Service
    from qkv.serving.http.app import Access, app_of
    from qkv.serving.limits import Limits

    limits = Limits()
    body = {"model": "m", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 4}
    with TestClient(
        app_of(Service({"m": ServedModel("m", run, limits)}, limits), Access()), base_url="http://127.0.0.1"
    ) as client:
        client.post("/v1/chat/completions", json=body).raise_for_status()


def _train(folder: Path) -> qkv.Run:
    source = folder / "text.txt"
    source.write_text(TEXT, encoding="utf-8")
    recipe = Recipe.parse({**RECIPE, "data": {**RECIPE["data"], "source": str(source)}})
    return qkv.train(recipe, out=folder / "run", on_event=lambda event: None)


WALKS: dict[str, Callable[[], list[str]]] = {"attention": attention, "token": token, "text": text, "chat": chat}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", choices=[*WALKS, []])
    for name in parser.parse_args().name or WALKS:
        files = WALKS[name]()
        print(f"{name}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
