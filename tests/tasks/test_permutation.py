"""Two streams in one sequence, against two streams carried side by side, and against who sees whom in XLNet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.running import SEES_ALL, opened, recipe_of
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.rows import random
from qkv.layers.context import Context
from qkv.spec.errors import SpecError
from qkv.tasks.objectives.permutation import PermutationBatch, permutation_targets
from qkv.tasks.task import Totals
from qkv.tasks.text.permutation import streams
from qkv.tokenizers.framing import Frame

LEARNED = {
    "context_length": 7,
    "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(16)"]}] * 2,
}  # no position beyond the text
ROPE = {**SEES_ALL, "num_layers": 2}
QUERY = {**ROPE, "frontend": {"kind": "text", "positions": "none", "query": True}}
POST = {"blocks": [{"branches": ["attention(4, mask=full, num_kv_heads=2)", "feed_forward(16)"], "order": "post"}] * 2}
MODELS = {"rope": ROPE, "learned": LEARNED, "post-norm": POST, "query": QUERY}


def turned(x: Tensor, position: int) -> Tensor:
    """RoPE of one head's vector: pair (i, i + D/2) by the angle position · 10000^(-2i/D)."""
    half = len(x) // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:half], x[half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))


def attended(body: Any, query: Tensor, place: int, seen: list[tuple[int, Tensor]]) -> Tensor:
    """One query against what it sees, head by head; ``seen``: place and vector of each. Nothing seen gives no value."""
    part, size = body.part, body.head_dim
    project = lambda x: torch.split(body.qkv.weight @ x + body.qkv.bias, body.sizes)  # noqa: E731
    turn = turned if part.relative.kind == "rope" else lambda x, place: x
    heads = []
    for head in range(part.num_heads):
        group = head // (part.num_heads // part.kv_heads)
        own = slice(head * size, (head + 1) * size)
        shared = slice(group * size, (group + 1) * size)
        q = turn(project(query)[0][own], place)
        if not seen:
            heads.append(torch.zeros(size, dtype=torch.float64))
            continue
        scores = torch.stack([q @ turn(project(x)[1][shared], there) / math.sqrt(size) for there, x in seen])
        values = torch.stack([project(x)[2][shared] for _, x in seen])
        heads.append(torch.exp(scores - scores.logsumexp(0)) @ values)
    return body.output.weight @ torch.cat(heads) + body.output.bias


ALONE = Context(torch.zeros(1, 1, dtype=torch.long), None)
"""Context of one vector, for norms."""


def two_streams(model: Any, found: PermutationBatch, row: int, mask: int) -> list[Tensor]:
    """The query stream of one row after all layers: h and g are two lists, and g looks at h."""
    table, places = model.frontend.table, range(found.ids.shape[1])
    position = (
        model.frontend.positions.table
        if model.frontend.positions is not None
        else torch.zeros(len(places), table.shape[1])
    )
    h = [table[found.ids[row, i]] + position[i] for i in places]
    start = table[mask] if model.frontend.query is None else model.frontend.query[0, 0]
    g = [start + position[i] for i in places]
    for block in model.blocks:
        for slot in block.branches:
            post = type(slot).__name__ == "PostNorm"
            normed = [x if post else slot.norm(x[None, None], ALONE)[0, 0] for x in h]
            asking = [x if post else slot.norm(x[None, None], ALONE)[0, 0] for x in g]
            if slot.body.spec.kind == "attention":
                sees_h = [[(j, normed[j]) for j in places if found.content_mask[row, i, j]] for i in places]
                sees_g = [[(j, normed[j]) for j in places if found.query_mask[row, i, j]] for i in places]
                to_h = [attended(slot.body, normed[i], i, sees_h[i]) for i in places]
                to_g = [attended(slot.body, asking[i], i, sees_g[i]) for i in places]
            else:
                to_h, to_g = ([slot.body(x[None, None], ALONE)[0][0, 0] for x in xs] for xs in (normed, asking))
            h, g = ([x + y for x, y in zip(*pair, strict=True)] for pair in ((h, to_h), (g, to_g)))
            if post:
                h, g = ([slot.norm(x[None, None], ALONE)[0, 0] for x in xs] for xs in (h, g))
    return [model.norm(x[None, None], ALONE)[0, 0] for x in g]


def drawn(shape: tuple[int, int], seed: int, rate: float = 0.4, padded: int = 0) -> PermutationBatch:
    rng = random(seed, 0)
    padding = np.zeros(shape, bool)
    padding[-1, shape[1] - padded :] = padded > 0
    return permutation_targets(rng.integers(0, 50, shape), padding, rng, rate, 3, padding)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("rate", "padded"), [(0.4, 2), (1.0, 0)], ids=["some", "all"])
@torch.no_grad()
def test_one_sequence_is_two_streams(name: str, rate: float, padded: int, tmp_path: Path) -> None:
    _, _, model = opened(recipe_of("permutation", MODELS[name], tmp_path))
    found, mask = drawn((2, 7), 3, rate, padded), 60
    batch = streams(found, model.frontend.part.asking(mask))
    assert bool((batch.input.values < 0).any()) == (name == "query")
    hidden, _ = model.features(batch.input)
    compared = 0
    for row in range(2):
        wanted = two_streams(model, found, row, mask)
        for place, (target, position) in enumerate(
            zip(batch.targets[row].tolist(), batch.input.positions[row].tolist(), strict=True)
        ):  # type: ignore[union-attr]
            if target != IGNORED:
                assert target == found.targets[row, position]
                torch.testing.assert_close(hidden[row, place], wanted[position], rtol=1e-6, atol=1e-6)
                compared += 1
    assert compared == (found.targets != IGNORED).sum() > 2


