"""Several scales of one row: sounds and series, bidirectional blocks, cost per level, refusals.

The equation, decoding in calls of any length, and padding of decoders are under contract (``tests/contracts``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.stacks import VOCABULARY, model
from torch import Tensor

from qkv.cli.main import main
from qkv.costs.cost import cost
from qkv.costs.levels import level_costs
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.frontends import Frontend
from qkv.spec.heads import Head
from qkv.spec.masks import Causal, Full, Levels, Mask, Prefix
from qkv.spec.model import Block, Model, Text
from qkv.spec.models.segmentation import Scales
from qkv.spec.parts import NoPositions
from qkv.system.errors import UserError

FACTORS = (1, 2, 6)
TEXT = Text(vocab_size=VOCABULARY, positions=NoPositions())


def scaled(mask: Mask, frontend: Frontend = TEXT, **fields: Any) -> Model:
    block = Block(branches=(Attention(num_heads=2, mask=mask), FeedForward()))
    return model(block, **{"frontend": frontend, "segmentation": Scales(factors=FACTORS), **fields})


def test_levels_within_and_across_differ_and_together_are_full() -> None:
    within, across = Levels(factors=FACTORS), Levels(factors=FACTORS, see="across")
    x = torch.arange(13)[None] % VOCABULARY
    outputs = list[Tensor]()
    for mask in (Full(), within | across, within, across):
        m = build(scaled(mask, init_std=0.5))
        outputs.append(m.eval()(x)[0])
    torch.testing.assert_close(outputs[0], outputs[1])
    assert all((other - outputs[0]).abs().max() > 1e-3 for other in outputs[2:])


def test_a_level_alone_reads_its_own_windows() -> None:
    """Under ``within`` the fine vectors are those of a model without coarse ones."""
    within = build(scaled(Levels(factors=FACTORS), init_std=0.5))
    alone = build(scaled(Full(), init_std=0.5).changed(segmentation=None))
    alone.load_state_dict({name: p for name, p in within.state_dict().items() if not name.startswith("segmentation")})
    x = torch.arange(13)[None] % VOCABULARY
    torch.testing.assert_close(within.eval()(x)[0], alone.eval()(x)[0])


SIGNALS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "log-mel frames": ({"kind": "mel_convolutions", "bins": 5}, (60, 5)),
    "samples": (
        {"kind": "wave_convolutions", "channels": [8, 8], "kernels": [4, 3], "strides": [3, 2], "near": 0},
        (200,),
    ),
    "a series": ({"kind": "series_patches", "features": 2, "channels": "mixed", "patch": 4, "stride": 2}, (50, 2)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("head", ["classification(num_classes=3)", "ctc(num_classes=4, blank=0)"])
def test_padding_of_a_batch_of_signals_changes_nothing(name: str, head: str) -> None:
    fields, shape = SIGNALS[name]
    spec = scaled(Full(), Frontend.parse(fields), head=Head.parse(head))
    m = build(spec).double().eval()
    values = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    short = shape[0] * 2 // 3
    both, _ = m(Signal(values, lengths=torch.tensor([shape[0], short])))
    alone, _ = m(Signal(values[1:, :short], lengths=torch.tensor([short])))
    torch.testing.assert_close(both[1:, : alone.shape[1]] if head.startswith("ctc") else both[1:], alone)


def test_rows_shorter_than_a_window_have_no_coarse_vector() -> None:
    m = build(scaled(Full(), init_std=0.5)).eval()
    plain = build(scaled(Full(), init_std=0.5).changed(segmentation=None)).eval()
    plain.load_state_dict({name: p for name, p in m.state_dict().items() if not name.startswith("segmentation")})
    x = torch.tensor([[3]])
    torch.testing.assert_close(m(x)[0], plain(x)[0])


def test_the_costs_of_the_levels_add_up_to_that_of_the_model() -> None:
    counted = cost(scaled(Causal() & Levels(factors=FACTORS, see="across"), context_length=60), 1, 60)
    levels = level_costs(counted)
    assert [(level.factor, level.vectors) for level in levels] == [(1, 60), (2, 30), (6, 10)]
    assert sum(level.flops for level in levels) == counted.needed_flops
    feed_forward = counted.parts["feed_forward"].flops // 100
    assert all(level.flops > level.vectors * feed_forward for level in levels)
    assert level_costs(cost(scaled(Full()).changed(segmentation=None), 1, 60)) == []


def test_the_command_shows_the_cost_of_each_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("{segmentation: 'scales([1, 4])', frontend: {kind: text, vocab_size: 50}, context_length: 32}")
    main(["cost", str(file)])
    assert "positions per vector" in capsys.readouterr().out
    main(["cost", str(file), "--json"])
    assert [level["vectors"] for level in json.loads(capsys.readouterr().out)["levels"]] == [32, 8]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"segmentation": {"kind": "scales", "factors": [1, 4, 6]}}, "each of the one before"),
        ({"segmentation": {"kind": "scales", "factors": [4, 16]}}, "give 1, then larger multiples"),
        ({"blocks": [{"branches": ["attention(2, mask='levels([1, 3])')"]}]}, "not those of 'scales', [1, 2, 6]"),
        ({"blocks": [{"branches": ["token_mlp"]}]}, "weights of positions"),
        ({"blocks": [{"branches": ["attention(2, mask='causal | prefix')"]}]}, "without the row's prefix"),
        ({"encoder": {}, "blocks": [{"branches": ["cross_attention(2)"]}]}, "leave it out"),
    ],
)
def test_what_cannot_be_read_at_several_scales_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises((UserError, ValueError), match=sentence.replace("[", r"\[").replace("]", r"\]")):
        Model.parse({**scaled(Full()).model_dump(), **change})


def test_a_bidirectional_model_refuses_to_decode_by_name() -> None:
    with pytest.raises(UserError, match="this branch sees later positions"):
        build(scaled(Full())).init_state(1)
    assert build(scaled(Prefix(length=2) | Causal(), TEXT)).spec.decodes is False
