"""Attention rollout, against attention weights of the transformers library and loops over plain numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.interop.cases.vit import vit
from transformers import ViTModel

import qkv
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.models.rollout import heat

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def test_the_heat_is_the_rollout_of_the_class_token(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = ViTModel(vit(initializer_range=0.5, attn_implementation="eager")).eval()
    theirs.save_pretrained(tmp_path)
    pixels = torch.randn(2, 3, 14, 14)
    with torch.no_grad():
        weights = [each.double().numpy() for each in theirs(pixels, output_attentions=True).attentions]
    model = load_published(tmp_path).model
    tuned = qkv.build(model.spec.changed(head="classification(2, pooling=first)"))
    tuned.load_state_dict(model.state_dict(), strict=False)
    found = heat(tuned, Signal(pixels))
    assert found is not None
    for row in range(2):
        total = np.eye(10)
        for layer in weights:
            mean = sum(layer[row, head] for head in range(5)) / 5
            total = (0.5 * mean + 0.5 * np.eye(10)) @ total
        np.testing.assert_allclose(found[row].flatten(), total[0, 1:], atol=1e-5)
        assert np.ptp(total[0, 1:]) > 0.01


def test_without_a_class_token_all_positions_count() -> None:
    seen = {"width": 8, "blocks": [{"branches": ["attention(2, mask=full)"]}], "head": "classification(2)"}
    patches = {"kind": "patches", "patch": 4, "height": 8, "width": 12, "channels": 1}
    found = heat(qkv.build(qkv.Model.parse({**seen, "frontend": patches})), Signal(torch.randn(3, 1, 8, 12)))
    assert found is not None
    assert found.shape == (3, 2, 3)
    torch.testing.assert_close(found.sum((1, 2)), torch.ones(3))
    texts = qkv.build(qkv.Model.parse({**seen, "frontend": {"kind": "text", "vocab_size": 5}}))
    assert heat(texts, Signal(torch.zeros(1, 4, dtype=torch.long))) is None
