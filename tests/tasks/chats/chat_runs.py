"""A tiny model with a chat template, and data for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import qkv
from qkv.spec import tokenizers as spec
from qkv.spec.branches import GRU, Attention, Branch, FeedForward, GatedFeedForward
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "the cat sat on the mat and the dog ran to the house with a red ball. user assistant system "


def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """Byte pairs with the marks of ChatML; the end of a turn also pads."""
    plain = train(spec.BPE(vocab_size=300), [WORDS * 20])
    made = plain.with_specials((), extra=(START, END))
    return Tokenizer(made.core, {"eos": END, "pad": END}, template)


def start(
    folder: Path, template: str | None = TEMPLATE, mixer: Branch | None = None, context: int = 96, llama: bool = False
) -> Path:
    """A saved model with random weights. llama: of a form that other libraries open."""
    made = tokenizer(template)
    branch = mixer or Attention(num_heads=2, relative=Rope())
    frontend = Text(vocab_size=made.vocab_size, positions=NoPositions())
    if llama:
        block = Block(
            branches=(Attention(num_heads=2, relative=Rope(), bias=False), GatedFeedForward()), norm=RMSNorm()
        )
        model = Model(
            num_layers=2, width=32, context_length=context, frontend=frontend, blocks=(block,), norm=RMSNorm()
        )
        return qkv.save(qkv.build(model, seed=3), folder, made)
    blocks = (Block(branches=(branch, FeedForward())),)
    model = Model(num_layers=2, width=32, context_length=context, frontend=frontend, blocks=blocks)
    return qkv.save(qkv.build(model, seed=3), folder, made)


def recurrent() -> Branch:
    """A mixer whose state has to be reset between conversations."""
    return GRU()


def talk(*texts: str, system: str = "") -> dict[str, Any]:
    """A conversation of user and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": [*([{"role": "system", "content": system}] if system else []), *messages]}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
