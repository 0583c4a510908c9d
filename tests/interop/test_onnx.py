"""ONNX files: onnxruntime computes what the model does, for numbers and lengths of rows that were not traced."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES, VOCABULARY, WIDTH
from tests.interop.folders import tiny
from tokenizers import Tokenizer as TheirTokenizer

import qkv
from qkv.cli.main import main
from qkv.interop.onnx.save import save_onnx
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Alibi, LayerNorm, Rope, T5Buckets
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

ROWS = ((1, 4), (5, 13))
"""Numbers and lengths of rows, other than those at which models are traced."""


def model(*branches: Branch, text: Any = None, **fields: Any) -> Transformer:
    """A model with weights of about 1, so that every part is seen in the outputs."""
    frontend = text or Text(vocab_size=VOCABULARY)
    blocks = fields.pop("blocks", (Block(branches=branches),))
    found = build(Model(width=WIDTH, context_length=24, frontend=frontend, blocks=blocks, init_std=0.3, **fields))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)
    return found.eval()


def opened(folder: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])


def rows(count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and lengths of rows; all but one row are padded."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(VOCABULARY, (count, length), generator=generator)
    lengths = torch.randint(1, length, (count,), generator=generator)
    lengths[count // 2] = length
    return ids, lengths


def answered(session: onnxruntime.InferenceSession, ids: torch.Tensor, lengths: torch.Tensor, **more: Any) -> Any:
    mask = (np.arange(ids.shape[1]) < lengths.numpy()[:, None]).astype(np.int64)
    if any(each.name == "token_type_ids" for each in session.get_inputs()):  # 0 unless given, as in qkv
        more = {"token_type_ids": np.zeros_like(mask), **more}
    (found,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask, **more})
    return torch.from_numpy(found)


def assert_equal(found: torch.Tensor, wanted: torch.Tensor, lengths: torch.Tensor) -> None:
    """Equal at the positions of tokens; those of padding have no defined output."""
    if wanted.dim() == 3:
        real = torch.arange(wanted.shape[1]) < lengths[:, None]
        found, wanted = found[real], wanted[real]
    assert (found - wanted).abs().max() < 2e-5 * wanted.abs().max()


def check(ours: Transformer, folder: Path) -> None:
    """Export, and compare the file with the model at rows of every size in ``ROWS``."""
    save_onnx(ours, folder)
    session = opened(folder)
    for count, length in ROWS:
        ids, lengths = rows(count, length)
        with torch.no_grad():
            wanted = ours(Signal(ids, lengths))[0]
        assert_equal(answered(session, ids, lengths), wanted, lengths)


def test_a_decoder_gives_the_logits_of_whole_rows(tmp_path: Path) -> None:
    ours = model(
        Attention(num_kv_heads=2, relative=Rope(), qk_norm=LayerNorm()),
        Attention(mask=Causal() & Window(size=3, sinks=1), relative=Alibi(), learned_sink=True),
    )
    check(ours, tmp_path)


@pytest.mark.slow
def test_an_encoder_reads_types_and_ignores_padding(tmp_path: Path) -> None:
    ours = model(
        Attention(mask=Full(), relative=T5Buckets(num_buckets=8, max_distance=6)),
        FeedForward(),
        text=Text(vocab_size=VOCABULARY, types=2),
        head=ClassificationHead(num_classes=3),
    )
    save_onnx(ours, tmp_path)
    session = opened(tmp_path)
    for count, length in ROWS:
        ids, lengths = rows(count, length)
        types = torch.arange(length).ge(2).long().expand(count, -1)
        with torch.no_grad():
            wanted = ours(Signal(ids, lengths, types=types))[0]
        found = answered(session, ids, lengths, token_type_ids=types.numpy())
        assert_equal(found, wanted, lengths)
        changed = ids.masked_fill(torch.arange(length) >= lengths[:, None], 1)
        assert torch.equal(answered(session, changed, lengths, token_type_ids=types.numpy()), found)


@pytest.mark.slow
def test_images_come_in_any_number(tmp_path: Path) -> None:
    ours = model(
        Attention(mask=Full()),
        FeedForward(),
        text=Patches(height=8, width=8, channels=3, patch=4, class_token=True),
        head=ClassificationHead(num_classes=3, pooling="first"),
    )
    save_onnx(ours, tmp_path)
    pixels = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    (found,) = opened(tmp_path).run(None, {"pixel_values": pixels.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found), ours(Signal(pixels))[0], atol=1e-5)


@pytest.mark.slow
def test_an_encoder_decoder_reads_a_source_and_a_target(tmp_path: Path) -> None:
    ours = model(
        Attention(),
        CrossAttention(),
        encoder=Encoder(
            frontend=Text(vocab_size=VOCABULARY),
            context_length=24,
            blocks=(Block(branches=(Attention(mask=Full()), FeedForward())),),
        ),
    )
    save_onnx(ours, tmp_path)
    (source, lengths), target = rows(3, 9), torch.tensor([[1, 2], [3, 4], [5, 6]])
    with torch.no_grad():
        wanted = ours(Signal(target), memory=ours.encode(Signal(source, lengths)))[0]
    found = answered(opened(tmp_path), source, lengths, decoder_input_ids=target.numpy())
    assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_command_writes_what_a_program_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A classifier that was trained: the ids of its own tokenizer file give the probabilities of qkv."""
    table, run, folder = tmp_path / "cats.csv", tmp_path / "run", tmp_path / "onnx"
    words = {"good": "fine nice great", "bad": "poor sad awful"}
    lines = [f"a {w} day {i},{label}" for i in range(12) for label, each in words.items() for w in each.split()]
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    recipe = {
        "name": "cats",
        "task": "classification",
        "data": {"source": str(table), "tokenizer": {"kind": "bpe", "vocab_size": 280}},
        "model": {
            "width": 16,
            "context_length": 16,
            "num_layers": 1,
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward"]}],
            "head": {"kind": "classification", "pooling": "mean"},
        },
        "training": {"steps": 8, "batch_size": 4},
    }
    qkv.train(qkv.Recipe.parse(recipe), run)
    assert main(["export", str(run), "--format", "onnx", "--out", str(folder)]) == 0
    assert "compared with onnxruntime" in capsys.readouterr().out
    beside, text = json.loads((folder / "labels.json").read_text()), "a great day"
    ids = TheirTokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    logits = answered(opened(folder), torch.tensor([ids]), torch.tensor([len(ids)]))
    probabilities = (logits / beside["temperature"]).softmax(-1)[0].tolist()
    wanted = qkv.predict(run, [text])[0]["probabilities"]
    assert dict(zip(beside["labels"], probabilities, strict=True)) == pytest.approx(wanted, abs=1e-4)


