"""Where a tensor lives: in a checkpoint, in a run, and in any family that calls one so."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.interop.folders import tiny, tiny_model

from qkv.interop.load import described
from qkv.interop.mapping.family import Family
from qkv.interop.registry import families
from qkv.interop.where import everywhere, sketch, where
from qkv.layers.norms import LayerNorm
from qkv.mixers.attention.attention import Attention
from qkv.models.build import build
from qkv.spec.branches import FeedForward
from qkv.spec.model import Block, Encoder
from qkv.spec.models.cross import CrossAttention
from qkv.system.errors import UserError

EVERY = [(family, architecture) for family in families() for architecture in family.architectures]


def test_a_published_name_leads_to_spec_module_and_line(tmp_path: Path) -> None:
    model, family, architecture = described(tiny(tmp_path / "a"))
    found = where(model, "transformer.h.1.attn.c_attn.weight", family, architecture)
    assert (found.ours, found.way) == ("blocks.1.branches.0.body.qkv.weight", "transposed")
    assert (found.spec_path, found.module, found.shape) == ("model.blocks.0.branches.0", "Attention", (36, 12))
    line = found.file.read_text().splitlines()[found.line - 1 : found.line + 1]
    assert found.file == Path(inspect.getfile(Attention))
    assert any("class Attention" in text for text in line)
    assert where(model, "h.1.attn.c_attn.weight", family, architecture) == found
    assert where(model, found.ours, family, architecture) == found


def test_a_branch_outside_of_the_package_owns_its_linear_maps() -> None:
    class Own(Attention):
        """Defined here."""

    model = tiny_model()
    model.get_submodule("blocks.0.branches.0.body").__class__ = Own
    found = where(model, "blocks.0.branches.0.body.qkv.weight")
    assert (found.module, found.file) == ("Own", Path(__file__))


def test_norms_tables_and_heads_have_places_too() -> None:
    model = tiny_model()
    paths = {
        "frontend.table": "model.frontend",
        "frontend.positions.table": "model.frontend.positions",
        "norm.bias": "model.norm",
    }
    paths |= {"head.weight": "model.head", "blocks.1.branches.1.norm.weight": "model.blocks.0.norm"}
    assert {name: where(model, name).spec_path for name in paths} == paths
    assert where(model, "norm.bias").module == LayerNorm.__name__


def test_a_tensor_of_an_encoder_is_found_in_the_encoders_spec() -> None:
    spec = tiny_model().spec
    blocks = (Block(branches=(CrossAttention(num_heads=2), FeedForward())),)
    model = build(spec.changed(blocks=blocks, encoder=Encoder(frontend=spec.frontend, num_layers=2)))
    assert where(model, "encoder.blocks.1.branches.0.body.qkv.weight").spec_path == "model.encoder.blocks.0.branches.0"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'blocks\.1\.branches\.0\.body\.qkv\.bias'"):
        where(tiny_model(), "blocks.1.branches.0.body.qvk.bias")
    with pytest.raises(UserError, match=r"did you mean 'model\.layers\.3\.mlp\.gate_proj\.weight'"):
        everywhere("model.layers.3.mlp.gate_prj.weight")


def test_a_name_alone_is_found_in_every_family_that_has_it() -> None:
    found = dict(everywhere("model.layers.1.self_attn.k_norm.weight"))
    assert "Qwen3" in found
    assert "Llama" not in found
    assert found["Qwen3"].ours == "blocks.1.branches.0.body.key_norm.weight"


@pytest.mark.parametrize(("family", "architecture"), EVERY, ids=[architecture for _, architecture in EVERY])
def test_every_family_can_be_sketched(family: Family, architecture: str) -> None:
    spec = sketch(family, architecture, 2).spec
    assert len(spec.layers) >= 1 or spec.head.kind == "wave_decoder"  # codecs have convolutions alone
