"""Checks of whole models on rows that ranks share against whole rows, for ``context_process``."""

from __future__ import annotations

import torch
from tests.contracts.subjects import scrambled

from qkv.data.batching.batch import IGNORED, Batch
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.models.heads.language_loss import language_loss
from qkv.models.transformer import Transformer
from qkv.parallel.context.ranks import Ranks
from qkv.parallel.context.ways import By
from qkv.spec.branches import GRU, LSTM, Attention, Branch, CausalConvolution, FeedForward, GatedFeedForward
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, Learned, NoPositions, Positions, Relative, Rope, Sinusoidal, T5Buckets
from qkv.training.shared_rows import SharedRows

VOCABULARY, WIDTH, ROWS = 13, 16, 3
FORMS = ("plain", "padded", "packed", "odd")


def model(positions: Positions, *branches: Branch, times: int = 2) -> Model:
    text = Text(vocab_size=VOCABULARY, positions=positions)
    blocks = (Block(branches=branches),) * times
    return Model(width=WIDTH, context_length=40, frontend=text, blocks=blocks, init_std=0.3)


def attention(relative: Relative, **fields: object) -> Attention:
    return Attention(relative=relative, **fields)  # type: ignore[arg-type]


MODELS: dict[str, Model] = {
    "rope": model(NoPositions(), attention(Rope(), num_kv_heads=2), GatedFeedForward()),
    "learned": model(Learned(), Attention(), FeedForward()),
    "alibi": model(NoPositions(), attention(Alibi(), mask=Causal() & Window(size=6)), FeedForward()),
    "shared buckets": model(NoPositions(), attention(T5Buckets(num_buckets=6, shared=True)), FeedForward()),
    "recurrent": model(Sinusoidal(), GRU(), LSTM(), CausalConvolution()),
    "hybrid": model(NoPositions(), LinearAttention(), attention(Rope()), FeedForward()),
}


def batch(form: str) -> Batch:
    generator = torch.Generator().manual_seed(3)
    length = 21 if form == "odd" else 24
    ids = torch.randint(VOCABULARY, (ROWS, length + 1), generator=generator)
    targets, lengths, segments = ids[:, 1:].clone(), None, None
    if form == "padded":
        lengths = torch.tensor([24, 9, 17])
        targets[torch.arange(length) >= lengths[:, None]] = IGNORED
    if form == "packed":
        starts = torch.tensor([[0, 4, 5, 20], [0, 11, 12, 23], [0, 6, 13, 18]])
        segments = (torch.arange(length)[None, :, None] >= starts[:, None]).sum(-1)
    return Batch.of(Signal(ids[:, :-1], lengths=lengths, segments=segments), targets)


def built(spec: Model) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return scrambled(build(spec), torch.float64)


def model_checks(ranks: Ranks, share: slice) -> dict[str, float]:
    """Largest differences of loss and gradients by "model, form of the rows, way", of a share of the cases."""
    cases: list[tuple[str, str, bool, By, bool]] = [("rope", form, True, "ring", False) for form in FORMS]
    cases.extend((name, FORMS[i % 4], True, "ring", False) for i, name in enumerate(MODELS))
    cases.extend((name, "plain", i % 2 == 0, "ring", False) for i, name in enumerate(MODELS))
    cases.extend([("rope", "packed", False, "ring", True), ("hybrid", "odd", True, "heads", False)])
    found = dict[str, float]()
    for name, form, folded, by, recomputed in cases[share]:
        whole, own, rows = built(MODELS[name]), built(MODELS[name]), batch(form)
        expected = language_loss(whole, rows.input, rows.targets)
        expected.backward()
        shared = SharedRows(ranks, folded, by)
        own.recompute_blocks(recomputed)
        part = shared.part(rows)
        with shared.sharing(own):
            loss = language_loss(own, part.input, part.targets)
            loss.backward()
        shared.add_up(own)
        total = loss.detach().clone()
        ranks.add_up([total])
        pairs = [(total, expected.detach())]
        for a, b in zip(own.parameters(), whole.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            pairs.append((a.grad, b.grad))
        worst = max(float((a - b).abs().max()) / max(1.0, float(b.abs().max())) for a, b in pairs)
        label = f"{name}, {form}, {'folded' if folded else 'in order'}, {by}{', recomputed' * recomputed}"
        found[label] = worst
    return found
