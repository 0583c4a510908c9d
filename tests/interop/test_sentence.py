"""Folders of sentence-transformers written here; vectors by transformers' own body and poolings as float64 loops."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tests.interop.word_pieces import word_pieces
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

import qkv
from qkv.cli.main import main
from qkv.interop.sentence import read_sentence
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "dogs",
    "ran",
    "far",
    "away",
    "from",
    "it",
    "query",
    ":",
    "passage",
    "##s",
    "##ing",
]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["the cat sat on the mat", "Dogs", "  a dog ran far away from the cat and the mat  ", "", "it sat"]
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def tokenizer() -> tokenizers.Tokenizer:
    core = word_pieces(SPECIALS, WORDS, "{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")
    core.add_special_tokens(SPECIALS)
    return core


def body(roberta: bool = False) -> Any:
    sizes = {
        "vocab_size": 30,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
    }
    torch.manual_seed(3)
    model = (
        RobertaModel(RobertaConfig(**sizes, max_position_embeddings=26, pad_token_id=0))
        if roberta
        else BertModel(BertConfig(**sizes, max_position_embeddings=25))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def write(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree), encoding="utf-8")


def sentence_folder(
    folder: Path,
    model: Any,
    modes: Sequence[str] = ("mean_tokens",),
    normalise: bool = True,
    inner: str = "",
    **said: Any,
) -> Path:
    """What sentence-transformers writes. ``said``: further keys of the pooling, the reader and the prompts."""
    model.save_pretrained(folder / inner)
    tokenizer().save(str(folder / inner / "tokenizer.json"))
    stem = "sentence_transformers.models."
    modules = [
        ("", inner, "Transformer"),
        ("1", "1_Pooling", "Pooling"),
        *([("2", "2_Normalize", "Normalize")] if normalise else []),
    ]
    write(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": path, "type": stem + kind} for i, (_, path, kind) in enumerate(modules)],
    )
    pooling = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 12, **pooling, **said.get("pooling", {})})
    write(
        folder / inner / "sentence_bert_config.json",
        {"max_seq_length": 20, "do_lower_case": False, **said.get("reader", {})},
    )
    write(
        folder / "config_sentence_transformers.json",
        {"__version__": {"sentence_transformers": "3.0.0"}, "similarity_fn_name": "cosine", **said.get("prompts", {})},
    )
    return folder


def rows(texts: Sequence[str], prompt: str = "", most: int = 20) -> list[list[int]]:
    """The ids of each text alone, as the template of the tokenizer frames it."""
    core = tokenizer()
    core.enable_truncation(most)
    return [core.encode((prompt + text).strip()).ids for text in texts]


def vectors(model: Any, row: Sequence[int]) -> list[list[float]]:
    with torch.no_grad():
        return model.double()(torch.tensor([row])).last_hidden_state[0].tolist()


def mean(
    x: list[list[float]], first: int = 0, power: float = 1.0, weigh: Callable[[int], float] = lambda i: 1.0
) -> list[float]:
    weights = [weigh(i) if i >= first else 0.0 for i in range(len(x))]
    return [sum(w * v[d] for w, v in zip(weights, x, strict=True)) / sum(weights) ** power for d in range(len(x[0]))]


BY_HAND: dict[str, Callable[[list[list[float]]], list[float]]] = {
    "cls_token": lambda x: x[0],
    "max_tokens": lambda x: [max(v[d] for v in x) for d in range(len(x[0]))],
    "mean_tokens": mean,
    "mean_sqrt_len_tokens": lambda x: mean(x, power=0.5),
    "weightedmean_tokens": lambda x: mean(x, weigh=lambda i: i + 1.0),
    "lasttoken": lambda x: x[-1],
}


def normed(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def close(found: np.ndarray, wanted: Sequence[Sequence[float]]) -> bool:
    truth = np.array(wanted)
    return found.shape == truth.shape and float(np.abs(found - truth).max()) < 3e-6 * float(np.abs(truth).max())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("normalise", [False, True], ids=["raw", "normed"])
def test_every_pooling_is_that_by_hand(mode: str, normalise: bool, tmp_path: Path) -> None:
    model = body()
    folder = sentence_folder(tmp_path, model, (mode,), normalise)
    found = qkv.embed(folder, TEXTS)
    by_hand = [BY_HAND[mode](vectors(model, row)) for row in rows(TEXTS)]
    assert found.dtype == np.float32
    assert close(found, [normed(v) for v in by_hand] if normalise else by_hand)


def test_several_poolings_stand_one_behind_the_other(tmp_path: Path) -> None:
    model = body()
    found = qkv.embed(sentence_folder(tmp_path, model, ("mean_tokens", "cls_token", "lasttoken"), False), TEXTS)
    by_hand = [[*BY_HAND["cls_token"](x), *mean(x), *x[-1]] for x in (vectors(model, row) for row in rows(TEXTS))]
    assert close(found, by_hand)


def with_modules(folder: Path, modules: Sequence[tuple[str, dict[str, Any], dict[str, torch.Tensor]]]) -> None:
    """Add modules (kind, config, tensors) behind those of the folder."""
    listed = json.loads((folder / "modules.json").read_text())
    for kind, config, tensors in modules:
        path = f"{len(listed)}_{kind}"
        listed.append({"idx": len(listed), "name": path, "path": path, "type": f"sentence_transformers.models.{kind}"})
        if config:
            write(folder / path / "config.json", config)
        if tensors:
            save_file(tensors, folder / path / "model.safetensors")
    write(folder / "modules.json", listed)


def dense(rows: int, columns: int, activation: str, bias: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    config = {"in_features": columns, "out_features": rows, "bias": bias}
    tensors = {"linear.weight": torch.randn(rows, columns), **({"linear.bias": torch.randn(rows)} if bias else {})}
    return {**config, "activation_function": f"torch.nn.modules.activation.{activation}"}, tensors


def test_dense_layers_behind_the_pooling_are_those_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = body()
    folder = sentence_folder(tmp_path, model, ("cls_token", "mean_tokens"), False)
    torch.manual_seed(4)
    (first, one), (second, two) = dense(7, 24, "Tanh"), dense(5, 7, "Identity", bias=False)
    norm = {"norm.weight": torch.randn(7), "norm.bias": torch.randn(7)}
    modules = [("Dense", first, one), ("Dropout", {"dropout": 0.1}, {}), ("LayerNorm", {"dimension": 7}, norm)]
    with_modules(folder, [*modules, ("Dense", second, two), ("Normalize", {}, {})])
    wanted = list[list[float]]()
    for row in rows(TEXTS):
        x = vectors(model, row)
        pooled = torch.tensor([*BY_HAND["cls_token"](x), *mean(x)], dtype=torch.float64)
        hidden = (one["linear.weight"].double() @ pooled + one["linear.bias"].double()).tanh()
        centred = (hidden - hidden.mean()) / ((hidden - hidden.mean()).square().mean() + 1e-5).sqrt()
        scaled = centred * norm["norm.weight"].double() + norm["norm.bias"].double()
        wanted.append(normed((two["linear.weight"].double() @ scaled).tolist()))
    assert close(qkv.embed(folder, TEXTS), wanted)
    assert close(qkv.embed(folder, TEXTS, dimensions=3), [normed(vector[:3]) for vector in wanted])
    assert main(["info", str(folder)]) == 0
    assert "cls + mean, Dense to 7, Dropout, LayerNorm, Dense to 5, scaled to length 1" in " ".join(
        capsys.readouterr().out.split()
    )


def test_other_weights_of_a_dense_layer_are_another_index(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body(), normalise=False)
    with_modules(folder, [("Dense", *dense(4, 12, "Identity"))])
    before = repr(read_sentence(folder))
    save_file(dense(4, 12, "Identity")[1], folder / "2_Dense" / "model.safetensors")
    assert repr(read_sentence(folder)) != before


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"in_features": 11}, "Dense reads vectors of size 11, but those before it have 12"),
        ({"out_features": 5}, "holds tensors of the shapes"),
        ({"activation_function": "torch.nn.Tahn"}, "no activation 'torch.nn.Tahn'; did you mean 'Tanh'"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_wrong_dense_layers_are_refused(tmp_path: Path, changed: dict[str, Any], sentence: str) -> None:
    folder = sentence_folder(tmp_path, body(), normalise=False)
    config, tensors = dense(4, 12, "Tanh")
    with_modules(folder, [("Dense", {**config, **changed}, tensors)])
    with pytest.raises(UserError, match=sentence):
        read_sentence(folder)


def test_a_body_of_roberta_in_a_folder_inside(tmp_path: Path) -> None:
    model = body(roberta=True)
    folder = sentence_folder(tmp_path, model, inner="0_Transformer", normalise=False)
    assert close(qkv.embed(folder, TEXTS), [mean(vectors(model, row)) for row in rows(TEXTS)])


def test_padding_and_the_size_of_batches_change_nothing(tmp_path: Path) -> None:
    run = qkv.load(sentence_folder(tmp_path, body(), ("weightedmean_tokens",)))
    together = qkv.embed(run, TEXTS, batch_size=2)
    alone = np.concatenate([qkv.embed(run, [text]) for text in TEXTS])
    assert float(np.abs(together - alone).max()) < 1e-6
    assert not np.array_equal(together[0], together[1])


PROMPTS = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}


def test_prompts_stand_before_every_text(tmp_path: Path) -> None:
    model = body()
    folder = sentence_folder(tmp_path, model, prompts=PROMPTS)
    wanted = [normed(mean(vectors(model, row))) for row in rows(TEXTS, "query: ")]
    assert close(qkv.embed(folder, TEXTS, prompt="query"), wanted)
    assert close(qkv.embed(folder, TEXTS, prefix="query: "), wanted)
    assert close(qkv.embed(folder, TEXTS), [normed(mean(vectors(model, row))) for row in rows(TEXTS)])
    with pytest.raises(UserError, match="no prompt 'qeury'; did you mean 'query'"):
        qkv.embed(folder, TEXTS, prompt="qeury")
    with pytest.raises(UserError, match="give either prompt"):
        qkv.embed(folder, TEXTS, prompt="query", prefix="x")


def test_the_default_prompt_and_one_that_is_not_pooled(tmp_path: Path) -> None:
    model = body()
    said = {"prompts": {**PROMPTS, "default_prompt_name": "passage"}, "pooling": {"include_prompt": False}}
    folder = sentence_folder(tmp_path, model, normalise=False, **said)
    # [CLS] passage : come before the text
    wanted = [mean(vectors(model, row), first=3) for row in rows(TEXTS, "passage: ")]
    assert close(qkv.embed(folder, TEXTS), wanted)


def test_long_texts_are_cut_and_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = body()
    folder = sentence_folder(tmp_path, model, reader={"max_seq_length": 7})
    text = "the cat sat on the mat and ran"
    wanted = [normed(mean(vectors(model, row))) for row in rows([text], most=7)]
    with pytest.warns(UserWarning, match="1 of 1 texts were truncated to 7 tokens; the longest has 10"):
        assert close(qkv.embed(folder, [text]), wanted)
    assert close(qkv.embed(folder, [text], max_length=10), [normed(mean(vectors(model, row))) for row in rows([text])])
    assert main(["embed", str(folder), text]) == 0
    out = capsys.readouterr()
    assert close(np.array([json.loads(out.out)["vector"]]), wanted)
    assert "note: 1 of 1 texts were truncated" in out.err


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = sentence_folder(tmp_path / "model", body(), prompts=PROMPTS), tmp_path / "vectors.npy"
    assert (
        main(
            [
                "embed",
                str(folder),
                "the cat",
                "it sat",
                "--prompt",
                "query",
                "--pooling",
                "max",
                "--no-normalise",
                "--out",
                str(file),
            ]
        )
        == 0
    )
    wanted = qkv.embed(folder, ["the cat", "it sat"], prompt="query", poolings=("max",), normalise=False)
    assert np.array_equal(np.load(file), wanted)
    assert f"2 vectors of 12 numbers in {file}" in capsys.readouterr().err
    assert main(["embed", str(folder), "x", "--out", "vectors.txt"]) == 2


def test_texts_are_put_in_lower_case_where_the_folder_says_so(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body(), reader={"do_lower_case": True})
    core = json.loads((folder / "tokenizer.json").read_text())
    core["normalizer"] = None
    write(folder / "tokenizer.json", core)
    assert np.array_equal(qkv.embed(folder, ["THE Cat"]), qkv.embed(folder, ["the cat"]))


def test_a_vocabulary_of_old_is_framed_too(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body())
    wanted = qkv.embed(folder, TEXTS)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
    assert np.array_equal(qkv.embed(folder, TEXTS), wanted)


def test_a_published_model_without_settings_takes_the_mean(tmp_path: Path) -> None:
    model = body()
    model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert close(qkv.embed(tmp_path, TEXTS), [mean(vectors(model, row)) for row in rows(TEXTS)])
    with pytest.raises(UserError, match="has no prompts"):
        qkv.embed(tmp_path, TEXTS, prompt="query")


def test_a_run_is_embedded_too(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("a stitch in time saves nine. " * 60)
    small = [
        "model.width=16",
        "model.context_length=16",
        "training.steps=2",
        "training.batch_size=2",
        "model.blocks.mixer.num_heads=2",
    ]
    run = qkv.train(tmp_path / "my.txt", tmp_path / "run", overrides=small)
    ids = [run.tokenizer.encode(text) for text in ("a stitch", "nine")]
    with torch.no_grad():
        wanted = [mean(run.model.features(torch.tensor([row]))[0][0].double().tolist()) for row in ids]
    assert close(qkv.embed(run, ["a stitch", "nine"]), wanted)
    assert close(qkv.embed(tmp_path / "run", ["a stitch", "nine"]), wanted)
    with pytest.raises(UserError, match="text 2 has no token"):
        qkv.embed(run, ["a", ""])


@pytest.mark.parametrize(
    ("file", "tree", "sentence"),
    [
        (
            "modules.json",
            [{"path": "", "type": "a.Transformer"}, {"path": "2_Dense", "type": "a.Dense"}],
            "lists Transformer, Dense",
        ),
        ("modules.json", [{"path": "../else", "type": "a.Transformer"}], "outside it"),
        ("modules.json", [{"path": "/etc", "type": "a.Transformer"}], "outside it"),
        ("modules.json", {"path": ""}, "a list of modules"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "switches every pooling off"),
        ("1_Pooling/config.json", {"pooling_mode": "meen"}, "no pooling 'meen'; did you mean 'mean'"),
        ("1_Pooling/config.json", {"pooling_mode_median": True}, "'pooling_mode_median' is unknown"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": 1}, "true or false"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "at least 1"),
        ("config_sentence_transformers.json", {"prompts": {"query": 7}}, "should be a text"),
        ("config_sentence_transformers.json", {"truncate_dim": 4}, "the size of the vectors"),
    ],
    ids=[
        "dense",
        "climbs",
        "absolute",
        "no-list",
        "no-pooling",
        "unknown-pooling",
        "unknown-key",
        "no-flag",
        "no-length",
        "no-prompt",
        "cut",
    ],
)
def test_what_is_not_known_is_refused(file: str, tree: Any, sentence: str, tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body())
    write(folder / file, tree)
    with pytest.raises(UserError, match=sentence):
        qkv.embed(folder, TEXTS)


def test_the_pooling_of_new_releases_is_read(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, body())
    write(
        folder / "1_Pooling" / "config.json",
        {"embedding_dimension": 12, "pooling_mode": "lasttoken", "include_prompt": True},
    )
    assert read_sentence(folder).poolings == ("lasttoken",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"texts": "one"}, "a list of texts"),
        ({"texts": ["a", 3]}, "text 2: 3 is not a string"),
        ({"texts": ["a"], "poolings": ("meen",)}, "did you mean 'mean'"),
        ({"texts": ["a"], "poolings": ()}, "no pooling is given"),
        ({"texts": ["a"], "pooling": "mean"}, "no option 'pooling'; did you mean 'poolings'"),
    ],
    ids=["one-text", "number", "pooling", "no-pooling", "option"],
)
def test_what_cannot_be_asked_for(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        qkv.embed(sentence_folder(tmp_path, body()), **given)


def test_no_text_gives_no_vector(tmp_path: Path) -> None:
    assert qkv.embed(sentence_folder(tmp_path, body()), []).shape == (0, 12)


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_info_and_search_use_what_the_folder_says(
    tmp_path: Path, inner: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    modes = ("cls_token", "mean_tokens")
    folder = sentence_folder(tmp_path / "model", body(), modes, inner=inner, prompts=prompts)
    assert main(["info", str(folder)]) == 0
    told = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert told["family"] == "BERT (BertModel)"
    loaded = qkv.load(folder / inner).model
    assert told["parameters"] == f"{sum(p.numel() for p in loaded.parameters()):,}"
    assert (told["context length"], told["tokenizer"]) == ("25", "23 ids")
    assert (told["pooling"], told["embedded length"]) == ("cls + mean, scaled to length 1", "at most 20 tokens")
    assert told["prompts"] == "query, passage"
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat on the mat\ndogs ran far away\na mat\n")
    texts = qkv.embed(folder, file.read_text().splitlines(), prompt="passage")
    query = qkv.embed(folder, ["a cat ran"], prompt="query")[0]
    hits = qkv.search(folder, file, "a cat ran", prompt="query", text_prompt="passage")[0]
    expected = sorted(((float(query @ text), i) for i, text in enumerate(texts, 1)), reverse=True)
    assert [hit.line for hit in hits] == [line for _, line in expected]
    assert [hit.score for hit in hits] == pytest.approx([score for score, _ in expected], abs=1e-6)
