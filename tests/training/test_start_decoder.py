"""A language model as the decoder of captions: bit-equal while its gates are closed, resumed, chosen by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.test_matching import write_pairs
from tests.training.kill_storm import ignore

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.layers.signal import Signal
from qkv.runs.run import Run
from qkv.runs.start import with_start
from qkv.spec.models.start import DecoderStart
from qkv.system.errors import UserError
from qkv.training.loop import train

BLOCKS = [{"branches": ["attention(2)", "feed_forward(32)"]}, {"branches": ["gated_feed_forward(24)"]}]
READING = {"branches": ["cross_attention(2)", "feed_forward(16)"]}
ENCODER = {"frontend": "patches(patch=8)", "num_layers": 1, "blocks": [{"branches": ["attention(2, mask=full)"]}]}
LATENTS = {"count": 3, "blocks": [{"branches": ["cross_attention(2)"]}]}
TRAINING = {"steps": 2, "batch_size": 4, "validation": {"every": 2, "batches": 1}}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a language model of two kinds of blocks."""
    folder = tmp_path_factory.mktemp("writer")
    (folder / "text.txt").write_text("a red circle and a green bar\n" * 60)
    model = {"width": 16, "num_layers": 3, "context_length": 12, "blocks": BLOCKS}
    data = {"source": str(folder / "text.txt"), "tokenizer": "wordpiece(60)"}
    return train(
        qkv.Recipe.parse({"data": data, "model": model, "training": TRAINING}), folder / "run", on_event=ignore
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"), 24)


def captions(pairs: Path, start: Any, **model: Any) -> qkv.Recipe:
    """Build the recipe of captions written by the decoder ``start``."""
    parts = {"encoder": ENCODER, "blocks": [{**READING, "residual": "gated"}], **model}
    data = {"source": str(pairs), "processor": "images(height=16, width=16)"}
    fields = {"data": data, "task": "captioning", "model": parts, "start": start, "training": TRAINING}
    return qkv.Recipe.parse(fields)


@pytest.mark.parametrize("latents", [None, LATENTS], ids=["positions", "resampler"])
def test_closed_gates_leave_the_language_model_as_it_was(
    writer: Run, pairs: Path, latents: Any, tmp_path: Path
) -> None:
    recipe = captions(pairs, f"decoder({writer.folder})", encoder={**ENCODER, "latents": latents})
    still = qkv.override(recipe, ["training.optimizer.lr=1e-30", "training.optimizer.weight_decay=0.0"])
    model = train(still, tmp_path / "run", on_event=ignore).model.eval()
    assert [block.residual.kind for block in model.spec.layers] == ["gated", "add"] * 3
    ids = torch.arange(4, 12)[None]
    plain = writer.model.eval()(Signal(ids))[0]
    for seed in (0, 1):
        image = Signal(torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed)))
        described = model(Signal(ids), memory=model.encode(image))[0]
        assert torch.equal(described[..., : plain.shape[-1]], plain)


def test_open_gates_let_the_picture_in(writer: Run, pairs: Path, tmp_path: Path) -> None:
    blocks = [{**READING, "residual": "gated(initial=0.5)"}]
    model = train(captions(pairs, f"decoder({writer.folder})", blocks=blocks), tmp_path / "run", on_event=ignore).model
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs = model.eval()(Signal(torch.arange(4, 12).expand(2, -1)), memory=model.encode(Signal(images)))[0]
    assert not torch.allclose(outputs[0], outputs[1])


def test_a_run_resumes_and_its_recipe_trains_again(writer: Run, pairs: Path, tmp_path: Path) -> None:
    recipe = captions(pairs, {"kind": "decoder", "source": str(writer.folder)})
    first = train(recipe, tmp_path / "run", on_event=ignore)
    longer = train(qkv.override(recipe, ["training.steps=3"]), tmp_path / "run", on_event=ignore)
    assert longer.step == 3
    assert first.recipe.start == DecoderStart(source=str(writer.folder))
    assert with_start(first.recipe).model.blocks == first.recipe.model.blocks
    again = train(first.recipe, tmp_path / "again", on_event=ignore)
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, first.model.state_dict()[name])


def test_captions_are_written_from_a_language_model_in_one_line(writer: Run, pairs: Path, tmp_path: Path) -> None:
    changes = ["training.steps=2", "training.minutes=null", "wide=null"]
    recipe = automatic_task("captioning", {"source": str(pairs)}, changes, start=str(writer.folder))
    assert recipe.start == DecoderStart(source=str(writer.folder))
    assert recipe.model.width == 16
    run = train(recipe, tmp_path / "run", on_event=ignore)
    goes_on = automatic_task("captioning", {"source": str(pairs)}, changes, start=str(run.folder))
    assert goes_on.start.kind == "checkpoint"
    assert goes_on.model.blocks == run.recipe.model.blocks


def test_what_does_not_fit_is_refused(writer: Run, pairs: Path, tmp_path: Path) -> None:
    start = f"decoder({writer.folder})"
    with pytest.raises(UserError, match="one stands before each block of the decoder, so each reads the encoder"):
        with_start(captions(pairs, start, blocks=[{**READING, "residual": "gated"}, {"branches": ["feed_forward"]}]))
    run = train(captions(pairs, start), tmp_path / "run", on_event=ignore)
    with pytest.raises(UserError, match="is not a language model of texts"):
        with_start(captions(pairs, f"decoder({run.folder})"))
    text = qkv.Recipe.parse({"data": "my.txt", "start": start})
    with pytest.raises(UserError, match=r"set model\.encoder"):
        with_start(text)
