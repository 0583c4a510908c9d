"""What qkv trained, opened by the transformers library: the same ids, the same logits, the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interop.folders import TEXT, tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import qkv
from qkv.cli.main import main
from qkv.interop.load import load_published
from qkv.interop.mapping.normal import normal
from qkv.interop.save import covering, published_tensors, save_published
from qkv.models.families.gpt import gpt
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.masks import Causal, Window
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, LayerNorm, NoPositions, NTKScaling, RMSNorm, Rope, Sinusoidal

RECIPE = {
    "name": "small",
    "data": {"source": "text.txt", "tokenizer": {"kind": "bpe", "vocab_size": 270}},
    "model": {
        "width": 24,
        "context_length": 48,
        "num_layers": 2,
        "blocks": [{"branches": ["attention(3)", "feed_forward"]}],
    },
    "training": {"steps": 30, "batch_size": 4, "validation": {"every": 30, "batches": 1}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "text.txt").write_text(TEXT * 40)
    data = {**RECIPE["data"], "source": str(folder / "text.txt")}  # type: ignore[dict-item]
    qkv.train(qkv.Recipe.parse({**RECIPE, "data": data}), folder / "run")
    return folder / "run"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_trained_run_writes_the_same_words_in_the_other_library(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "hf")]) == 0
    theirs, words = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval(),
        AutoTokenizer.from_pretrained(tmp_path / "hf"),
    )
    ours = qkv.load(run)
    ids = words("the quick brown", return_tensors="pt").input_ids
    assert ids[0].tolist() == ours.tokenizer.encode("the quick brown")
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, ours.model(ids)[0], atol=1e-5, rtol=1e-5)
    written = theirs.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    assert qkv.generate(ours, "the quick brown", max_new_tokens=20, temperature=0.0) == words.decode(written)
    assert qkv.generate(tmp_path / "hf", "the quick brown", max_new_tokens=20) == words.decode(written)


def test_the_export_says_what_it_is_and_overwrites_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--out", "half", "--dtype", "bf16"]) == 0
    assert "GPT-2 (GPT2LMHeadModel)" in capsys.readouterr().out
    assert json.loads(Path("half/config.json").read_text())["torch_dtype"] == "bfloat16"
    assert {p.dtype for p in load_published("half").model.parameters()} == {torch.bfloat16}
    for words, sentence in (
        (["export", str(run), "--out", "half"], "half is not empty"),
        (["export", str(run), "--out", "b", "--format", "ggml"], "there is no format 'ggml'"),
        (["export", str(run), "--out", "b", "--dtype", "int8"], "there is no precision 'int8'"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
    assert not Path("b").exists()
    assert main(["export", "half", "--out", "again"]) == 0
    first, second = (load_published(name).model.state_dict() for name in ("half", "again"))
    assert all(torch.equal(second[name], tensor) for name, tensor in first.items())


def test_the_function_exports_as_the_command_does(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = qkv.export(qkv.load(run), tmp_path / "half", dtype="bf16")
    assert main(["export", str(run), "--out", str(tmp_path / "again"), "--dtype", "bf16"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'again'}: {done.summary}\n", "")
    assert (done.place, done.notes) == (tmp_path / "half", ())
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    with pytest.raises(qkv.UserError, match="half is not empty; name another folder with out"):
        qkv.export(run, tmp_path / "half")
    with pytest.raises(qkv.UserError, match=r"^dtype bf16: an ONNX file is written in fp32"):
        qkv.export(run, tmp_path / "b", format="onnx", dtype="bf16")
    beside = qkv.export(run, check=False)
    assert beside.place == run.with_name("run-hf")
    assert "not compared with the transformers library, as asked" in beside.summary


def test_the_commands_say_what_a_folder_is_and_where_a_tensor_lives(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "hf")]) == 0
    assert main(["load", str(tmp_path / "hf")]) == 0
    said = capsys.readouterr().out
    assert "GPT-2 (GPT2LMHeadModel)" in said
    assert "28 of 28" in said
    for source in (str(run), str(tmp_path / "hf")):
        assert main(["where", "transformer.h.1.mlp.c_fc.weight", source]) == 0
        said = capsys.readouterr().out
        assert "blocks.1.branches.1.body.up.weight" in said
        assert "feed_forward.py:" in said
    assert main(["where", "transformer.h.1.mlp.c_fx.weight", str(run)]) == 2
    assert "did you mean 'transformer.h.1.mlp.c_fc.weight'" in capsys.readouterr().err


def like_llama(biased: bool = False, **attention: Any) -> Model:
    branches = (Attention(num_heads=2, bias=biased, **{"relative": Rope(), **attention}), GatedFeedForward(hidden=20))
    text = Text(vocab_size=40, positions=NoPositions())
    return Model(
        width=12, num_layers=2, frontend=text, blocks=(Block(branches=branches, norm=RMSNorm()),), norm=RMSNorm()
    )


COVERED = {
    "gpt": (gpt(12, 2, 2, 32, vocab_size=40), "GPT-2"),
    "gpt-listed": (gpt(12, 2, 2, 32, vocab_size=40).changed(num_layers=None, blocks=gpt(12, 2, 2, 32).layers), "GPT-2"),
    "llama": (like_llama(), "Llama"),
    "mistral": (like_llama(mask=Causal() & Window(size=4)), "Mistral"),
    "llama-in-other-words": (like_llama(output_bias=False, num_kv_heads=2, head_dim=6), "Llama"),
    "qwen2": (like_llama(biased=True, output_bias=False), "Qwen2"),
    "qwen3": (like_llama(qk_norm=RMSNorm()), "Qwen3"),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_spec_is_known_for_the_family_that_it_is(name: str) -> None:
    spec, family = COVERED[name]
    found = covering(spec)
    assert found is not None
    assert found.family.name == family


def block(**changed: Any) -> Model:
    plain = gpt(12, 2, 2, 32, vocab_size=40)
    return plain.changed(blocks=(plain.blocks[0].changed(**changed),))


NOT_COVERED = {
    "post-norm": block(order="post"),
    "another-norm-inside": block(norm=RMSNorm()),
    "no-bias": block(branches=(Attention(num_heads=2, bias=False), FeedForward(hidden=48, activation="gelu_tanh"))),
    "sinusoids": gpt(12, 2, 2, 32, vocab_size=40).changed(frontend=Text(vocab_size=40, positions=Sinusoidal())),
    "two-kinds-of-blocks": gpt(12, 2, 2, 32, vocab_size=40).changed(
        blocks=(gpt(12, 2, 2, 32).blocks[0], Block(branches=(Attention(num_heads=3), FeedForward())))
    ),
    "ntk": like_llama().changed(
        blocks=(
            Block(
                branches=(Attention(num_heads=2, relative=Rope(scaling=NTKScaling(factor=2.0))), GatedFeedForward()),
                norm=RMSNorm(),
            ),
        )
    ),
    "temperature": block(
        branches=(Attention(num_heads=2, temperature=2.0), FeedForward(hidden=48, activation="gelu_tanh"))
    ),
    "alibi-beside-learned": block(
        branches=(Attention(num_heads=2, relative=Alibi()), FeedForward(hidden=48, activation="gelu_tanh"))
    ),
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_a_spec_that_a_config_cannot_say_is_not_taken_for_one_that_it_can(name: str) -> None:
    found = covering(NOT_COVERED[name])
    assert found is None or found.family.name not in ("GPT-2", "Llama")


def test_no_family_that_turns_whole_heads_is_given_a_part_of_one() -> None:
    """Llama and its kin have no key for it that all readers follow; GLM has, and GPT-NeoX, for blocks of its own."""
    half = half_rotated()
    found = covering(half)
    assert found is not None
    assert (found.family.name, found.config["partial_rotary_factor"]) == ("GLM", 0.5)
    neox = half.changed(
        blocks=(
            Block(
                branches=(Attention(num_heads=3, relative=Rope(fraction=0.5)), FeedForward(hidden=20)), norm=LayerNorm()
            ),
        ),
        norm=LayerNorm(),
    )
    found = covering(neox)
    assert found is not None
    assert found.family.name == "GPT-NeoX"
    assert found.config["rotary_pct"] == 0.5


SIZES = st.fixed_dictionaries(
    {"heads": st.integers(1, 4), "layers": st.integers(1, 3), "width": st.integers(1, 4), "hidden": st.integers(1, 30)}
)


@settings(max_examples=10)
@given(SIZES, st.booleans(), st.sampled_from(["gelu_new", "relu", "gelu"]))
def test_any_gpt2_gives_the_same_logits(sizes: dict[str, int], tied: bool, activation: str) -> None:
    config = GPT2Config(
        vocab_size=31,
        n_positions=16,
        n_embd=2 * sizes["heads"] * sizes["width"],
        n_head=sizes["heads"],
        n_layer=sizes["layers"],
        n_inner=sizes["hidden"],
        activation_function=activation,
        tie_word_embeddings=tied,
    )
    _same_logits(GPT2LMHeadModel(config))


@settings(max_examples=10)
@given(SIZES, st.integers(1, 3), st.booleans(), st.booleans(), st.floats(100, 1e6))
def test_any_llama_gives_the_same_logits(
    sizes: dict[str, int], share: int, tied: bool, biased: bool, base: float
) -> None:
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=2 * sizes["heads"] * share,
        intermediate_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"] * share,
        num_key_value_heads=sizes["heads"],
        head_dim=2 * sizes["width"],
        max_position_embeddings=64,
        attention_bias=biased,
        mlp_bias=not biased,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    _same_logits(LlamaForCausalLM(config))


def _same_logits(theirs: Any) -> None:
    import tempfile

    theirs.eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_published(folder)
        found = covering(ours.spec, ours.family)
        assert found is not None
        assert published_tensors(ours.model, found.family, found.architecture).keys() <= theirs.state_dict().keys()
    ids = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(ids).logits
        assert float((ours.model(ids)[0] - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def test_normal_specs_are_equal_where_models_are() -> None:
    plain = gpt(12, 2, 2, 32, dropout=0.1)
    listed = plain.changed(num_layers=None, blocks=plain.layers)
    assert normal(plain) == normal(listed) == normal(gpt(12, 2, 2, 32))
    assert normal(plain) != normal(gpt(12, 2, 3, 32))


def test_saving_refuses_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(qkv.UserError, match="cannot be written"):
        save_published(tiny_model(), tmp_path / "file")


def half_rotated(**attention: Any) -> Model:
    return like_llama(relative=Rope(fraction=0.5), head_dim=8, **attention)


@pytest.fixture
def half_run(run: Path, tmp_path: Path) -> Path:
    """A short run of a model that turns half of each head, with scores that no family scales so."""
    recipe = qkv.Recipe.parse({**RECIPE, "data": {**RECIPE["data"], "source": str(run.parent / "text.txt")}})  # type: ignore[dict-item]
    model = half_rotated(temperature=2.0).changed(frontend=Text(positions=NoPositions()), context_length=48)
    qkv.train(recipe.changed(model=model), tmp_path / "half")
    return tmp_path / "half"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_export_is_compared_with_the_other_library(
    half_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(half_run), "--out", str(tmp_path / "own")]) == 0
    said = capsys.readouterr().out
    assert "modeling_qkv.py" in said
    assert "compared with the transformers library: differs by" in said
    # A name of a family whose readers turn whole heads, as a faulty table would give it.
    plain = covering(
        like_llama(head_dim=8).changed(frontend=Text(vocab_size=270, positions=NoPositions()), context_length=48)
    )
    monkeypatch.setattr("qkv.interop.save.covering", lambda spec, first="": plain)
    assert main(["export", str(half_run), "--out", str(tmp_path / "wrong")]) == 2
    assert "computes different logits from the export" in capsys.readouterr().err
    assert not list(tmp_path.glob("wrong*"))
    assert main(["export", str(half_run), "--out", str(tmp_path / "wrong"), "--no-check"]) == 0
    assert "not compared with the transformers library, as asked" in capsys.readouterr().out
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", str(half_run), "--out", str(tmp_path / "alone")]) == 0
    assert "not compared, because the transformers library is not installed" in capsys.readouterr().out
