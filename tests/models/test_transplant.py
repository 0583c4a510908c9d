"""Weights moved between models: bit-equal where nothing changed, by hand where heads are joined or repeated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.models.build import build
from qkv.models.edit.transplant import Transferred, in_words, transplant
from qkv.models.transformer import Transformer
from qkv.spec.model import Model

D, H = 24, 6
IDS = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(3))


def model(mixer: object, seed: int, **fields: object) -> Transformer:
    described = {
        "width": D,
        "num_layers": 2,
        "context_length": 12,
        "frontend": {"kind": "text", "vocab_size": 13},
        "blocks": [{"branches": [mixer, "feed_forward(20)"]}],
        **fields,
    }
    built = build(Model.parse(described), seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # biases and norms too
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


def attention(groups: int, **fields: object) -> dict[str, object]:
    return {"kind": "attention", "num_heads": H, "num_kv_heads": groups, **fields}


def ways(moved: list[Transferred]) -> dict[str, str]:
    return dict(in_words(moved))


QKV = "blocks.*.branches.0.body.qkv"


def test_an_equal_model_takes_every_bit() -> None:
    old, new = model(attention(3), 1), model(attention(3), 2)
    moved = transplant(old, new)
    assert {one.how for one in moved} == {"kept"}
    assert all(one.taken == one.numbers for one in moved)
    assert all(torch.equal(tensor, old.state_dict()[name]) for name, tensor in new.state_dict().items())


def test_a_wide_window_and_other_positions_of_no_weights_change_nothing_or_only_the_answer() -> None:
    old, new = model(attention(3), 1), model(attention(3, mask="causal & window(9)"), 2)
    transplant(old, new)
    torch.testing.assert_close(new(IDS)[0], old(IDS)[0], rtol=1e-5, atol=1e-5)
    narrow = model(attention(3, mask="causal & window(2)"), 2)
    transplant(old, narrow)
    assert (narrow(IDS)[0] - old(IDS)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_heads_that_become_fewer_are_means_by_hand(bias: bool) -> None:
    old, new = model(attention(6, bias=bias), 1), model(attention(2, bias=bias), 2)
    found = ways(transplant(old, new))
    assert found[f"{QKV}.weight"] == "q: kept; k, v: means of 3 heads"
    assert {path for path, how in found.items() if how != "kept"} == {
        f"{QKV}.weight",
        *([f"{QKV}.bias"] if bias else []),
    }
    for i in range(2):
        for leaf in ["weight", *(["bias"] if bias else [])]:
            name = f"blocks.{i}.branches.0.body.qkv.{leaf}"
            torch.testing.assert_close(
                new.state_dict()[name], _means(old.state_dict()[name].double(), 6, 2).float(), rtol=1e-6, atol=1e-6
            )


def _means(rows: Tensor, heads: int, groups: int) -> Tensor:
    """Row by row: queries, then of keys and values the mean over each group's heads."""
    width = D // H
    found = [rows[r] for r in range(D)]
    for start in (D, D + heads * width):
        for group in range(groups):
            for feature in range(width):
                members = [start + (group * heads // groups + j) * width + feature for j in range(heads // groups)]
                found.append(sum(rows[m] for m in members) / len(members))  # type: ignore[arg-type]
    return torch.stack(found)


def test_repeated_heads_compute_what_the_shared_ones_did() -> None:
    old, new = model(attention(2), 1), model(attention(6), 2)
    assert ways(transplant(old, new))[f"{QKV}.weight"] == "q: kept; k, v: each head copied 3 times"
    torch.testing.assert_close(new(IDS)[0], old(IDS)[0], rtol=1e-5, atol=1e-5)
    back = model(attention(2), 5)
    transplant(new, back)
    torch.testing.assert_close(back(IDS)[0], old(IDS)[0], rtol=1e-5, atol=1e-5)


def test_groups_that_do_not_divide_begin_as_initialised() -> None:
    old, new = model(attention(3), 1), model(attention(2), 2)
    before = new.state_dict()["blocks.0.branches.0.body.qkv.weight"].clone()
    moved = transplant(old, new)
    assert ways(moved)[f"{QKV}.weight"] == "q: kept; k, v: initialised at random"
    after = new.state_dict()["blocks.0.branches.0.body.qkv.weight"]
    assert torch.equal(after[:D], old.state_dict()["blocks.0.branches.0.body.qkv.weight"][:D])
    assert torch.equal(after[D:], before[D:])
    assert next(one for one in moved if one.path.endswith("qkv.weight")).taken == D * D


def test_linear_attention_takes_queries_keys_values_and_the_output() -> None:
    old, new = model(attention(6), 1), model({"kind": "linear_attention", "num_heads": H}, 2)
    assert set(ways(transplant(old, new)).values()) == {"kept"}
    shared = model({"kind": "linear_attention", "num_heads": H}, 2)
    assert (
        ways(transplant(model(attention(2), 1), shared))[f"{QKV}.weight"] == "q: kept; k, v: each head copied 3 times"
    )


def test_other_mixers_keep_what_has_their_path_and_shape() -> None:
    old, new = model(attention(6), 1), model("gru", 2)
    found = ways(transplant(old, new))
    random = {path for path, how in found.items() if how == "initialised at random"}
    assert random
    assert all(".branches.0.body." in path for path in random)
    assert found["frontend.table"] == found["norm.weight"] == found["blocks.*.branches.1.body.up.weight"] == "kept"
    assert not any(
        torch.equal(new.state_dict()[n], t)
        for n, t in model("gru", 9).state_dict().items()
        if ".branches.1.body.up" in n
    )


def test_some_layers_are_named() -> None:
    new = model(
        "gru",
        2,
        num_layers=None,
        blocks=[{"branches": [attention(6), "feed_forward(20)"]}, {"branches": ["gru", "feed_forward(20)"]}],
    )
    found = ways(transplant(model(attention(6), 1), new))
    assert found["blocks.*.branches.0.body.output.weight"] == "kept"
    assert found["blocks.0.branches.0.body.qkv.weight"] == "kept"
    assert found["blocks.1.branches.0.body.cells.0.input_weight"] == "initialised at random"
    three = [Transferred(f"blocks.{i}.a", "kept" if i == 1 else "initialised at random", 1, 0) for i in range(3)]
    assert in_words([*three, Transferred("encoder.blocks.0.a", "kept", 1, 1)]) == [
        ("blocks.{0,2}.a", "initialised at random"),
        ("blocks.1.a", "kept"),
        ("encoder.blocks.*.a", "kept"),
    ]


def test_a_longer_table_of_positions_keeps_its_rows() -> None:
    old, new = model(attention(6), 1), model(attention(6), 2, context_length=20)
    moved = transplant(old, new)
    name = next(name for name, tensor in new.state_dict().items() if name.startswith("frontend.") and len(tensor) == 20)
    assert ways(moved)[name] == "12 of 20 rows kept"
    assert torch.equal(new.state_dict()[name][:12], old.state_dict()[name])


def test_a_head_that_is_tied_no_more_begins_as_the_table() -> None:
    old, new = model(attention(6), 1), model(attention(6), 2, head={"kind": "language_model", "tied": False})
    transplant(old, new)
    torch.testing.assert_close(new(IDS)[0], old(IDS)[0], rtol=0, atol=0)


def test_heads_of_cross_attention_become_fewer_like_those_of_attention() -> None:
    def reading(groups: int, seed: int) -> Transformer:
        branch = {"kind": "cross_attention", "num_heads": H, "num_kv_heads": groups}
        return model(branch, seed, encoder={"frontend": {"kind": "text", "vocab_size": 13}, "num_layers": 1})

    old, new = reading(2, 1), reading(6, 2)
    assert ways(transplant(old, new))["blocks.*.branches.0.body.memory.weight"] == "k, v: each head copied 3 times"
    torch.testing.assert_close(
        new(IDS, memory=new.encode(IDS))[0], old(IDS, memory=old.encode(IDS))[0], rtol=1e-5, atol=1e-5
    )
    back = reading(2, 5)
    assert ways(transplant(new, back))["blocks.*.branches.0.body.memory.bias"] == "k, v: means of 3 heads"


def test_another_number_of_latents_begins_as_initialised() -> None:
    def latent(count: int, seed: int) -> Transformer:
        return model("cross_attention(6)", seed, latents={"count": count}, queries={})

    found = ways(transplant(latent(4, 1), latent(6, 2)))
    assert found["latents.vectors.table"] == "initialised at random"
    assert found["queries.positions.table"] == "kept"