def test_a_model_without_an_onnx_form_is_refused_by_its_branch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "checkpoint"
    ours = model(FeedForward(), SAMPLES["gru"][0])
    with pytest.raises(UserError, match=r"model\.blocks\.0\.branches\.1: 'gru' has no ONNX form"):
        save_onnx(ours, tmp_path / "onnx")
    tiny(source)
    assert main(["export", str(source), "--format", "onnx", "--dtype", "bf16", "--out", str(tmp_path / "b")]) == 2
    assert "fp32" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def deal(stacks: int, size: int = 4) -> list[list[Branch]]:
    """Stacks of branches with a form, none of which is in two: of each kind in turn, samples in random order."""
    chance, pool = random.Random(0), [*(part for parts in SAMPLES.values() for part in parts), *BIDIRECTIONAL]
    chance.shuffle(pool)
    kinds = [[part for part in pool if part.kind == kind and not getattr(part, "top_k", None)] for kind in WITH_A_FORM]
    turns = [part for turn in itertools.zip_longest(*kinds) for part in turn if part is not None]
    return [turns[first : first + size] for first in range(0, stacks * size, size)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_random_stacks_of_parts_that_have_a_form(number: int, tmp_path: Path) -> None:
    check(model(*deal(8)[number]), tmp_path)


WITH_A_FORM = (
    "attention",
    "causal_convolution",
    "disentangled_attention",
    "feed_forward",
    "gated_feed_forward",
    "latent_attention",
    "linear_attention",
    "memory_layer",
    "relative_attention",
    "retention",
    "token_shift",
)
