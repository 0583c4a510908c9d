"""GGUF files: as the converter of llama.cpp writes them, the same logits when read again, and in llama.cpp."""

from __future__ import annotations

import copy
import gc
import json
import re
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.interop.battery import every_case
from tests.interop.cases.case import Case
from tests.interop.folders import TEXT, tiny_model
from tests.interop.gguf_models import CONFIGS, VOCAB, model_of
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

import qkv
from qkv.cli.main import main
from qkv.generation.decode.sample import generate
from qkv.interop.gguf.config import factors_of
from qkv.interop.gguf.write import TYPES, save_gguf
from qkv.interop.load import PublishedModel, load_published
from qkv.interop.registry import families
from qkv.interop.save import save_published
from qkv.spec.tokenizers import BPE
from qkv.system.errors import UserError
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

gguf = pytest.importorskip("gguf")

EXPECTED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "gguf_expected.json").read_text())
"""What llama.cpp's own converter wrote for the models of ``CONFIGS``: metadata, and of each tensor type, shape and a
sum with weights cos(0.37 i).
"""
IDS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(5))
GREEDY = 24


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PublishedModel]:
    """The models of ``CONFIGS``, opened by qkv."""
    found = {}
    for name in CONFIGS:
        folder = tmp_path_factory.mktemp(name)
        model_of(name).save_pretrained(folder)
        found[name] = load_published(folder)
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS)[0]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def contents(file: Path) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Metadata and tensors of a file in the form of ``EXPECTED``, by the library gguf."""
    found = gguf.GGUFReader(file)
    values = {key: field.contents() for key, field in found.fields.items()}
    values = {key: float(str(np.float32(v))) if isinstance(v, float) else v for key, v in values.items()}
    tensors = {}
    for each in found.tensors:
        data = np.array(each.data, np.float64).reshape(each.shape[::-1])
        total = float((data.ravel() * np.cos(np.arange(data.size) * 0.37)).sum())
        tensors[each.name] = [each.tensor_type.name, list(data.shape), total]
    return values, tensors


@pytest.mark.parametrize("name", CONFIGS)
def test_metadata_and_tensors_are_those_that_the_converter_of_llama_cpp_writes(
    name: str, published: dict[str, PublishedModel], tmp_path: Path
) -> None:
    model, wanted = published[name], EXPECTED[name]
    save_gguf(model.model, tmp_path / "a.gguf", family=model.family)
    values, tensors = contents(tmp_path / "a.gguf")
    assert {key: values.get(key) for key in wanted["metadata"]} == wanted["metadata"]
    kinds, wanted_kinds = ({key: each[:2] for key, each in some.items()} for some in (tensors, wanted["tensors"]))
    assert kinds == wanted_kinds
    for key, each in wanted["tensors"].items():
        assert tensors[key][2] == pytest.approx(each[2], abs=2e-4), key


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_read_again_gives_the_logits_of_the_transformers_library(
    name: str, published: dict[str, PublishedModel], tmp_path: Path
) -> None:
    model = published[name]
    theirs = model_of(name)
    with torch.no_grad():
        wanted = theirs(IDS).logits
    bounds = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 0.1, "q8_0": 0.3, "q4_0": 1.2}
    for dtype, bound in bounds.items():
        file = tmp_path / f"{dtype}.gguf"
        assert save_gguf(model.model, file, dtype=dtype, family=model.family).family == model.family
        again = load_published(file, "fp32")
        # Not bit for bit: weights of the file lie otherwise in memory, so that another linear layer may be chosen.
        assert dtype != "fp32" or relative(logits(again.model), logits(model.model)) <= 1e-5
        assert relative(logits(again.model), wanted) <= bound, dtype
        copied = load_published(file, "fp32", copy=True).model.state_dict()
        assert all(torch.equal(copied[key], value) for key, value in again.model.state_dict().items())


def test_quantised_matrices_hold_the_values_that_the_formats_define(tmp_path: Path) -> None:
    """32 weights share a scale in fp16: in Q8_0 d = max |w| / 127, and a weight is d q with -127 ≤ q ≤ 127; in Q4_0
    d = w / -8 for the w of largest size, and -8 ≤ q ≤ 7.
    """
    model = qkv.build(qkv.Model.parse(SQUARE)).eval()
    name = "blocks.0.branches.1.body.up.weight"
    plain = model.get_parameter(name).detach().reshape(-1, 32).numpy()
    largest = plain[np.arange(len(plain)), np.abs(plain).argmax(1)]
    for dtype, scales, lowest, highest in (
        ("q8_0", np.abs(largest) / 127, -127, 127),
        ("q4_0", largest / -8, -8, 7),
    ):
        save_gguf(model, tmp_path / f"{dtype}.gguf", dtype=dtype)
        read = load_published(tmp_path / f"{dtype}.gguf").model.get_parameter(name).detach().reshape(-1, 32).numpy()
        scale = scales.astype(np.float16).astype(np.float32)[:, None]
        wanted = scale * np.clip(np.round(plain / scales[:, None]), lowest, highest)
        steps = np.abs(read - wanted) / np.abs(scale)
        assert (steps > 0.01).mean() < 0.02  # a weight between two levels may go to either
        assert steps.max() < 1.01


SQUARE = {
    "width": 64,
    "context_length": 32,
    "num_layers": 2,
    "frontend": {"kind": "text", "vocab_size": 50},
    "blocks": [{"branches": ["attention(4)", "feed_forward(activation=gelu_tanh)"]}],
}


def refused(case: Case) -> bool:
    """True for cases of other heads, activations, windows, scales or layers than those that llama.cpp has built in."""
    return case.name in {
        "gpt-oss",
        "gpt2-five-heads",
        "gpt2-untied",
        "gpt2-scaled-by-layer",
        "llama-dynamic",
        "llama-yarn-tied",
        "mistral-window",
        "qwen2-later-window",
        "qwen2-first-window",
        "qwen3-biased",
        "gemma-biased-untied",
        "gemma2",
        "gemma2-uncapped",
        "gemma3",
        "gemma3-scaled",
        "gemma3-global-capped",
        "neox-in-turn",
        "neox-no-bias-tied",
        "neox-scaled",
        "mixtral",
        "qwen2-moe",
        "qwen3-moe-sums",
        "olmoe",
    }


@pytest.mark.parametrize(
    "case",
    [case for case in every_case() if "ForCausalLM" in case.model.__name__ or case.model is GPT2LMHeadModel],
    ids=str,
)
def test_every_decoder_is_written_exactly_or_refused_with_one_sentence(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = copy.deepcopy(case.config)
    config.dtype = torch.float32  # saving a model leaves the name of its dtype there
    theirs = case.model(config).eval()
    theirs.save_pretrained(tmp_path / "hf")
    ours = load_published(tmp_path / "hf")
    known = ours.family in {family.name for family in families() if family.gguf}
    if not known or refused(case):
        with pytest.raises(UserError) as raised:
            save_gguf(ours.model, tmp_path / "a.gguf", family=ours.family)
        assert re.search("llama.cpp has no|qkv writes GGUF for|does not store", str(raised.value))
        assert not (tmp_path / "a.gguf").exists()
        return
    save_gguf(ours.model, tmp_path / "a.gguf", family=ours.family)
    again = load_published(tmp_path / "a.gguf")
    ids = IDS % case.config.vocab_size
    with torch.no_grad():
        assert relative(again.model(ids)[0], theirs(ids).logits) < 1e-5


def by_hand(file: Path, theirs: GPT2LMHeadModel, drop: str = "", **changed: Any) -> Path:
    """GPT-2 in GGUF by the names that llama.cpp documents, without qkv. ``drop``: tensor left out."""
    config, state = theirs.config, theirs.state_dict()
    writer = gguf.GGUFWriter(file, changed.pop("architecture", "gpt2"))
    values = {
        "context_length": config.n_positions,
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": 4 * config.n_embd,
        "attention.head_count": config.n_head,
        **changed,
    }
    for key, value in values.items():
        writer.add_uint32(f"gpt2.{key}", value)
    writer.add_float32("gpt2.attention.layer_norm_epsilon", config.layer_norm_epsilon)
    tensors = {"token_embd.weight": "wte.weight", "position_embd.weight": "wpe.weight"}
    tensors |= {f"output_norm.{leaf}": f"ln_f.{leaf}" for leaf in ("weight", "bias")}
    parts = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2"}
    parts |= {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    for layer in range(config.n_layer):
        for mine, his in parts.items():
            tensors |= {f"blk.{layer}.{mine}.{leaf}": f"h.{layer}.{his}.{leaf}" for leaf in ("weight", "bias")}
    for mine, his in tensors.items():
        value = state[f"transformer.{his}"].numpy()
        turned = value.T if ".c_" in his and his.endswith("weight") else value
        if mine != drop:
            writer.add_tensor(mine, np.ascontiguousarray(turned))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return file


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=48)).eval()


def test_a_file_that_qkv_did_not_write_gives_the_logits_of_its_weights(gpt2: GPT2LMHeadModel, tmp_path: Path) -> None:
    found = load_published(by_hand(tmp_path / "hand.gguf", gpt2))
    with torch.no_grad():
        assert torch.allclose(logits(found.model), gpt2(IDS).logits, atol=1e-5)
    assert (found.family, found.tokenizer, found.spec.context_length) == ("GPT-2", None, 48)
    assert qkv.generate(tmp_path / "hand.gguf", ids=[1, 2, 3], max_new_tokens=4) == greedy(gpt2, [1, 2, 3], 4)


def greedy(theirs: Any, ids: list[int], new: int) -> list[int]:
    found = list(ids)
    with torch.no_grad():
        for _ in range(new):
            found.append(int(theirs(torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(ids) :]


def test_bad_files_are_refused_with_one_sentence(
    gpt2: GPT2LMHeadModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = by_hand(tmp_path / "whole.gguf", gpt2).read_bytes()
    bad = {
        "empty": (b"", "is cut short or not a GGUF file"),
        "text": (b"hello, world" * 9, "is cut short or not a GGUF file"),
        "header": (whole[:300], "is cut short or not a GGUF file"),
        "tensors": (whole[: len(whole) // 2], "is cut short"),
        "last": (whole[:-8000], "is cut short"),
        "version": (whole[:4] + b"\x09" + whole[5:], "is cut short or not a GGUF file"),
    }
    for name, (content, said) in bad.items():
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        assert main(["load", str(file)]) == 2
        error = capsys.readouterr().err
        assert said in error, name
        assert "Traceback" not in error
    made = {
        "unknown": (
            {"architecture": "gpt3"},
            "the architecture is 'gpt3', which qkv does not support; did you mean 'gpt2'",
        ),
        "missing": ({"drop": "blk.1.ffn_up.bias"}, "lacks the tensor 'blk.1.ffn_up.bias'"),
        "missing norm": ({"drop": "blk.1.attn_norm.weight"}, "lacks the tensor 'blk.1.attn_norm.weight'"),
        "table": ({"drop": "token_embd.weight"}, "lacks the tensor 'token_embd.weight'"),
        "layers": ({"block_count": 10**9}, "gpt2.block_count is 1,000,000,000, but the file has only"),
        "sizes": ({"feed_forward_length": 7}, "'blk.0.ffn_up.weight' has the shape"),
    }
    for name, (changed, said) in made.items():
        file = by_hand(tmp_path / f"{name}.gguf", gpt2, **changed)
        with pytest.raises(UserError) as raised:
            load_published(file)
        assert said in str(raised.value), name


def test_export_writes_a_file_that_generates_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = train(BPE(vocab_size=270), [TEXT * 9])
    spec = qkv.Model.parse({**SQUARE, "frontend": {"kind": "text", "vocab_size": 270}})
    torch.manual_seed(0)
    save_published(qkv.build(spec).eval(), "run", tokenizer)
    assert main(["export", "run", "--format", "gguf", "--no-check"]) == 0
    assert "run.gguf: GPT-2, F32" in capsys.readouterr().out
    wanted = qkv.generate("run", "the quick", max_new_tokens=12, temperature=0.0)
    assert qkv.generate("run.gguf", "the quick", max_new_tokens=12) == wanted
    assert main(["generate", "run.gguf", "the quick", "--max-new-tokens", "12"]) == 0
    assert str(wanted) in capsys.readouterr().out
    for words, said in (
        (["info", "run.gguf"], "GPT-2 (GPT2LMHeadModel)"),
        (["load", "run.gguf"], "tensors used"),
        (["where", "transformer.h.1.mlp.c_fc.weight", "run.gguf"], "blocks.1.branches.1.body.up.weight"),
        (["export", "run.gguf", "--out", "hf", "--no-check"], "hf: GPT-2"),
    ):
        assert main(words) == 0
        assert said in capsys.readouterr().out
    assert qkv.generate("hf", "the quick", max_new_tokens=12) == wanted
    before = Path("run.gguf").read_bytes()
    for words, said in (
        (["chat", "none.gguf", "hi"], "there is no file 'none.gguf'"),
        (["export", "run", "--format", "gguf"], "run.gguf exists"),
        (["export", "run", "--format", "gguf", "--out", "b.gguf", "--dtype", "q5"], "there is no precision 'q5'"),
        (["export", "run", "--format", "gguf", "--out", "no/b.gguf"], "there is no folder 'no'"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    assert Path("run.gguf").read_bytes() == before
    assert not list(Path().glob("*partial*"))


def test_models_that_llama_cpp_cannot_run_are_refused(tmp_path: Path) -> None:
    neox = next(case for case in every_case() if case.name.startswith("neox") and case.config.hidden_act == "gelu_new")
    neox.model(neox.config).save_pretrained(tmp_path / "neox")
    linear = qkv.Model.parse({**SQUARE, "blocks": [{"branches": ["linear_attention(4)", "feed_forward"]}]})
    case = next(case for case in every_case() if case.name == "gpt2-classes")
    case.model(case.config).save_pretrained(tmp_path / "hf")
    for model, said in (
        (qkv.build(linear), "llama.cpp does not support this model"),
        (
            load_published(tmp_path / "neox").model,
            "a GGUF file of the architecture 'gptneox' does not store hidden_act: it always means 'gelu', "
            "and this model has 'gelu_new'; export it with --format hf, or train a model whose activation is 'gelu'",
        ),
        (load_published(tmp_path / "hf").model, "llama.cpp generates text, and this GPT-2 has a head of the kind"),
    ):
        with pytest.raises(UserError, match=said):
            save_gguf(model, tmp_path / "a.gguf")
    broken = tiny_model()
    with torch.no_grad():
        broken.get_parameter("blocks.0.branches.1.body.up.weight")[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"blk\.0\.ffn_up\.weight has weights that are not finite"):
        save_gguf(broken, tmp_path / "a.gguf")
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "neox"}


def test_rows_that_are_no_multiple_of_a_block_are_kept_in_fp16(tmp_path: Path) -> None:
    model = tiny_model()
    written = save_gguf(model, tmp_path / "a.gguf", dtype="q8_0")
    assert any("not a multiple of 32" in note for note in written.notes)
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    assert kinds["blk.0.attn_qkv.weight"] == "F16"
    assert kinds["position_embd.weight"] == kinds["blk.0.attn_norm.weight"] == "F32"
    found = load_published(tmp_path / "a.gguf", "fp32").model
    assert torch.allclose(found.head.weight, model.head.weight, atol=1e-3)


def test_factors_of_llama_3_are_those_of_the_transformers_library() -> None:
    kind, config = CONFIGS["llama3"]
    rotary = kind(config).model.rotary_emb
    plain = 50000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    values = {"rope_theta": 50000.0, "head_dim": 16, "rope_scaling": dict(config.rope_parameters)}
    found = factors_of(values)
    assert found is not None
    assert np.allclose(found, (plain / rotary.inv_freq.double()).numpy(), rtol=1e-5)
    assert isinstance(kind(config), LlamaForCausalLM)


@pytest.mark.parametrize("name", CONFIGS)
def test_llama_cpp_writes_the_same_tokens(name: str, published: dict[str, PublishedModel], tmp_path: Path) -> None:
    """With llama-cpp-python only: equal logits in fp32, and equal greedy tokens."""
    pytest.importorskip("llama_cpp")
    from qkv.interop.gguf.check import compare_gguf
    from qkv.interop.gguf.peer import LlamaCpp

    model = published[name]
    for dtype in ("fp32", "q8_0", "q4_0"):
        file = tmp_path / f"{dtype}.gguf"
        save_gguf(model.model, file, dtype=dtype, family=model.family)
        assert "compared with llama.cpp" in compare_gguf(file, TYPES[dtype])
    prompts = IDS[:, :16].tolist()
    theirs = LlamaCpp(tmp_path / "fp32.gguf", context=64, batch=2, exact=True)
    try:
        written = theirs.generate(prompts, GREEDY)
    finally:
        theirs.close()
    settings = qkv.Generation(max_new_tokens=GREEDY, temperature=0.0)
    assert generate(model.model, prompts, settings) == written


def test_llama_cpp_works_after_a_model_of_it_is_freed(published: dict[str, PublishedModel], tmp_path: Path) -> None:
    """With llama-cpp-python only. It goes on to call the function that it was given to print with."""
    llama_cpp: Any = pytest.importorskip("llama_cpp")
    from qkv.interop.gguf import peer as gguf_peer

    model, file = next(iter(published.values())), tmp_path / "a.gguf"
    save_gguf(model.model, file, dtype="fp32", family=model.family)
    with patch.object(llama_cpp, "llama_log_set", wraps=llama_cpp.llama_log_set) as given:
        gguf_peer._silence.cache_clear()
        peer = gguf_peer.LlamaCpp(file)
        printing = weakref.ref(given.call_args.args[0])
        given.reset_mock()
    peer.close()
    del peer
    gc.collect()
    assert printing() is not None
    gguf_peer.LlamaCpp(file).close()


def test_a_file_has_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    tokenizer = train(BPE(vocab_size=280), [TEXT * 9])
    model = qkv.build(qkv.Model.parse({**SQUARE, "frontend": {"kind": "text", "vocab_size": 300}})).eval()
    save_gguf(model, tmp_path / "a.gguf", tokenizer)
    found = Tokenizer.load(tmp_path / "a.gguf")
    assert found.to_json() == tokenizer.to_json()
    tokens = gguf.GGUFReader(tmp_path / "a.gguf").fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == 300
