"""Adapters in PEFT's format over published checkpoints: loaded, they give the logits of a merge by hand."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.interop.battery import Pair, answered, made, our_answer, their_answer
from tests.interop.test_peft import NAMES, TARGETS, case_of, learned, put_in
from tests.training.test_start import alone, begun, published_bert
from torch import Tensor, nn
from transformers import BertForSequenceClassification, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

import qkv
from qkv.cli.main import main
from qkv.interop.adapters.write import save_adapter
from qkv.interop.load import load_published
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)
BASE: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "base",
    "r": 2,
    "lora_alpha": 6,
    "bias": "none",
    "target_modules": ["q_proj"],
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "modules_to_save": None,
    "peft_version": "0.17.0",
    "use_dora": False,
    "eva_config": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "a_key_of_later_versions": False,
}


def written(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**BASE, **config}))
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def pair_of(path: str, model: nn.Module, rank: int) -> dict[str, Tensor]:
    layer = model.get_submodule(path)
    out, into = reversed(layer.weight.shape) if isinstance(layer, Conv1D) else layer.weight.shape  # type: ignore[misc]
    a, b = 0.5 * torch.randn(rank, int(into)), 0.5 * torch.randn(int(out), rank)
    return {f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b}


def llama(folder: Path, **sizes: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    given = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=17, **{**given, **sizes})).eval()
    model.save_pretrained(folder)
    return model


IDS = torch.tensor([[3, 5, 1, 16, 2, 2, 9]])


def same(folder: Path, theirs: nn.Module) -> None:
    ours = load_published(folder)
    with torch.no_grad():
        torch.testing.assert_close(ours.model(IDS)[0], theirs(IDS).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_qkv_exports_it_loads(name: str, tmp_path: Path) -> None:
    """The files by our export, put into the other library's model by hand, and read here over the base's files."""
    pair: Pair = made(case_of(name), tmp_path / "base")
    training = learned(pair.ours, targets=TARGETS.get(name, ["qkv", "output"]))
    save_adapter(pair.ours, training, tmp_path / "adapter", "base", pair.published.spec)
    before = our_answer(pair)
    put_in(pair.theirs, tmp_path / "adapter")
    loaded = load_published(tmp_path / "adapter")
    again = Pair(pair.case, pair.theirs, pair.folder, loaded, pair.rows, pair.targets)
    there, here = answered(pair, their_answer(pair)), answered(pair, our_answer(again))
    assert (here - there).abs().max() < 1e-4 * there.abs().max()
    assert (answered(pair, before) - here).abs().max() < 1e-4 * there.abs().max()


@pytest.mark.parametrize("root", [False, True], ids=["", "rslora"])
def test_ranks_and_alphas_by_pattern_and_tensors_in_full(root: bool, tmp_path: Path) -> None:
    model = llama(tmp_path / "base")
    q, k, down = (f"model.layers.1.{name}" for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"))
    ranks = {q: 3, k: 2, down: 2}
    tensors = {name: tensor for path, rank in ranks.items() for name, tensor in pair_of(path, model, rank).items()}
    norm = torch.randn(12)
    config = {
        "rank_pattern": {"q_proj": 3},
        "alpha_pattern": {r"layers\.[1-9]\.mlp\..*": 20, "nothing": 7},
        "use_rslora": root,
        "modules_to_save": ["norm"],
    }
    folder = written(tmp_path / "adapter", config, {**tensors, "model.norm.weight": norm})
    with torch.no_grad():
        for path, rank in ranks.items():
            a, b = (tensors[f"{path}.lora_{x}.weight"].double() for x in "AB")
            scale = (20 if path == down else 6) / (math.sqrt(rank) if root else rank)
            model.get_submodule(path).weight += (scale * b @ a).float()  # type: ignore[operator]
        model.model.norm.weight.copy_(norm)
    same(folder, model)


def test_a_matrix_of_a_transposed_kind_and_a_base_beside_the_adapter(tmp_path: Path) -> None:
    pair = made(case_of("gpt2"), tmp_path / "base")
    path = "transformer.h.0.mlp.c_fc"
    tensors = pair_of(path, pair.theirs, 2)
    folder = written(tmp_path / "adapter", {"fan_in_fan_out": True, "base_model_name_or_path": "./gone"}, tensors)
    for file in (tmp_path / "base").iterdir():
        shutil.copy(file, folder)
    a, b = (tensors[f"{path}.lora_{x}.weight"] for x in "AB")
    pair.theirs.get_submodule(path).weight.data += 3.0 * (b @ a).T
    loaded = load_published(folder)
    again = Pair(pair.case, pair.theirs, pair.folder, loaded, pair.rows, pair.targets)
    there = answered(pair, their_answer(pair))
    assert (answered(pair, our_answer(again)) - there).abs().max() < 1e-4 * there.abs().max()


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_a_table_saved_as_a_module_is_tied_no_more(module: str, tmp_path: Path) -> None:
    """PEFT trains a copy of the module, which the other place of the shared tensor does not see."""
    model = llama(tmp_path / "base", tie_word_embeddings=True)
    name = "model.embed_tokens.weight" if module == "embed_tokens" else "lm_head.weight"
    table = torch.randn(17, 12)
    folder = written(tmp_path / "adapter", {"modules_to_save": [module]}, {name: table})
    apart = nn.Parameter(table)
    if module == "embed_tokens":
        model.model.embed_tokens.weight = apart
    else:
        model.lm_head.weight = apart
    same(folder, model)


def test_a_table_with_further_rows_stays_tied(tmp_path: Path) -> None:
    model = llama(tmp_path / "base", tie_word_embeddings=True)
    table = torch.randn(19, 12)
    folder = written(tmp_path / "adapter", {}, {"model.embed_tokens.weight": table})
    model.resize_token_embeddings(19)
    model.model.embed_tokens.weight.data.copy_(table)
    same(folder, model)
    assert load_published(folder).spec.vocab_size == 19


def classifier(tmp_path: Path) -> tuple[Path, BertForSequenceClassification]:
    """An adapter for five classes over a BERT saved without such a head, and the model that it makes."""
    base = published_bert(tmp_path / "base")
    torch.manual_seed(2)
    theirs = BertForSequenceClassification.from_pretrained(base, num_labels=5).eval()
    path = "bert.encoder.layer.0.attention.self.value"
    pair = pair_of(path, theirs, 2)
    head = {"classifier.weight": torch.randn(5, 16), "classifier.bias": torch.randn(5)}
    config = {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "score"]}
    folder = written(tmp_path / "adapter", config, {**pair, **head})
    theirs.get_submodule(path).weight.data += 3.0 * pair[f"{path}.lora_B.weight"] @ pair[f"{path}.lora_A.weight"]
    theirs.load_state_dict(head, strict=False)
    return folder, theirs


def test_a_head_of_another_task_comes_with_the_adapter(tmp_path: Path) -> None:
    folder, theirs = classifier(tmp_path)
    ids = torch.tensor([[2, 5, 6, 3]])
    loaded = load_published(folder)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids)[0], theirs(ids).logits, rtol=1e-4, atol=1e-5)
    assert len(loaded.labels) == 5
    assert qkv.predict(qkv.load(folder), {"text": "the good day"})[0]["answer"] in loaded.labels


def test_training_begins_with_the_adapted_weights(tmp_path: Path) -> None:
    folder, theirs = classifier(tmp_path)
    run, _ = begun(alone(tmp_path / "rows.tsv", folder), tmp_path / "run")
    state = run.model.state_dict()
    value = theirs.bert.encoder.layer[0].attention.self.value.weight
    torch.testing.assert_close(state["blocks.0.branches.0.body.qkv.weight"][-16:], value, rtol=1e-5, atol=1e-6)
    assert run.recipe.model.head.to_dict()["num_classes"] == 2


def test_the_commands_read_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = llama(tmp_path / "base")
    folder = written(tmp_path / "adapter", {}, pair_of("model.layers.0.self_attn.o_proj", model, 2))
    assert main(["load", str(folder)]) == 0
    assert "rank 2 on 1 matrices" in capsys.readouterr().out
    assert main(["generate", str(folder), "--ids", "3 4 5", "--max-new-tokens", "2"]) == 0
    assert main(["export", str(folder), "--out", str(tmp_path / "merged"), "--no-check"]) == 0
    torch.testing.assert_close(
        LlamaForCausalLM.from_pretrained(tmp_path / "merged")(IDS).logits,
        load_published(folder).model(IDS)[0],
        rtol=1e-4,
        atol=1e-5,
    )


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another method": ({"peft_type": "IA3"}, "", "peft_type is 'IA3', but qkv supports only 'LORA'"),
    "dora": ({"use_dora": True}, "", "use_dora is True, but qkv supports only None here; it changes the update: DoRA"),
    "another start": ({"init_lora_weights": "pissa"}, "", "it changes the weights of the base model at the start"),
    "an unknown key": ({"lora_sigma": 3}, "", "the key 'lora_sigma' is unknown"),
    "another rank": (
        {"r": 4},
        "",
        "the rank of 'model.layers.0.self_attn.q_proj' is 4, but its matrices have",
    ),
    "an embedding": ({}, "model.embed_tokens.lora_embedding_A", "is neither a low-rank matrix"),
    "one matrix": ({}, "model.layers.1.self_attn.q_proj.lora_A.weight", "is neither a low-rank matrix"),
    "another model": ({}, "encoder.block.weight", "which models of the family Llama do not have"),
    "a layer too many": ({}, "model.layers.7.self_attn.q_proj", "which its base model does not have"),
    "no base": (
        {"base_model_name_or_path": "/nowhere/base"},
        "",
        "is for the base model '/nowhere/base', which",
    ),
    "a task": (
        {"task_type": "SEQ_2_SEQ"},
        "",
        "task_type is 'SEQ_2_SEQ', which qkv does not support; allowed: CAUSAL_LM",
    ),
    "a broken pattern": ({"rank_pattern": {"(": 3}}, "", "'(' in adapter_config.json is not a regular expression"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_applied_is_refused(case: str, tmp_path: Path) -> None:
    config, further, sentence = REFUSED[case]
    model = llama(tmp_path / "base")
    tensors = pair_of("model.layers.0.self_attn.q_proj", model, 2)
    if further.endswith("q_proj"):
        tensors |= {f"{further}.lora_A.weight": torch.ones(2, 12), f"{further}.lora_B.weight": torch.ones(12, 2)}
    elif further:
        tensors[further] = torch.ones(2, 12)
    folder = written(tmp_path / "adapter", config, tensors)
    with pytest.raises(UserError, match=re.escape(sentence)):
        load_published(folder)


def test_a_folder_without_the_matrices_and_a_matrix_of_another_shape(tmp_path: Path) -> None:
    llama(tmp_path / "base")
    path = "model.layers.0.self_attn.q_proj"
    wrong = {f"{path}.lora_A.weight": torch.ones(2, 13), f"{path}.lora_B.weight": torch.ones(12, 2)}
    folder = written(tmp_path / "adapter", {}, wrong)
    with pytest.raises(UserError, match=r"with the shape \[12, 13\], but in its base model it has \[12, 12\]"):
        load_published(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds an adapter_config\.json but no adapter_model\.safetensors"):
        load_published(folder)


def test_against_the_library(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = llama(tmp_path / "base")
    config = peft.LoraConfig(
        r=2,
        lora_alpha=6,
        target_modules=["q_proj", "k_proj", "down_proj"],
        rank_pattern={"k_proj": 3},
        alpha_pattern={"layers.1.mlp.down_proj": 9},
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    torch.manual_seed(4)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({**said, "base_model_name_or_path": "base"}))
    same(tmp_path / "adapter", adapted.eval())