def test_the_task_sums_the_targets_of_the_queries(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("permutation(rate=0.3)", ROPE, tmp_path))
    batch = dataset.batch(0)
    assert batch.targets[:, :32].eq(IGNORED).all()
    assert not batch.input.visible[:, :, 32:].any()  # type: ignore[index]
    logits = model(batch.input)[0].log_softmax(-1)
    picked = batch.targets != IGNORED
    nats = -logits[picked].gather(1, batch.targets[picked][:, None]).sum()
    torch.testing.assert_close(task.summed_loss(model, batch).double(), nats, rtol=1e-6, atol=0)
    assert batch.num_targets == picked.sum()
    seen = Totals()
    with torch.no_grad():
        seen.add(task.observe(model, batch))
    assert task.figures(seen, dataset.scale())["perplexity"] == pytest.approx(
        math.exp(nats.item() / seen.count), rel=1e-6
    )


def test_the_same_tokens_decide_as_in_xlnet(tmp_path: Path) -> None:
    # XLNet's masks say which tokens reach a prediction through two layers: by token, those whose gradient
    # is not 0 are compared.
    transformers = pytest.importorskip("transformers")
    _, _, model = opened(recipe_of("permutation", ROPE, tmp_path))
    found = drawn((1, 9), 5)
    at = np.flatnonzero(found.targets[0] != IGNORED)
    config = transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=2, d_inner=16, dropout=0.0)
    torch.manual_seed(0)
    xlnet = transformers.XLNetModel(config).eval()
    given = torch.randn(1, 9, 16, requires_grad=True)
    mapping = torch.nn.functional.one_hot(torch.from_numpy(at), 9).float()[None]
    hidden_from = ~torch.from_numpy(found.query_mask)  # XLNet itself lets the content stream see its own token
    given_rows = torch.from_numpy(found.order[0] == 0)
    hidden_from[0, given_rows] = ~torch.from_numpy(found.content_mask)[0, given_rows]
    theirs = xlnet(inputs_embeds=given, perm_mask=hidden_from.float(), target_mapping=mapping).last_hidden_state[0]

    batch = streams(found, 60)
    _, context = model.embed(batch.input)
    embedded = model.frontend.table[batch.input.values].detach().requires_grad_()
    ours = model.vectors(embedded, context)[0, 9:]
    for place, number in zip(at, range(len(at)), strict=True):
        query = batch.input.positions[0, 9:].tolist().index(place)  # type: ignore[index]
        (one,) = torch.autograd.grad(theirs[number, 0], given, retain_graph=True)
        (other,) = torch.autograd.grad(ours[query, 0], embedded, retain_graph=True)
        assert (
            (one[0].abs().sum(-1) > 0).tolist()
            == (other[0, :9].abs().sum(-1) > 0).tolist()
            == found.query_mask[0, place].tolist()
        )


def test_gaps_are_filled_from_left_to_right(tmp_path: Path) -> None:
    task, dataset, model = opened(recipe_of("permutation", ROPE, tmp_path))
    tokenizer = dataset.vocabulary.tokenizer
    mask = tokenizer.special("mask")
    assert mask is not None
    ids = [*tokenizer.encode("The cat"), mask, *tokenizer.encode(" on"), mask]
    places = [i for i, token in enumerate(ids) if token == mask]
    with torch.no_grad():
        logits = task.logits(model, Frame().around(ids)._replace(types=[]), places)  # type: ignore[attr-defined]
        # The text sees what it saw; the second gap sees the first one's answer, which sees the text and itself.
        filled, order = np.array([ids]), np.zeros((1, len(ids)), np.int64)
        filled[0, places[0]] = int(logits[0].argmax())
        order[0, places] = [1, 2]
        masks = order[:, None] <= order[:, :, None], order[:, None] < order[:, :, None]
        g = two_streams(model, PermutationBatch(filled, filled, order, *masks), 0, mask)
    for place, found in zip(places, logits, strict=True):
        wanted = g[place] @ model.head.weight.T  # type: ignore[operator, union-attr]
        wanted[mask] = -torch.inf
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    (answer,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"text": "The cat <mask> on <mask>"}])
    assert answer["best"][0][0]["word"] in answer["answer"]


@pytest.mark.parametrize("branch", ["attention(2)", "gru", "convolution", "attention(2, mask='full & window(3)')"])
def test_other_mixers_are_refused(branch: str, tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"model\.blocks\.0\.branches\.0: the task 'permutation' provides its own masks"
    ):
        recipe_of("permutation", {"blocks": [{"branches": [branch, "feed_forward"]}]}, tmp_path)


def test_the_last_row_of_a_text_is_padded_and_its_padding_predicts_nothing(tmp_path: Path) -> None:
    _, dataset, _ = opened(recipe_of("permutation(rate=1.0)", ROPE, tmp_path))
    *_, last = dataset.rows("validation")
    plain: Batch = list(dataset._batches.validation(None))[-1]  # type: ignore[attr-defined]
    assert plain.input.lengths is not None
    assert last.num_targets == int(plain.input.lengths.sum())
