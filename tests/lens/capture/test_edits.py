"""Edits of values at points, against the same computation by hand, and the calls that a tapped model makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lens.capture.models import IDS, LENGTHS, RAGGED, built
from tests.ops.present import needs_native
from torch import Tensor

from qkv.generation.decode.sample import generate
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder, Tap
from qkv.lens.capture.edits import ablate, patch, replace, steer
from qkv.lens.capture.records import rows_of
from qkv.lens.capture.regions import Region
from qkv.lens.record import record
from qkv.models.fast.native_token import decoding_path
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


def logits(model: Transformer, tap: Tap | None = None, signal: Signal = RAGGED, **how: Any) -> Tensor:
    with torch.no_grad():
        return model(signal, tap=tap, **how)[0]


def by_hand(model: Transformer, change: Any, layer: int = 1) -> Tensor:
    """Logits with the head outputs (B, H, N, Dv) of a layer's attention changed by a plain function."""

    class Changed(Tap):
        def at(self, location: Any, value: Tensor) -> Tensor:
            value = value.clone()
            change(value)
            return value

    return logits(model, Changed(f"blocks.{layer}.branches.0.head_outputs"))


HEAD = "blocks.1.branches.0.head_outputs"


def zero(value: Tensor) -> None:
    value[0, 2, 3] = value[1, 2, 3] = value[2, 2, 3] = 0


def mean_of_rows(value: Tensor) -> None:
    at = value.clone()
    for place in range(6):
        rows = [row for row in range(3) if place < LENGTHS[row]]
        for row in rows:
            value[row, 2, place] = sum(at[other, 2, place] for other in rows) / len(rows)


def mean_of_positions(value: Tensor) -> None:
    at = value.clone()
    for row in range(3):
        rest = [place for place in range(int(LENGTHS[row])) if place != 3]
        value[row, 2, 3] = sum(at[row, 2, place] for place in rest) / len(rest)


ABLATIONS = {
    "zero": (Region(HEAD, heads=[2], positions=[3]), zero),
    "rows": (Region(HEAD, heads=[2]), mean_of_rows),
    "positions": (Region(HEAD, heads=[2], positions=[3]), mean_of_positions),
}


@pytest.mark.parametrize("by", ABLATIONS)
def test_an_ablation_is_the_one_by_hand(by: str) -> None:
    region, change = ABLATIONS[by]
    model = built()
    edited = RAGGED.unpadded(logits(model, ablate(region, by)))
    torch.testing.assert_close(edited, RAGGED.unpadded(by_hand(model, change)))
    assert not torch.allclose(edited, RAGGED.unpadded(logits(model)))


def test_resampling_takes_each_row_from_another() -> None:
    model, recorder = built(), Recorder("head_outputs")
    logits(model, recorder)
    after, before = Recorder("head_outputs"), recorder[HEAD]
    with model.tapped(ablate(Region(HEAD, heads=[1]), "resample", seed=3), after):
        logits(model)
    value = after[HEAD]
    torch.testing.assert_close(value[:, [0, 2, 3]], before[:, [0, 2, 3]])
    sources = []
    for row in range(3):
        same = [other for other in range(3) if torch.equal(value[row, 1, :4], before[other, 1, :4])]
        sources += same
        assert same != [row]
        if same == [2]:  # it has four positions only
            torch.testing.assert_close(value[row, 1, 4:], before[row, 1, 4:])
    assert sorted(sources) == [0, 1, 2]


def test_padding_is_neither_read_nor_replaced() -> None:
    model, recorder = built(), Recorder("residual_after")
    with model.tapped(replace("residual_after", 1.0), recorder):
        logits(model)
    value, plain = recorder["blocks.0.branches.0.residual_after"], record(model, RAGGED, "residual_after")
    assert (value[:2] == 1).all()
    assert (value[2, :4] == 1).all()
    path = "blocks.0.branches.0.residual_after"
    torch.testing.assert_close(value[2, 4:], plain[path][2, 4:])
    assert [len(row) for row in rows_of(plain, path)] == [6, 6, 4]


def test_steering_adds_a_vector_at_positions_of_each_row() -> None:
    model, vector = built(), torch.arange(16.0).double()
    path, recorder = "blocks.0.branches.1.residual_after", Recorder("residual_after")
    with model.tapped(steer(Region(path, positions=[[0], [2, 3], [-1]]), vector, 2.0), recorder):
        logits(model)
    change = recorder[path] - record(model, RAGGED, path)[path]
    where = torch.zeros(3, 6, dtype=torch.bool)
    where[[0, 1, 1, 2], [0, 2, 3, 3]] = True
    torch.testing.assert_close(change, where[..., None] * 2 * vector)


def test_a_patch_of_the_whole_stream_gives_the_other_run() -> None:
    model, other = built(), Signal(IDS.flip(1).flip(0) % 11)
    clean = record(model, other, "blocks.1.branches.0.residual_before")
    patched = logits(model, patch("blocks.1.branches.0.residual_before", clean), Signal(IDS))
    torch.testing.assert_close(patched, logits(model, signal=other))


def test_a_patch_of_a_head_at_a_position_is_the_one_by_hand() -> None:
    model, other = built(), Signal(IDS.flip(0))
    clean = record(model, other, HEAD)

    def change(value: Tensor) -> None:
        value[:, 3, 2] = clean[HEAD][:, 3, 2]

    edited = logits(model, patch(Region(HEAD, heads=[3], positions=[2]), clean))
    torch.testing.assert_close(RAGGED.unpadded(edited), RAGGED.unpadded(by_hand(model, change)))


