"""``qkv generate``: what is printed, and the sentence that each bad input gets."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.conftest import Call

from qkv.api import functions as library
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe


def test_it_prints_the_prompt_and_goes_on(qkv: Call, run: Path) -> None:
    said = qkv("generate", run, "the quick", "--max-new-tokens", 5, "--seed", 1)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("the quick")
    assert said.out.endswith("\n")
    assert len(said.out) == len("the quick") + 5 + 1
    assert qkv("generate", run, "the quick", "--max-new-tokens", 5, "--seed", 1).out == said.out
    assert qkv("generate", run, "the quick", "--max-new-tokens", 5, "--seed", 1, "--no-stream").out == said.out


def test_temperature_0_takes_the_most_probable(qkv: Call, run: Path) -> None:
    texts = {qkv("generate", run, "the ", "--temperature", 0, "--max-new-tokens", 8).out for _ in range(3)}
    assert len(texts) == 1


def test_without_a_seed_each_text_is_another(qkv: Call, run: Path) -> None:
    assert len({qkv("generate", run, "the ", "--temperature", 1.5, "--max-new-tokens", 30).out for _ in range(3)}) > 1


def test_0_new_tokens_print_the_prompt_alone(qkv: Call, run: Path) -> None:
    assert qkv("generate", run, "the dog", "--max-new-tokens", 0) == (0, "the dog\n", "")


def test_several_samples(qkv: Call, run: Path) -> None:
    said = qkv("generate", run, "the ", "--num-samples", 3, "--max-new-tokens", 4, "--seed", 7)
    assert said.code == 0
    rows = said.out.splitlines()
    assert [row for row in rows if row.startswith("---")] == ["--- 1 of 3", "--- 2 of 3", "--- 3 of 3"]
    assert said.out.count("the ") >= 3


def test_what_is_not_given_comes_from_the_recipe(qkv: Call, run: Path) -> None:
    sample = read_recipe(run).sample
    given = ["--max-new-tokens", sample.max_new_tokens, "--temperature", sample.temperature]
    assert qkv("generate", run, "the ", "--seed", 1).out == qkv("generate", run, "the ", "--seed", 1, *given).out
    assert (
        qkv("generate", run, "the ", "--seed", 1).out
        != qkv("generate", run, "the ", "--seed", 1, "--temperature", 3).out
    )


def test_a_stop_string_ends_the_text(qkv: Call, run: Path) -> None:
    plain = qkv("generate", run, "the ", "--seed", 1, "--max-new-tokens", 12).out.removesuffix("\n")
    stop = plain[8:10]
    stopped = qkv("generate", run, "the ", "--seed", 1, "--max-new-tokens", 12, "--stop", stop).out.removesuffix("\n")
    assert stopped == "the " + plain[4:].partition(stop)[0]


@pytest.mark.parametrize("given", ["the dog\n", "the dog"])
def test_the_prompt_is_read_from_standard_input(
    qkv: Call, run: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    assert qkv("generate", run, "-", "--max-new-tokens", 0).out == "the dog\n"


def test_standard_input_that_is_not_utf_8(qkv: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the \xff")))
    said = qkv("generate", run, "-")
    assert (said.code, said.out) == (2, "")
    assert "the prompt on standard input is not UTF-8: byte 0xff at position 4" in said.err


def test_a_prompt_past_the_context_slides_with_a_note(qkv: Call, run: Path) -> None:
    prompt = "the quick brown fox "
    said = qkv("generate", run, prompt, "--max-new-tokens", 3, "--seed", 1)
    assert said.code == 0
    assert said.out.startswith(prompt)
    assert said.err == "note: the prompt has 20 tokens and the context length is 16; the first 8 are ignored\n"


@pytest.mark.parametrize(("most", "told"), [(13, False), (14, True)])
def test_what_is_written_past_the_trained_length_of_rotary_positions_is_named(
    qkv: Call, tmp_path: Path, most: int, told: bool
) -> None:
    branches = ["attention(2, relative=rope)", "feed_forward(8)"]
    changes = {"frontend": {"kind": "text", "positions": "none"}, "blocks": [{"branches": branches}]}
    (tmp_path / "text.txt").write_text("the quick brown fox " * 40)
    recipe = {
        "data": {"source": str(tmp_path / "text.txt"), "tokenizer": "characters"},
        "model": {"width": 8, "context_length": 16, **changes},
        "training": {"steps": 1, "batch_size": 2},
    }
    library.train(Recipe.parse(recipe), tmp_path / "run")
    said = qkv("generate", tmp_path / "run", "the ", "--max-new-tokens", most)
    note = (
        "note: prompt and new tokens may reach 18 tokens, but the model was trained on 16; "
        "its RoPE accepts more, but the text gets worse beyond 16"
    )
    assert said.code == 0
    assert said.err.count(note) == told == bool(said.err)


def test_beams_give_the_most_probable_text(qkv: Call, run: Path) -> None:
    """The recipe's temperature does not stand in the way, and nothing is drawn."""
    said = {qkv("generate", run, "the ", "--num-beams", 4, "--max-new-tokens", 6) for _ in range(2)}
    assert len(said) == 1
    (one,) = said
    assert (one.code, one.err) == (0, "")
    several = qkv("generate", run, "the ", "--num-beams", 4, "--num-return", 3, "--max-new-tokens", 6)
    titles = [row for row in several.out.splitlines() if row.startswith("---")]
    assert [title.partition(",")[0] for title in titles] == ["--- 1 of 3", "--- 2 of 3", "--- 3 of 3"]
    scores = [float(title.split()[5].rstrip(",")) for title in titles]
    assert scores == sorted(scores, reverse=True)
    assert [float(title.split()[-1]) for title in titles] == pytest.approx([6 * score for score in scores], abs=1e-3)
    assert several.out.startswith(f"{titles[0]}\n{one.out}{titles[1]}\n")


