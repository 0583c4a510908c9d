"""A prompt under a mask with a prefix sees all of itself; what is written after it is causal."""

from __future__ import annotations

import pytest
import torch

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import generate
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.model import Model

PROMPTS = [[3, 1, 4, 1, 5], [2, 7], [6, 6, 6, 0]]


def prefix_model(positions: str = "none", context_length: int = 64) -> Transformer:
    spec = {
        "width": 16,
        "context_length": context_length,
        "num_layers": 2,
        "init_std": 0.5,
        "frontend": {"kind": "text", "vocab_size": 9, "positions": positions},
        "blocks": [{"branches": ["attention(2, mask='causal | prefix', relative=rope)", "feed_forward"]}],
    }
    return build(Model.parse(spec)).double().eval()


def reread(model: Transformer, prompt: list[int], new: int) -> list[int]:
    """Greedy, the whole text read anew for each token."""
    text = list(prompt)
    for _ in range(new):
        logits, _ = model(Signal(torch.tensor([text]), prefix=torch.tensor([len(prompt)])))
        text.append(int(logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_ragged_prompts_are_their_own_prefixes(positions: str) -> None:
    model = prefix_model(positions)
    wanted = [reread(model, prompt, 8) for prompt in PROMPTS]
    assert generate(model, PROMPTS, Generation(max_new_tokens=8, temperature=0.0)) == wanted
    found = beam_search(model, PROMPTS, Generation(max_new_tokens=8, temperature=0.0))
    assert [best[0].tokens for best in found] == wanted


def test_the_prefix_matters() -> None:
    model = prefix_model()
    ids = torch.tensor([PROMPTS[0]])
    with_prefix, _ = model(Signal(ids, prefix=torch.tensor([5])))
    without, _ = model(ids)
    assert not torch.allclose(with_prefix[0, 0], without[0, 0])


def test_a_text_that_slides_keeps_what_is_left_of_its_prefix() -> None:
    model = prefix_model("learned", context_length=6)
    (written,) = generate(model, [PROMPTS[0]], Generation(max_new_tokens=6, temperature=0.0))
    text, start = list(PROMPTS[0]), 0
    for token in written:
        if len(text) - start > 6:
            start += 3
        logits, _ = model(Signal(torch.tensor([text[start:]]), prefix=torch.tensor([max(0, 5 - start)])))
        assert token == int(logits[0, -1].argmax())
        text.append(token)
