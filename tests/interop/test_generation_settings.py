"""Settings of generation_config.json: texts of the transformers library, or a warning that names the setting."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import qkv
from qkv.interop.load import load_published
from qkv.runs.run import Run
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
PROMPT, LENGTH = "Once upon a time", 24
PADDING = 29
TEXT = "Once upon a time the cat sat on a mat, and it was glad. " * 40


def written(folder: Path, padding: int) -> Path:
    """A random Llama with ``padding`` more rows than its tokenizer has tokens."""
    torch.manual_seed(5)
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=290, special_tokens=["<end>"], initial_alphabet=alphabet)
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")
    config = LlamaConfig(
        vocab_size=len(theirs) + padding,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()  # of small weights, so that it repeats itself
    model.save_pretrained(folder)
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("llama"), 0)


def with_settings(folder: Path, **settings: Any) -> Run:
    settings = {"eos_token_id": 0, "pad_token_id": 0, **settings}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return qkv.load(folder)


def their_ids(folder: Path, ids: list[int], **options: Any) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    return model.generate(torch.tensor([ids]), max_new_tokens=LENGTH, **options)[0, len(ids) :].tolist()


@pytest.fixture(scope="module")
def free(folder: Path) -> list[int]:
    """The greedy text without any setting."""
    run = with_settings(folder)
    return qkv.generate(run, ids=run.tokenizer.encode(PROMPT), max_new_tokens=LENGTH, stop_token_ids=())


CASES: dict[str, Any] = {
    "nothing": lambda free: {},
    "two ends": lambda free: {"eos_token_id": [0, free[6]]},
    "n-grams of one": lambda free: {"no_repeat_ngram_size": 1},
    "n-grams of two": lambda free: {"no_repeat_ngram_size": 2},
    "suppressed": lambda free: {"suppress_tokens": [free[0], free[2]]},
    "suppressed at the begin": lambda free: {"begin_suppress_tokens": [free[0]]},
    "a bad word": lambda free: {"bad_words_ids": [[free[0]], [free[2], free[3]], [0]]},
    "beams": lambda free: {"num_beams": 3, "length_penalty": 0.5, "no_repeat_ngram_size": 2, "early_stopping": True},
    "beams with two ends": lambda free: {"num_beams": 3, "eos_token_id": [0, free[4]]},
    "beams and bad words": lambda free: {"num_beams": 2, "bad_words_ids": [[free[0]], [free[1], free[2]]]},
    "an end that waits": lambda free: {"eos_token_id": [0, free[1]], "min_new_tokens": 9},
    "beams whose end waits": lambda free: {"num_beams": 3, "eos_token_id": [0, free[1]], "min_new_tokens": 8},
    "repetitions": lambda free: {"repetition_penalty": 1.7, "suppress_tokens": [free[1]]},
    "the best one of min_p": lambda free: {"do_sample": True, "min_p": 0.9999},
    "the best one of top_k": lambda free: {"do_sample": True, "top_k": 1, "temperature": 3.0},
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_those_of_the_other_library(name: str, folder: Path, free: list[int]) -> None:
    run = with_settings(folder, **CASES[name](free))
    ids = run.tokenizer.encode(PROMPT)
    theirs = their_ids(folder, ids)
    found = qkv.generate(run, PROMPT, max_new_tokens=LENGTH)
    assert found == run.tokenizer.decode(theirs, skip_special=True)
    assert (name == "nothing") == (theirs == free) or name.startswith("the best")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"do_sample": True, "typical_p": 0.5}, "typical_p"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"min_length": 3}, "min_length"),
        ({"sequence_bias": [[[1], 2.0]]}, "sequence_bias"),
        ({"num_beams": 2, "do_sample": True}, "num_beams with do_sample"),
        ({"num_beams": 2, "early_stopping": "never"}, 'early_stopping "never"'),
    ],
)
def test_a_setting_that_qkv_has_not_is_named(settings: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.warns(UserWarning, match=f"qkv does not support {said}"):
        run = with_settings(folder, **settings)
    listed = dict(run.ignored)
    assert said.split()[0] in listed or said.startswith(("num_beams", "early"))


def test_settings_that_change_nothing_are_listed_without_a_warning(folder: Path) -> None:
    plain = {"typical_p": 0.5, "epsilon_cutoff": 0.1, "guidance_scale": 1, "max_length": 4096, "low_memory": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = with_settings(folder, **plain)
    assert plain.keys() <= dict(run.ignored).keys()
    assert "max_new_tokens" in dict(run.ignored)["max_length"]


def test_a_stated_number_of_new_tokens_is_the_default(folder: Path) -> None:
    run = with_settings(folder, max_new_tokens=5, stop_strings=["zzz"])
    assert (run.recipe.sample.max_new_tokens, run.recipe.sample.stop) == (5, ("zzz",))


@pytest.mark.parametrize("wrong", ["a", [0, "b"], [True]])
def test_an_end_token_that_is_no_id_is_refused(wrong: Any, folder: Path) -> None:
    with pytest.raises(UserError, match="eos_token_id holds"):
        with_settings(folder, eos_token_id=wrong)


@pytest.mark.parametrize("options", [{"temperature": 5.0}, {"temperature": 0.0}, {"num_beams": 3}], ids=str)
def test_rows_without_a_token_are_never_drawn(options: dict[str, Any], tmp_path: Path) -> None:
    run = qkv.load(written(tmp_path, PADDING))
    known = run.tokenizer.vocab_size
    assert run.model.vocab_size == known + PADDING
    head: Any = run.model.head
    with torch.no_grad():
        head.weight[known:] *= 20  # they would win each second time
    for seed in range(3):
        ids = qkv.generate(run, ids=[1, 2, 3], max_new_tokens=30, seed=seed, stop_token_ids=(), **options)
        assert len(ids) == 30
        assert max(ids) < known
        assert isinstance(qkv.generate(run, PROMPT, max_new_tokens=30, seed=seed, **options), str)
    everything = load_published(tmp_path).model
    assert everything.vocab_size == known + PADDING
    assert run.tokenizer.decode([1, known, 2, known + PADDING - 1]) == run.tokenizer.decode([1, 2])
