"""Runs of small random models, made in memory, as a server has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.generation.models import STACKS

import qkv
from qkv.data.vocabulary import Vocabulary
from qkv.runs.run import Run
from qkv.spec import tokenizers as spec
from qkv.spec.recipe import Recipe
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ message.content + '\n\n' }}"
    "{% else %}{{ message.role | capitalize + ': ' + message.content + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""Chat template of the tokenizers here."""
TEXT = "the quick brown fox jumps over the lazy dog; User: Assistant: \n, ä € 😀 " * 3


def characters() -> Tokenizer:
    """One id per character of ``TEXT``, and an end token."""
    found = train(spec.Characters(), [TEXT]).with_specials(("eos",))
    found.chat_template = TEMPLATE
    return found


def byte_pairs(*specials: str) -> Tokenizer:
    """Byte-level BPE, in which a character can have several tokens; without special tokens no text ends early."""
    found = train(spec.BPE(vocab_size=270), [TEXT]).with_specials(specials)
    found.chat_template = TEMPLATE
    return found


def run_of(folder: Path, tokenizer: Tokenizer, model: dict[str, Any], **recipe: Any) -> Run:
    """Run of a random model in ``folder``, which holds nothing unless the test writes it."""
    fields = {"width": 16, "context_length": 64, "init_std": 0.5, "head": "language_model(tied=false)", **model}
    size = {"vocab_size": tokenizer.vocab_size}
    positions = "learned" if model.get("learned") else "none"
    fields.pop("learned", None)
    fields["frontend"] = {"kind": "text", "positions": positions, **size}
    if "encoder" in fields:
        fields["encoder"] = {**fields["encoder"], "frontend": {"kind": "text", "positions": "none", **size}}
    whole = Recipe.parse({"data": {"source": "none"}, "model": fields, **recipe})
    return Run(folder, whole, qkv.build(whole.model, seed=3).eval(), Vocabulary(tokenizer, tokenizer), [], 0)


def text_run(folder: Path, stack: str = "rope", tokenizer: Tokenizer | None = None, **recipe: Any) -> Run:
    """Decoder of one of ``tests.generation.models.STACKS``."""
    model = {**STACKS[stack], "num_layers": 2, "context_length": 64}
    return run_of(folder, tokenizer or characters(), model, **recipe)


def translation_run(folder: Path) -> Run:
    """Encoder–decoder that writes from a source."""
    model = {
        "blocks": [{"branches": ["attention", "cross_attention", "feed_forward"]}],
        "encoder": {"blocks": [{"branches": ["attention(mask=full)", "feed_forward"]}], "context_length": 64},
    }
    return run_of(
        folder, byte_pairs("bos", "eos"), model, task="translation", sample={"max_new_tokens": 12, "temperature": 0.0}
    )
