"""Families outside of the package: found once imported, with experts stored in one tensor or each in its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GraniteMoeConfig, GraniteMoeForCausalLM, MixtralConfig, MixtralForCausalLM

import qkv
from qkv.interop import registry
from qkv.interop.families.common import gated
from qkv.interop.load import load_published
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.names import NameRule
from qkv.interop.save import save_published
from qkv.spec.extension import imports
from qkv.system.errors import UserError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "your_own_family.py"
SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The variable that names the example; its family is forgotten afterwards, and that of the package is back."""
    monkeypatch.setenv(imports.VARIABLE, str(EXAMPLE))
    built_in = registry.find_family("Mixtral")
    assert built_in is not None
    yield
    registry._FAMILIES.pop("House MoE", None)
    registry.register(built_in)
    sys.modules.pop(EXAMPLE.stem, None)
    imports._done.discard(str(EXAMPLE))


def renamed(folder: Path, back: bool = False) -> Path:
    """The folder of a Granite with experts, under the names of the example's family; ``back``: the reverse."""
    path = folder / "config.json"
    text = path.read_text()
    for names in (("granitemoe", "house_moe"), ("GraniteMoeForCausalLM", "HouseMoeForCausalLM")):
        text = text.replace(*(names[::-1] if back else names))
    path.write_text(text)
    return folder


def random_weights(model: Any) -> Any:
    """The model with no weight at its initial value: norms of 1 would hide a wrong name."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def agree(theirs: Any, folder: Path, tmp_path: Path, family: str) -> None:
    """Assert that qkv computes the logits of ``theirs``, saved in ``folder``, and writes the same tensors again."""
    ids = torch.randint(53, (3, 11), generator=torch.Generator().manual_seed(6))
    published = load_published(folder)
    assert published.family == family
    with torch.no_grad():
        wanted, found = theirs(ids).logits, published.model(ids)[0]
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5
    save_published(published.model, tmp_path / "again", family=family)
    first, second = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    again = type(theirs).from_pretrained(renamed(tmp_path / "again", back=True)).eval()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, wanted)


def test_a_family_outside_of_the_package_is_loaded_and_exported(example: None, tmp_path: Path) -> None:
    config = GraniteMoeConfig(
        **SIZES, attention_multiplier=0.3, rope_parameters={"rope_theta": 5e3, "rope_type": "default"}
    )
    theirs = random_weights(GraniteMoeForCausalLM(config))
    theirs.save_pretrained(tmp_path / "granite")
    agree(theirs, renamed(tmp_path / "granite"), tmp_path, "House MoE")
    assert [family.name for family in registry.families()].count("House MoE") == 1


def test_without_the_import_the_folder_is_refused(tmp_path: Path) -> None:
    GraniteMoeForCausalLM(GraniteMoeConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="model_type is 'house_moe', which qkv does not support"):
        qkv.load(renamed(tmp_path))


def test_experts_with_names_of_their_own(example: None, tmp_path: Path) -> None:
    """Mixtral, from the example by another table of names: an index that stands on both sides."""
    imports.import_more()
    house = registry.find_family("House MoE")
    assert house is not None
    ours, stored = "blocks.{layer}.branches.1.body", "model.layers.{layer}.block_sparse_moe"
    each = f"{stored}.experts.{{expert}}"
    names = (
        NameRule(f"{ours}.experts.{{expert}}.gate_up.weight", (f"{each}.w1.weight", f"{each}.w3.weight"), PAIR),
        NameRule(f"{ours}.experts.{{expert}}.down.weight", f"{each}.w2.weight"),
        NameRule(f"{ours}.router.weight", f"{stored}.gate.weight"),
        *gated.NAMES,
    )

    def config(spec: qkv.Model) -> dict[str, Any] | None:
        found = house.config(spec)
        return None if found is None else {key: value for key, value in found.items() if key != "attention_multiplier"}

    def spec(config: Any, head: Any) -> qkv.Model:
        config.values["attention_multiplier"] = (SIZES["hidden_size"] / SIZES["num_attention_heads"]) ** -0.5
        return house.spec(config, head)

    registry.register(
        replace(
            house,
            name="Mixtral",
            model_types=("mixtral",),
            architectures={"MixtralForCausalLM": house.architectures["HouseMoeForCausalLM"]},
            names=names,
            spec=spec,
            config=config,
        )
    )
    theirs = random_weights(MixtralForCausalLM(MixtralConfig(**SIZES, sliding_window=None)))
    theirs.save_pretrained(tmp_path / "mixtral")
    agree(theirs, tmp_path / "mixtral", tmp_path, "Mixtral")


def test_a_tensor_with_another_number_of_experts_is_refused(example: None, tmp_path: Path) -> None:
    theirs = GraniteMoeForCausalLM(GraniteMoeConfig(**SIZES))
    theirs.save_pretrained(tmp_path)
    text = (renamed(tmp_path) / "config.json").read_text()
    for count, said in ((4, "has the tensor '.*input_linear.weight\\[4\\]'"), (6, "lacks the tensor '.*\\[5\\]'")):
        (tmp_path / "config.json").write_text(text.replace('"num_local_experts": 5', f'"num_local_experts": {count}'))
        with pytest.raises(UserError, match=said):
            load_published(tmp_path)