def test_beams_past_the_context_slide_with_a_note(qkv: Call, run: Path) -> None:
    said = qkv("generate", run, "the quick brown fox ", "--num-beams", 2, "--max-new-tokens", 3)
    assert said.code == 0
    assert said.err == "note: the prompt has 20 tokens and the context length is 16; the first 8 are ignored\n"


def test_given_texts_are_rated(qkv: Call, run: Path) -> None:
    said = qkv("generate", run, "the qui", "--choose", "ck", "--choose", " zzz")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0].split() == ["option", "probability", "log", "p", "tokens", "score", "by", "sum"]
    rows = [row.rsplit(maxsplit=4) for row in said.out.splitlines()[1:]]
    assert [(row[0], row[3]) for row in rows] == [("'ck'", "2"), ("' zzz'", "4")]
    assert sum(float(row[1].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.11)
    assert all(row[2] == row[4] for row in rows)
    mean = (
        qkv("generate", run, "the qui", "--choose", "ck", "--choose", " zzz", "--choose-by", "token")
        .out.splitlines()[2]
        .rsplit(maxsplit=4)
    )
    assert float(mean[4]) == pytest.approx(float(rows[1][2]) / 4, abs=1e-4)


def test_a_prompt_that_is_cut_to_rate_texts_is_named(qkv: Call, run: Path) -> None:
    said = qkv("generate", run, "the quick brown fox ", "--choose", "jumps")
    assert said.code == 0
    assert (
        said.err == "note: the prompt has 20 tokens, the longest option 5, and the model has 16 positions; "
        "the first 8 prompt tokens are dropped\n"
    )


REFUSED = {
    "beams and a temperature": (
        ["the", "--num-beams", "2", "--temperature", "0.5"],
        "--temperature: 0.5 given, but beam search (num_beams 2)",
    ),
    "more texts than beams": (
        ["the", "--num-beams", "2", "--num-return", "3"],
        "--num-return: 3 given, but beam search returns at most num_beams = 2",
    ),
    "several texts of one beam": (
        ["the", "--num-return", "3"],
        "--num-return: 3 given, but beam search returns at most num_beams = 1",
    ),
    "samples of a search": (
        ["the", "--num-beams", "2", "--num-samples", "2"],
        "--num-samples: beam search is deterministic",
    ),
    "a rank of one beam": (
        ["the", "--length-penalty", "2"],
        "--length-penalty: it needs beam search; set --num-beams above 1",
    ),
    "choosing and writing": (
        ["the", "--choose", "a", "--top-k", "2"],
        "--top-k: --choose scores given texts and generates none",
    ),
    "choosing and samples": (
        ["the", "--choose", "a", "--num-samples", "2"],
        "--num-samples: --choose scores given texts",
    ),
    "a measure of nothing": (
        ["the", "--choose-by", "sum"],
        "--choose-by: it sets how --choose texts are scored, and there are none",
    ),
    "an unknown measure": (
        ["the", "--choose", "a", "--choose-by", "tokens"],
        "--choose-by: 'tokens' given; did you mean 'token'?",
    ),
    "an option given twice": (["the", "--choose", "a", "--choose", "a"], "the option 'a' is given twice"),
    "unseen characters": (["The Ω"], "the prompt has 'T', 'Ω', which is not in the tokenizer's vocabulary"),
    "past the context, refused": (
        ["the quick brown fox ", "--overflow", "refuse"],
        "but the model has 16 positions; ask for fewer",
    ),
    "a negative temperature": (
        ["the", "--temperature", "-0.5"],
        "--temperature: -0.5 given, but it should be greater than or equal to 0",
    ),
    "a temperature of NaN": (
        ["the", "--temperature", "nan"],
        "--temperature: nan given, but it should be a finite number",
    ),
    "fewer than no tokens": (
        ["the", "--max-new-tokens", "-1"],
        "--max-new-tokens: -1 given, but it should be greater than or equal to 0",
    ),
    "no top tokens": (["the", "--top-k", "0"], "--top-k: 0 given, but it should be greater than 0"),
    "more than all probability": (
        ["the", "--top-p", "1.5"],
        "--top-p: 1.5 given, but it should be less than or equal to 1",
    ),
    "an unknown overflow": (
        ["the", "--overflow", "wrap"],
        "--overflow: 'wrap' given, but it should be 'slide' or 'refuse'",
    ),
    "an empty stop string": (["the", "--stop", ""], "--stop: "),
    "too many samples": (
        ["the", "--num-samples", "1" + "0" * 30],
        "'--num-samples': Input should be less than or equal to 10000",
    ),
    "no sample": (["the", "--num-samples", "0"], "invalid value for '--num-samples'"),
}


@pytest.mark.parametrize(("args", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_options_and_prompts_that_are_refused(qkv: Call, run: Path, args: list[str], sentence: str) -> None:
    said = qkv("generate", run, *args)
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_what_is_no_run_folder(qkv: Call, run: Path, tmp_path: Path) -> None:
    assert f"there is no run folder {run}s; did you mean {str(run)!r}?" in qkv("generate", f"{run}s").err
    assert f"{tmp_path} is not a run folder; it holds no spec.yaml" in qkv("generate", tmp_path).err
    assert "is a file, not a run folder; 'qkv train" in qkv("generate", run / "spec.yaml").err
    assert "there is no run folder" in qkv("generate", tmp_path / "a" / "b").err
    assert qkv("generate", tmp_path / "a").code == 2


def _other_shape(run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    name = next(iter(tensors))
    save_file({**tensors, name: torch.zeros(3, 5)}, run / "model.safetensors")


def _missing_tensor(run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    tensors.pop(next(iter(tensors)))
    save_file(tensors, run / "model.safetensors")


def _edited(run: Path) -> None:
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (print, ("the pickle was loaded",))


def _pickle(run: Path) -> None:
    (run / "model.safetensors").write_bytes(pickle.dumps(_Bomb()))


def _torch_file(run: Path) -> None:
    torch.save({"a": torch.zeros(2)}, run / "model.safetensors")


def _cut(run: Path) -> None:
    content = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(content[: len(content) // 2])


def _no_weights(run: Path) -> None:
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "resume")


def _no_tokenizer(run: Path) -> None:
    (run / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))


def _bad_spec(run: Path) -> None:
    (run / "spec.yaml").write_text((run / "spec.yaml").read_text().replace("width: 16", "width: wide"))


DAMAGED = {
    "a tensor of another shape": (_other_shape, "has the shape [3, 5] in"),
    "a missing tensor": (_missing_tensor, "lacks the tensor"),
    "an edited checkpoint": (_edited, "was changed after it was written"),
    "a pickle": (_pickle, "is a pickle under the name of a safetensors file; it could run code, so it was not loaded"),
    "a file of torch.save": (_torch_file, "is a pickle under the name of a safetensors file"),
    "a truncated checkpoint": (_cut, "is truncated or not a safetensors file"),
    "no weights": (_no_weights, "has no weights: "),
    "a damaged tokenizer": (_no_tokenizer, "tokenizer.json was changed after the weights were trained"),
    "an edited spec": (_bad_spec, ": model.width: 'wide' given, but it should be a valid integer"),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_run_gets_a_sentence(
    qkv: Call, run: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    shutil.copytree(run, tmp_path / "run")
    damage(tmp_path / "run")
    said = qkv("generate", tmp_path / "run", "the")
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_look_up_prints_the_same_text_and_its_figures(qkv: Call, run: Path) -> None:
    given = ("generate", run, "the quick", "--seed", 1, "--max-new-tokens", 40)
    plain = qkv(*given)
    for more in ((), ("--no-stream",)):
        said = qkv(*given, "--lookup", 4, *more)
        assert (said.code, said.out) == (0, plain.out)
        assert re.fullmatch(
            r"speculation: (\d+ of \d+ proposed tokens accepted, .*|no tokens were proposed)\n", said.err
        )
    ids = ("generate", run, "--ids", "1 2 3 1 2 3", "--temperature", 0, "--max-new-tokens", 20)
    assert qkv(*ids, "--lookup", 4).out == qkv(*ids).out
    several = ("generate", run, "the ", "--num-samples", 2, "--seed", 1, "--max-new-tokens", 20)
    assert qkv(*several, "--lookup", 4).out == qkv(*several).out


def test_a_draft_prints_the_same_greedy_text(qkv: Call, run: Path) -> None:
    given = ("generate", run, "the quick", "--temperature", 0, "--max-new-tokens", 60)
    said = qkv(*given, "--draft", run, "--draft-tokens", 3)
    assert (said.code, said.out) == (0, qkv(*given).out)
    found = re.match(r"speculation: (\d+) of (\d+) proposed tokens accepted, ", said.err)
    assert found
    assert 0 < int(found[1]) == int(found[2]), "the draft is the model itself"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--draft-tokens", 3), "--draft-tokens: it needs a draft model; name its run with --draft"),
        (("--lookup", 3, "--draft-tokens", 3), "--draft-tokens: only a draft model uses it, and --lookup N"),
        (("--lookup", 3, "--draft", "RUN"), "--draft: tokens are proposed either by --lookup or by a draft model"),
        (("--lookup", 0), "--lookup: 0"),
        (("--draft", "RUN", "--draft-tokens", 0), "--draft-tokens: 0"),
        (("--lookup", 3, "--num-beams", 2), "num_beams is 2, but beam search cannot decode speculatively"),
        (("--lookup", 3, "--num-beams", 2, "--num-return", 2), "num_beams is 2, but beam search cannot"),
        (("--lookup", 3, "--choose", "a", "--choose", "b"), "--lookup: --choose does not generate text token by token"),
        (("--draft", "RUN", "--image", "a.png"), "--draft: --image does not generate text token by token"),
    ],
)
def test_speculation_that_does_not_go_together(
    qkv: Call, run: Path, options: tuple[object, ...], sentence: str
) -> None:
    said = qkv("generate", run, "the ", *(run if option == "RUN" else option for option in options))
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err


def test_constrained_text(qkv: Call, run: Path, tmp_path: Path) -> None:
    given = ("generate", run, "the ", "--max-new-tokens", 60, "--seed", 1)
    said = qkv(*given, "--regex", "(quick|brown) (fox|dog)")
    assert (said.code, said.err) == (0, "")
    assert re.fullmatch(r"the (quick|brown) (fox|dog)\n", said.out)
    both = qkv(*given, "--regex", "(quick|brown) (fox|dog)", "--lookup", 3)
    assert (both.code, both.out) == (0, said.out)
    assert both.err.startswith("speculation: ")
    several = qkv(*given, "--regex", "fox|dog", "--num-samples", 2)
    assert {line for line in several.out.splitlines() if not line.startswith("---")} <= {"the fox", "the dog"}
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "a"}')
    refused = qkv(*given, "--json-schema", schema)
    assert (refused.code, refused.out) == (2, "")
    assert "no token of the tokenizer can continue the text as the JSON schema demands" in refused.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--regex", "a("), "the regular expression cannot be used: "),
        (("--json-schema", "nowhere.json"), "--json-schema: 'nowhere.json' cannot be read"),
        (("--regex", "a", "--json-schema", "FILE"), "--regex: --json-schema cannot be combined with it"),
        (("--regex", "a", "--ids", "1"), "--regex: --ids cannot be combined with it"),
        (("--regex", "a", "--image", "a.png"), "--regex: --image cannot be combined with it"),
        (("--regex", "a", "--choose", "a"), "--regex: --choose cannot be combined with it"),
        (("--regex", "a", "--num-beams", 2), "num_beams is 2, but beam search does not support constraints"),
        (("--regex", "a", "--stop", "x"), "stop: 'x' could end a text before the constraint is met"),
        (("--json-schema", "FILE"), "the JSON schema is not valid JSON"),
    ],
)
def test_constraints_that_cannot_be_used(
    qkv: Call, run: Path, tmp_path: Path, options: tuple[object, ...], sentence: str
) -> None:
    file = tmp_path / "file.json"
    file.write_text("{")
    said = qkv("generate", run, "the ", *(file if option == "FILE" else option for option in options))
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
