"""Attention by hashing: what it is held against, what it comes near to, and what it leaves out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.contracts.samples import describe
from tests.mixers.modules import WIDTH, applied, following
from tests.mixers.modules import built as made
from torch import Tensor
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from qkv.generation.decode.sample import generate
from qkv.models.build import build
from qkv.ops.documents import documents
from qkv.ops.sparse import lsh_attention as ops
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.spec.masks import Causal, Full
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe


def built(part: LSHAttention) -> Any:
    return made(part, dtype=torch.float32).eval()


def published(part: LSHAttention) -> tuple[Any, Any]:
    """(ours, theirs) with the same weights; ours without the map that ends it."""
    causal = isinstance(part.mask, Causal)
    config = ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=part.num_heads,
        attention_head_size=part.head_width(WIDTH),
        lsh_attn_chunk_length=part.chunk_length,
        lsh_num_chunks_before=part.chunks_before,
        lsh_num_chunks_after=part.chunks_after,
        num_hashes=part.num_hashes,
        num_buckets=list(part.num_buckets),
        hash_seed=part.seed,
        attn_layers=["lsh"],
        is_decoder=causal,
    )
    ours, theirs = built(part), LSHSelfAttention(config, 0).eval()
    ours.output = torch.nn.Identity()
    with torch.no_grad():
        theirs.query_key.weight.copy_(ours.query_key.weight)
        theirs.value.weight.copy_(ours.value.weight)
    return ours.double(), theirs.double()


PUBLISHED = [
    LSHAttention(num_heads=3, head_dim=5, chunk_length=4, num_buckets=(6,), num_hashes=1, seed=7),
    LSHAttention(num_heads=3, head_dim=5, chunk_length=4, num_buckets=(2, 4), num_hashes=3, chunks_before=2, seed=7),
    LSHAttention(
        mask=Full(), num_heads=2, head_dim=4, chunk_length=3, num_buckets=(4,), num_hashes=2, chunks_after=1, seed=1
    ),
]


@pytest.mark.parametrize("part", PUBLISHED, ids=describe)
def test_it_is_that_of_the_transformers_library(part: LSHAttention) -> None:
    """In float64, with rotations drawn in float32: in that library, in float32, the weights of a position that sees
    itself alone, twice or in several rounds, add up to 1 but for half a per cent."""
    ours, theirs = published(part)
    for chunks in (1, 2, 5):
        count = chunks * part.chunk_length
        x = torch.randn(2, count, WIDTH, generator=torch.Generator().manual_seed(chunks), dtype=torch.float64)
        lengths = torch.tensor([count, count - part.chunk_length + 1])
        real = torch.arange(count) < lengths[:, None]
        with torch.no_grad():
            y = applied(ours, x, lengths)
            with patch.object(torch, "randn", single(torch.randn)):
                expected = theirs(x, attention_mask=real.long()).hidden_states
        torch.testing.assert_close(y[real], expected[real])


def single(original: Any) -> Any:
    """Drawn in float32, whatever was asked for."""
    return lambda *shape, dtype=None, **options: original(*shape, **options).to(dtype)


def exact(module: Any, x: Tensor) -> Tensor:
    """Full attention with the same vectors, from the part that remembers."""
    return module(x, following(0, x.shape[1], x.shape[0]), module.init_state(x.shape[0]))[0]


def test_more_rounds_come_nearer_to_full_attention() -> None:
    """On clustered vectors, for which hashing is made: 0.34 of the outputs' norm with one round, 0.20 with eight."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(12, WIDTH, generator=generator) * 3
    x = centres[torch.randint(12, (4, 192), generator=generator)] + 0.3 * torch.randn(
        4, 192, WIDTH, generator=generator
    )
    errors = []
    for rounds in (1, 2, 4, 8):
        module = built(LSHAttention(num_heads=2, chunk_length=16, num_buckets=(12,), num_hashes=rounds))
        with torch.no_grad():
            expected = exact(module, x)
            y = applied(module, x)
        errors.append(float((y - expected).norm() / expected.norm()))
    assert errors == sorted(errors, reverse=True), errors
    assert errors[-1] < 0.65 * errors[0], errors


