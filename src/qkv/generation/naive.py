"""Reference implementation of generation: each token is sampled after one pass of the model over the whole text.

    z = f(x_1 … x_n)_n      p = softmax(filter(z))      x_(n+1) ~ p, or argmax filter(z) at temperature 0

The engine gives the same tokens from cached states, in batches and with proposals. Here the cost of a text grows with
the square of its length, so this module serves as an explanation and as a reference for tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from qkv.generation.context import first_seen
from qkv.generation.logits.filters import draw, filtered
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation


@torch.no_grad()
def generate(model: Transformer, prompt: Sequence[int], generation: Generation) -> list[int]:
    """Generate ``max_new_tokens`` tokens after ``prompt``. Of ``generation`` only ``max_new_tokens``, ``seed`` and the
    filters (temperature, top_k, top_p, min_p, repetition_penalty) are used.
    """
    text, uniforms = list(prompt), random.Random(generation.seed)
    for _ in range(generation.max_new_tokens):
        seen = text[first_seen(len(text), model.limit) :]
        logits = model(torch.tensor([seen], device=model.device))[0][:, -1]
        logits = filtered(logits, generation, torch.tensor([text], device=model.device))
        if generation.temperature == 0.0:
            token = logits.argmax(-1)
        else:
            token = draw(logits, torch.tensor([uniforms.random()], dtype=torch.float64, device=model.device))
        text.append(int(token))
    return text[len(prompt) :]
