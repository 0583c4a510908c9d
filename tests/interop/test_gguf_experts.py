"""GGUF files of mixtures of experts: all experts of a layer in one tensor, wide and in blocks of few bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.cases.experts import case
from torch import Tensor

import qkv
from qkv.cli.main import main
from qkv.interop.gguf.write import save_gguf
from qkv.interop.load import load_published
from qkv.layers.linear.quantized import QuantizedLinear
from qkv.system.errors import UserError

gguf = pytest.importorskip("gguf")

EXPERTS, LAYERS = 4, 2
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_experts_per_tok": 2, "num_key_value_heads": 2}
OWN = {"moe_intermediate_size": 32, "num_experts": EXPERTS}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Mixtral", {"num_local_experts": EXPERTS, "sliding_window": None, "head_dim": 16}),
    "qwen2moe": ("Qwen2Moe", {**OWN, "head_dim": "absent", "shared_expert_intermediate_size": 96}),
    "qwen3moe": ("Qwen3Moe", {**OWN, "head_dim": 16, "norm_topk_prob": True}),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": EXPERTS,
            "head_dim": 16,
            "sliding_window": 5,
            "swiglu_limit": 7.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": EXPERTS, "head_dim": "absent", "num_key_value_heads": 4}),
}
"""Architecture in llama.cpp -> stem of the class of the transformers library, and what its config sets."""
FAMILIES = {
    "llama": "Mixtral",
    "qwen2moe": "Qwen2-MoE",
    "qwen3moe": "Qwen3-MoE",
    "gpt-oss": "gpt-oss",
    "olmoe": "OLMoE",
}
IDS = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(5))


def model_of(name: str) -> Any:
    """Model with random weights, also of norms and biases."""
    stem, fields = MODELS[name]
    made = case(name, stem, **{**SIZES, **fields})
    torch.manual_seed(len(name))
    model = made.model(made.config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_((1.0 if "norm" in key else 0.0) + 0.2 * torch.randn(parameter.shape))
    return model


def by_hand(name: str, theirs: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a model by the names that llama.cpp documents, without qkv."""
    config, state = theirs.config, theirs.state_dict()
    values = {
        "block_count": LAYERS,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.moe_intermediate_size if name.startswith("qwen") else config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "expert_count": EXPERTS,
        "expert_used_count": config.num_experts_per_tok,
    }
    if name == "gpt-oss":
        values |= {"expert_feed_forward_length": config.intermediate_size, "attention.sliding_window": 5}
    if name in ("llama", "qwen3moe", "gpt-oss"):
        values |= {"attention.key_length": 16, "attention.value_length": 16}
    if name.startswith("qwen"):
        values["expert_feed_forward_length"] = config.moe_intermediate_size
    if name == "qwen2moe":
        values["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    tensors = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    found = {f"{mine}.weight": state[f"{his}.weight"] for mine, his in tensors.items()}
    for layer in range(LAYERS):
        found |= {f"blk.{layer}.{key}": value for key, value in _layer(name, config, state, layer).items()}
    return values, found


def _layer(name: str, config: Any, state: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    begin, found = f"model.layers.{layer}.", dict[str, Tensor]()
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
    parts |= {"ffn_gate_inp": "mlp.router"} if name == "gpt-oss" else {}
    parts |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {"attn_output": "self_attn.o_proj"}
    parts |= {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    parts |= {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
    for mine, his in parts.items():
        for leaf in ("weight", "bias"):
            if f"{begin}{his}.{leaf}" in state:
                found[f"{mine}.{leaf}"] = state[f"{begin}{his}.{leaf}"]
    stacks = {part: state[f"{begin}mlp.experts.{part}"] for part in ("gate_up_proj", "down_proj")}
    if name == "gpt-oss":  # stored (E, in, out), with gate and up in turns
        biases = [state[f"{begin}mlp.experts.{part}_bias"] for part in stacks]
        stacks = {part: stack.mT for part, stack in stacks.items()}
        stacks["gate_up_proj"] = torch.cat((stacks["gate_up_proj"][:, ::2], stacks["gate_up_proj"][:, 1::2]), 1)
        found |= {"ffn_gate_exps.bias": biases[0][:, ::2], "ffn_up_exps.bias": biases[0][:, 1::2]}
        found |= {"ffn_down_exps.bias": biases[1], "attn_sinks.weight": state[f"{begin}self_attn.sinks"]}
        found["post_attention_norm.weight"] = found.pop("ffn_norm.weight")
    gate, up = stacks["gate_up_proj"].chunk(2, 1)
    found |= {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up, "ffn_down_exps.weight": stacks["down_proj"]}
    if name == "qwen2moe":
        found["ffn_gate_inp_shexp.weight"] = state[f"{begin}mlp.shared_expert_gate.weight"][0]
    if name == "llama":  # RoPE's pairs are adjacent
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            halves = found[f"attn_{part}.weight"].unflatten(0, (heads, 2, -1))
            found[f"attn_{part}.weight"] = halves.transpose(1, 2).flatten(0, 2)
    return found


def stored(
    file: Path, name: str, theirs: Any, kind_of: Callable[[str], str] = lambda name: "F32", **changed: Any
) -> Path:
    """The file by hand. ``kind_of``: type of each matrix; ``changed``: metadata."""
    values, tensors = by_hand(name, theirs)
    writer = gguf.GGUFWriter(file, name)
    for key, value in {**values, **changed}.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{name}.{key}", value)
    for key, tensor in tensors.items():
        number = gguf.GGMLQuantizationType[kind_of(key) if tensor.dim() > 1 else "F32"]
        writer.add_tensor(key, gguf.quantize(tensor.contiguous().numpy(), number), raw_dtype=number)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return file


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_file_of_stacked_experts_gives_the_logits_of_its_weights(name: str, tmp_path: Path) -> None:
    theirs = model_of(name)
    wanted = theirs(IDS).logits
    found = load_published(stored(tmp_path / "a.gguf", name, theirs))
    assert found.family == FAMILIES[name]
    assert relative(found.model(IDS)[0], wanted) < 1e-5
    theirs.save_pretrained(tmp_path / "hf")
    folder = load_published(tmp_path / "hf")
    assert folder.spec == found.spec
    assert all(torch.equal(value, found.model.state_dict()[key]) for key, value in folder.model.state_dict().items())
    ids, greedy = [3, 1, 4], [3, 1, 4]
    for _ in range(8):
        greedy.append(int(theirs(torch.tensor([greedy])).logits[0, -1].argmax()))
    assert qkv.generate(tmp_path / "a.gguf", ids=ids, max_new_tokens=8) == greedy[3:]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_an_export_is_the_file_by_hand_and_llama_cpp_opens_it(name: str, tmp_path: Path) -> None:
    theirs = model_of(name)
    theirs.save_pretrained(tmp_path / "hf")
    assert (
        main(["export", str(tmp_path / "hf"), "--format", "gguf", "--no-check", "--out", str(tmp_path / "a.gguf")]) == 0
    )
    file = gguf.GGUFReader(tmp_path / "a.gguf")
    values, tensors = by_hand(name, theirs)
    for key, value in values.items():
        assert file.fields[f"{name}.{key}"].contents() == pytest.approx(value, rel=1e-6), key
    assert {each.name for each in file.tensors} == set(tensors)
    for each in file.tensors:
        assert np.array_equal(np.asarray(each.data).reshape(each.shape[::-1]), tensors[each.name].numpy()), each.name
    again = load_published(tmp_path / "a.gguf")
    save_gguf(again.model, tmp_path / "b.gguf", family=again.family)
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    pytest.importorskip("llama_cpp")
    from qkv.interop.gguf.peer import logits_of

    assert relative(torch.from_numpy(logits_of(tmp_path / "a.gguf", IDS[0].tolist())), theirs(IDS[:1]).logits[0]) < 1e-4


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("name", ["llama", "qwen2moe", "gpt-oss"])
@torch.no_grad()
def test_experts_keep_their_values_and_their_size(name: str, kind: str, tmp_path: Path) -> None:
    file = stored(
        tmp_path / "a.gguf", name, model_of(name), lambda key: "F32" if "gate_inp" in key or "bias" in key else kind
    )
    narrow, wide = qkv.load(file).model, load_published(file, "fp32").model
    experts = {key: m for key, m in narrow.named_modules() if ".experts." in key and isinstance(m, QuantizedLinear)}
    assert len(experts) == LAYERS * EXPERTS * 2  # joined gate and up, and down
    for key, layer in experts.items():
        assert layer.matrix.bits == (8 if kind in ("Q5_0", "Q8_0") else 4)
        assert torch.equal(layer.weight, wide.get_parameter(f"{key}.weight"))
    sizes = [t.n_bytes for t in gguf.GGUFReader(file).tensors if "_exps" in t.name]
    held = sum(buffer.nbytes for layer in experts.values() for buffer in layer.matrix.buffers())
    assert held <= (1.7 if kind == "Q5_0" else 1.1) * sum(sizes)
    # Kernels round x to 8 bits, so that a router may choose another expert where two have nearly equal scores.
    wanted = wide(IDS)[0]
    assert ((narrow(IDS)[0] - wanted).abs().amax(-1) < 0.03 * wanted.abs().max()).float().mean() > 0.75


@torch.no_grad()
def test_yarn_of_gpt_oss_goes_along(tmp_path: Path) -> None:
    """Its features are not rounded to whole ones, which the file does not say."""
    stem, fields = MODELS["gpt-oss"]
    made = case("yarn", stem, **{**SIZES, **fields, "rope_parameters": "absent"})
    torch.manual_seed(2)
    theirs = made.model(made.config).eval()
    assert theirs.config.rope_parameters["rope_type"] == "yarn"
    theirs.save_pretrained(tmp_path / "hf")
    written = save_gguf(load_published(tmp_path / "hf").model, tmp_path / "a.gguf", family="gpt-oss")
    assert any("YaRN" in note for note in written.notes)
    assert gguf.GGUFReader(tmp_path / "a.gguf").fields["gpt-oss.rope.scaling.factor"].contents() == 32.0
    assert relative(load_published(tmp_path / "a.gguf").model(IDS)[0], theirs(IDS).logits) < 1e-5


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_an_export_in_few_bits_keeps_routers_whole_and_experts_narrow(dtype: str, tmp_path: Path) -> None:
    theirs = model_of("qwen3moe")
    theirs.save_pretrained(tmp_path / "hf")
    model = load_published(tmp_path / "hf").model
    save_gguf(model, tmp_path / "a.gguf", dtype=dtype)
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert {kinds[f"blk.1.ffn_{part}_exps.weight"] for part in ("gate", "up", "down")} == {dtype.upper()}
    assert kinds["blk.1.ffn_gate_inp.weight"] == "F32"
    again = qkv.load(tmp_path / "a.gguf", dtype="fp32").model
    save_gguf(again, tmp_path / "b.gguf", dtype=dtype)
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    name = "blocks.1.branches.1.body.experts.2.down.weight"
    number = gguf.GGMLQuantizationType[dtype.upper()]
    plain = theirs.state_dict()["model.layers.1.mlp.experts.down_proj"][2].numpy()
    wanted = gguf.dequantize(gguf.quantize(plain, number), number)
    assert np.array_equal(again.get_parameter(name).detach().numpy(), wanted)


def test_files_with_other_experts_than_they_say_are_refused(tmp_path: Path) -> None:
    theirs = model_of("qwen3moe")
    file = stored(tmp_path / "a.gguf", "qwen3moe", theirs, expert_count=10**9)
    with pytest.raises(
        UserError, match=r"expert_count is 1,000,000,000, but the tensor 'blk\.0\.\w+\.weight' has weights of 4"
    ):
        load_published(file)
    with pytest.raises(UserError, match="'qwen3moe' without experts, which qkv does not support; it supports it with"):
        load_published(stored(tmp_path / "b.gguf", "qwen3moe", theirs, expert_count=0))
    sums = case("mixtral", "Mixtral", num_local_experts=4, sliding_window=6)
    sums.model(sums.config).save_pretrained(tmp_path / "hf")
    with pytest.raises(UserError, match="'llama' does not store sliding_window"):
        save_gguf(load_published(tmp_path / "hf").model, tmp_path / "c.gguf", family="Mixtral")
    assert not (tmp_path / "c.gguf").exists()