def test_a_row_of_one_chunk_is_not_hashed_also_beside_longer_ones() -> None:
    module = built(LSHAttention(num_heads=2, chunk_length=4, num_hashes=3, num_buckets=(4,)))
    x = torch.randn(2, 11, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = applied(module, x, torch.tensor([11, 4]))
        torch.testing.assert_close(y[1:, :4], exact(module, x[1:, :4]))


def test_no_later_key_or_value_is_read() -> None:
    """Gradients reach what is before alone, whatever the sorting does."""
    module = built(LSHAttention(num_heads=2, chunk_length=3, num_hashes=2, num_buckets=(4,)))
    x = torch.randn(1, 12, WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = applied(module, x)
    for i in range(12):
        (grad,) = torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)
        assert not grad[0, i + 1 :].any()
        assert grad[0, : i + 1].any()


def test_rotations_are_those_of_the_seed() -> None:
    hashing = ops.Hashing(2, (4, 6), 8, 1, 0, seed=3)
    before = torch.get_rng_state()
    first, again = ops.rotations(hashing, 2, 5), ops.rotations(hashing, 2, 5)
    assert first.shape == (2, 5, 2, 5)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(1, 2, 50, 5, generator=torch.Generator().manual_seed(0))
    found = ops.buckets(x, hashing)
    assert (int(found.min()) >= 0, int(found.max()) < 24, found.unique().numel() > 12) == (True, True, True)
    assert torch.equal(found, ops.buckets(7 * x, hashing)), "a longer vector falls into the same bucket"


def test_documents_are_taken_apart_and_put_together() -> None:
    segments = torch.tensor([[0, 0, 1, 1, 1], [4, 4, 4, 4, 4], [1, 2, 1, 1, 2]])
    x = torch.arange(15.0).view(3, 5, 1)
    found = documents(segments)
    assert found.lengths.tolist() == [2, 3, 5, 1, 1, 2, 1]
    apart = found.apart(x)
    assert [apart[i, :n, 0].tolist() for i, n in enumerate(found.lengths.tolist())][:3] == [
        [0, 1],
        [2, 3, 4],
        [5, 6, 7, 8, 9],
    ]
    assert torch.equal(found.together(apart), x)


@pytest.mark.parametrize("buckets", [3, 0, [4, 5]])
def test_an_odd_number_of_buckets_is_refused(buckets: Any) -> None:
    with pytest.raises(SpecError, match="give an even number, or a list of even ones"):
        LSHAttention.parse({"num_buckets": buckets})


def test_buckets_may_be_a_number() -> None:
    assert LSHAttention.parse({"num_buckets": 8}).buckets == 8
    assert LSHAttention.parse({"num_buckets": [2, 4]}).buckets == 8


TASKS: dict[str, dict[str, Any]] = {
    "next_token": {"data": {"source": "a.txt"}},
    "translation": {"data": {"source": "a.tsv"}, "task": {"kind": "translation"}},
    "span_corruption": {"data": {"source": "a.txt"}, "task": {"kind": "span_corruption"}},
    "sorting": {"task": {"kind": "sorting"}},
}


def hashing(length: int, branch: str, **more: Any) -> dict[str, Any]:
    return {
        "context_length": length,
        "blocks": [{"branches": ["feed_forward"]}, {"branches": ["attention", branch]}],
        "num_layers": 4,
        **more,
    }


@pytest.mark.parametrize("task", TASKS)
def test_a_task_that_writes_refuses_rows_longer_than_a_chunk(task: str) -> None:
    head = {"head": {"kind": "tokens", "num_classes": 3}} if task == "sorting" else {}
    with pytest.raises(
        SpecError,
        match=r"model\.blocks\.1\.branches\.1: .* of up to 64 positions, but context_length is 65; "
        r".*inexact_decoding=true",
    ):
        Recipe.parse({**TASKS[task], "model": hashing(65, "lsh_attention", **head)})
    Recipe.parse({**TASKS[task], "model": hashing(64, "lsh_attention", **head)})
    Recipe.parse({**TASKS[task], "model": hashing(65, "lsh_attention(inexact_decoding=true)", **head)})


def test_generation_beyond_a_chunk_warns_unless_the_spec_accepts_it() -> None:
    """The last token is not read, so that four positions hold three tokens of a prompt and two new ones."""
    for accepted, new, warns in ((False, 2, False), (False, 3, True), (True, 3, False)):
        branch = f"lsh_attention(chunk_length=4, inexact_decoding={str(accepted).lower()})"
        spec = {"width": 16, "frontend": {"kind": "text", "vocab_size": 9, "positions": "none"}, **hashing(8, branch)}
        m = build(Model.parse(spec)).eval()
        sentence = (
            r"model\.blocks\.1\.branches\.1: decoding of 'lsh_attention' is exact for texts of up to 4 tokens, "
            r"but this text may reach 5"
        )
        with pytest.warns(UserWarning, match=sentence) if warns else nullcontext():
            assert len(generate(m, [[1, 2, 3]], Generation(max_new_tokens=new))[0]) == new


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("classification", hashing(500, "lsh_attention", head={"kind": "classification", "num_classes": 2})),
        ("masked_tokens", hashing(500, "lsh_attention(mask=full)")),
        (
            "translation",
            {
                "encoder": {"context_length": 500, "blocks": [{"branches": ["lsh_attention(mask=full)"]}]},
                "blocks": [{"branches": ["attention", "cross_attention"]}],
            },
        ),
    ],
)
def test_what_is_not_written_may_be_hashed(task: str, model: dict[str, Any]) -> None:
    read = Recipe.parse({"data": {"source": "a.tsv"}, "task": {"kind": task}, "model": model})
    assert read.model == Model.parse(model)