@pytest.mark.parametrize("region", [Region(HEAD, heads=[1], positions=[4]), Region("activation", features=[0, 5])])
@torch.no_grad()
def test_decoding_steps_pass_the_edits_of_whole_rows(region: Region) -> None:
    model = built()
    clean = record(model, Signal(IDS.flip(0)), region.point)
    for edit in (ablate(region), patch(region, clean), steer(region, torch.ones(1).double())):
        expected, whole = model(IDS, tap=edit)[0], Recorder("residual_after")
        parts, state, steps = [], model.init_state(3), Recorder("residual_after")
        with model.tapped(edit, steps):
            for piece in (IDS[:, :2], IDS[:, 2:3], IDS[:, 3:]):
                decoded = model.decode(piece.tolist(), state)
                state = decoded.state
                parts.append(decoded.logits.view(3, piece.shape[1], -1))
        torch.testing.assert_close(torch.cat(parts, 1), expected)
        with model.tapped(edit, whole):
            model(IDS)
        for path in dict.fromkeys(path for path, _ in whole):
            torch.testing.assert_close(rows_of(steps, path), rows_of(whole, path))


@torch.no_grad()
def test_the_memory_of_an_encoder_is_tapped() -> None:
    blocks = [{"branches": ["attention(2)", "cross_attention(2)", "feed_forward(24)"]}]
    encoder = {
        "frontend": {"kind": "text", "vocab_size": 11},
        "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(24)"]}],
    }
    model = built(blocks=blocks, encoder=encoder)
    source, point = Signal(IDS, LENGTHS), "encoder.norm.output"
    with model.tapped(
        "encoder.norm.output", "encoder.blocks.*.branches.0.weights", "blocks.1.branches.1.weights"
    ) as seen:
        plain = model(IDS, memory=model.encode(source))[0]
    assert [len(row) for row in rows_of(seen, point)] == [6, 6, 4]
    with model.tapped(ablate(Region(point, positions=[1]))):
        memory = model.encode(source)
        edited = model(IDS, memory=memory)[0]
    vectors = seen[point].clone()
    vectors[:, 1] = 0
    torch.testing.assert_close(memory.vectors[0], vectors)
    torch.testing.assert_close(edited, model(IDS, memory=memory)[0])
    assert not torch.allclose(edited, plain)
    keys = Region("blocks.1.branches.1.scores", heads=[0], keys=[2])
    with model.tapped(replace(keys, -torch.inf), "blocks.1.branches.1.weights") as blocked:
        model(IDS, memory=model.encode(source))
    weights = blocked["blocks.1.branches.1.weights"]
    assert (weights[:, 0, :, 2] == 0).all()
    assert (weights[:, 1, :, 2] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def greedy(count: int) -> Generation:
    return Generation(max_new_tokens=count, temperature=0.0)


@needs_native
@torch.no_grad()
def test_generation_passes_the_tap_and_the_native_path_returns() -> None:
    model = built().float()
    plain = generate(model, [[1, 2, 3]], greedy(5))
    assert decoding_path(model) == "one native call a token"
    with model.tapped("head_outputs", "head.output") as recorder:
        assert decoding_path(model) == "part by part: a tap receives values inside the model"
        assert generate(model, [[1, 2, 3]], greedy(5)) == plain
    (row,), whole = rows_of(recorder, HEAD), Recorder("head_outputs", "head.output")
    read = [1, 2, 3, *plain[0]][: row.shape[1]]
    model(torch.tensor([read]), tap=whole)
    torch.testing.assert_close(row, whole[HEAD][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows_of(recorder, "head.output")[0], whole["head.output"][0], rtol=1e-4, atol=1e-4)
    assert len(read) >= 7
    assert decoding_path(model) == "one native call a token"
    assert model.tap is None
    with model.tapped(ablate(Region("head.output", features=plain[0][:1]))), model.tapped(replace("head.output", 0.0)):
        pass
    with model.tapped(steer(Region("head.output", features=[6]), torch.tensor(1e6))):
        assert generate(model, [[1, 2, 3]], greedy(3)) == [[6, 6, 6]]


def test_nothing_is_called_in_a_model_without_a_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = built(), []
    monkeypatch.setattr(Tap, "offer", lambda self, path, value: calls.append(path) or value)
    monkeypatch.setattr(Tap, "enter", lambda self, stack, span: calls.append(stack))
    with model.tapped(Recorder("weights")):
        pass
    logits(model)
    assert not calls
    with model.tapped(Recorder("weights")):
        logits(model)
    assert calls


REFUSED = {
    "heads cannot be selected at 'blocks.0.branches.0.output'": lambda: ablate(
        Region("blocks.0.branches.0.output", heads=[1])
    ),
    "the model has no point 'nothing'": lambda: ablate("nothing"),
    "numbered from 0; 4 is not one of them": lambda: ablate(Region("head_outputs", heads=[4])),
    "row 0 has 6 positions": lambda: ablate(Region("output", positions=[6])),
    "does not fit its shape": lambda: replace("output", torch.ones(5)),
    "positions are given for 2 rows": lambda: ablate(Region("output", positions=[[1], [2]])),
    "an ablation is by 'zero', 'rows'": lambda: ablate("output", "nothing"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_with_one_sentence(message: str) -> None:
    model = built()
    with pytest.raises(UserError) as refusal, model.tapped(REFUSED[message]()):
        logits(model)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert model.tap is None
