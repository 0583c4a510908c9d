"""Specs as files: reading what was written gives the same spec, and a file that cannot be used says where and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spec.strategies import models, parts, recipes, slots, valid

from qkv.spec.base import Part
from qkv.spec.errors import SpecError
from qkv.spec.files.formats import FORMAT
from qkv.spec.files.overrides import override, quick_form
from qkv.spec.files.plain import plain
from qkv.spec.files.reader import read_json, read_yaml
from qkv.spec.files.yaml_io import dump, dump_json, read_model, read_recipe, write_spec
from qkv.spec.masks import AllOf, AnyOf, Causal, Full, Mask, Window
from qkv.spec.model import Model
from qkv.spec.models.wide import Ngrams
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

EXAMPLE = """\
name: small
data: tinyshakespeare
model:
  width: 64
  blocks:
    - branches: ["attention(4, mask=causal & window(512, sinks=4))", feed_forward]
      norm: rms_norm
training:
  optimizer: {kind: adamw, lr: 1e-3}
quick: {training.steps: 5, model.width: 32}
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(EXAMPLE)
    return path


@settings(max_examples=60)
@given(recipes())
def test_a_recipe_survives_yaml_and_json(recipe: Recipe) -> None:
    """In one test, as drawing a recipe takes longer than writing and reading it."""
    assert Recipe.parse(read_yaml(dump(recipe))[0]) == recipe
    assert Recipe.parse(read_json(dump_json(recipe))[0]) == recipe


@given(models())
def test_a_model_survives_yaml(model: Model) -> None:
    assert Model.parse(read_yaml(dump(model))[0]) == model


@settings(max_examples=10)
@pytest.mark.parametrize("part", parts(), ids=lambda p: p.__name__)
@given(data=st.data())
def test_every_registered_part_survives(part: type[Part], data: st.DataObject) -> None:
    spec = data.draw(valid(part))
    slot = next(slot for slot in slots() if issubclass(part, slot))
    assert slot.parse(read_yaml(dump(spec))[0]) == spec


@given(recipes())
def test_readers_of_yaml_1_1_see_the_same_data(recipe: Recipe) -> None:
    assert yaml.safe_load(dump(recipe)) == plain(recipe)


@pytest.mark.parametrize(
    ("mask", "written"),
    [
        (Causal() & Window(size=512, sinks=4), "causal & window(512, sinks=4)"),
        (Causal() & (Full() | Window(size=2)), "causal & (full | window(2))"),
        (Full() | Causal() & Window(size=2), "full | causal & window(2)"),
        (Full() | (Full() | Causal()), "full | (full | causal)"),
        (Causal() & Full() & Causal(), "causal & full & causal"),
        (AllOf(masks=(Full(), Causal(), Full())), {"kind": "all_of", "masks": ["full", "causal", "full"]}),
        (AnyOf(masks=(Full(),)), {"kind": "any_of", "masks": ["full"]}),
    ],
    ids=str,
)
def test_masks_are_written_as_their_expression_where_that_reads_back(mask: Mask, written: Any) -> None:
    assert plain(mask) == written
    assert Mask.parse(written) == mask


def test_files_stay_readable(recipe_file: Path) -> None:
    text = dump(read_recipe(recipe_file))
    assert "          mask: causal & window(512, sinks=4)\n" in text
    assert "\ntask: next_token\n" in text
    assert "{" not in text.replace("{}", "")
    assert dump(Recipe(data="x", description="one\ntwo")).count("description: |-\n  one\n  two\n") == 1  # pyright: ignore[reportArgumentType]


def test_a_recipe_is_read_with_its_overrides(recipe_file: Path) -> None:
    plainly = read_recipe(recipe_file)
    assert (plainly.model.width, plainly.training.steps) == (64, 2000)
    quick = read_recipe(recipe_file, quick=True)
    assert (quick.model.width, quick.training.steps) == (32, 5)
    assert read_recipe(recipe_file, ["training.steps=7"], quick=True).training.steps == 7


def test_a_model_is_read_from_a_recipe_and_from_a_file_of_its_own(recipe_file: Path, tmp_path: Path) -> None:
    model = read_recipe(recipe_file).model
    write_spec(tmp_path / "model.yaml", model)
    write_spec(tmp_path / "model.json", model)
    for name in ("small.yaml", "model.yaml", "model.json"):
        assert read_model(tmp_path / name) == model
        assert read_model(tmp_path / name, ["model.width=128"]).width == 128
        assert read_model(tmp_path / name, ["width=128", "norm=rms_norm"]) == read_model(
            tmp_path / name, ["model.width=128", "model.norm=rms_norm"]
        )


def test_a_run_folder_stands_for_its_spec(recipe_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_spec(run / "spec.yaml", read_recipe(recipe_file))
    assert read_recipe(run) == read_recipe(recipe_file)


def test_nothing_is_left_behind_when_a_file_is_written(tmp_path: Path) -> None:
    write_spec(tmp_path / "a.yaml", Model())
    write_spec(tmp_path / "a.yaml", Model(width=32))
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]
    assert read_model(tmp_path / "a.yaml").width == 32
    assert os.stat(tmp_path / "a.yaml").st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the file cannot be written"):
        write_spec(tmp_path / "file" / "a.yaml", Model())
    with pytest.raises(UserError, match="the file cannot be written"):
        write_spec(tmp_path / "absent" / "a.yaml", Model())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_spec(tmp_path / "a.yaml", Model(width=32))

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        write_spec(tmp_path / "a.yaml", Model(width=64))
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]
    assert read_model(tmp_path / "a.yaml").width == 32


BAD = {
    "empty": (b"", "small.yaml: the file is empty"),
    "a list": (b"- a\n", "small.yaml: the file holds a list"),
    "a sentence": (b"To be, or not to be\n", "small.yaml: the file holds a single value"),
    "latin-1": (b"name: x\ndata: caf\xe9\n", "small.yaml:2: byte 0xe9 is not UTF-8"),
    "too large": (b"#" * 1_000_001, "small.yaml: the file is larger than 1,000 kB"),
    "an unknown key": (
        b"data: x\nmodel:\n  widht: 3\n",
        "small.yaml:3: model.widht: unknown key; did you mean 'width'?",
    ),
    "a wrong type": (
        b"data: x\nmodel: {width: wide}\n",
        "small.yaml:2: model.width: 'wide' given, but it should be a valid integer",
    ),
    "a window of 0": (
        b"data: x\nmodel:\n  blocks:\n  - branches:\n    - attention(4, mask=causal & window(0))\n",
        "small.yaml:5: model.blocks.0.branches.0.mask.masks.1.size: 0 given, but it should be greater than 0",
    ),
    "heads that do not divide": (
        b"data: x\nmodel:\n  width: 64\n  blocks:\n  - branches:\n    - kind: attention\n      num_heads: 5\n",
        "small.yaml:7: model.blocks.0.branches.0.num_heads: 5 heads do not divide the width 64; heads that do: 1, 2, 4",
    ),
    "a pattern that does not decode": (
        b"data: x\nmodel:\n  blocks:\n  - branches: [attention(mask=full), feed_forward]\n",
        "small.yaml:4: model.blocks.0.branches.0: this branch sees later positions",
    ),
    "an unknown kind": (
        b"data: x\nmodel: {blocks: [{branches: [attenton]}]}\n",
        "small.yaml:2: model.blocks.0.branches.0: there is no branch 'attenton'; did you mean 'attention'?",
    ),
    "a kind that is no word": (
        b"data: x\nmodel: {norm: {kind: [1]}}\n",
        "small.yaml:2: model.norm.kind: there is no norm [1]",
    ),
    "an article": (
        b"data: x\ntraining: {optimizer: {lr: 1}}\n",
        "small.yaml:2: training.optimizer: an optimizer needs a 'kind'",
    ),
    "an endless short form": (
        b"data: x\nmodel: {norm: '" + b"(" * 5000 + b"'}\n",
        "is too long for the short form of a norm",
    ),
    "a model alone": (b"width: 3\n", "small.yaml: this file is a model alone"),
}


@pytest.mark.parametrize(("content", "sentence"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_gets_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "small.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_recipe(tmp_path / "small.yaml")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_QUICK = {
    "no quick form": (b"data: x\n", "small.yaml: this recipe has no short form"),
    "a list as quick form": (
        b"data: x\nquick: [training.steps=3]\n",
        "small.yaml:2: quick: the short form is a mapping",
    ),
    "an unknown quick key": (
        b"data: x\nquick: {steps: 3}\n",
        "override 'steps=3': there is no 'steps' in a recipe; did you mean 'training.steps'?",
    ),
}


@pytest.mark.parametrize(("content", "sentence"), BAD_QUICK.values(), ids=BAD_QUICK.keys())
def test_a_bad_quick_form_gets_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "small.yaml").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_recipe(tmp_path / "small.yaml", quick=True)
    assert sentence in str(caught.value)


def test_a_missing_file_is_told_with_the_nearest_name(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no such file; did you mean '.*small\.yaml'\?"):
        read_recipe(tmp_path / "smal.yaml")
    with pytest.raises(UserError, match=r"there is no such file; '.*' holds small\.yaml"):
        read_recipe(tmp_path / "zzz")
    with pytest.raises(UserError, match="and no folder"):
        read_recipe(tmp_path / "absent" / "zzz")
    with pytest.raises(UserError, match=r"this is a folder, but not a run; .* holds small\.yaml"):
        read_recipe(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_recipe(recipe_file / "x")
    with pytest.raises(UserError, match="cannot be read"):
        read_recipe("a\0b")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.width=wide", "override 'model.width=wide': model.width: 'wide' given"),
        (
            "model.blocks.mixer.mask=full",
            "override 'model.blocks.mixer.mask=full': model.blocks.0.branches.0: this branch sees later",
        ),
        (
            "model.blocks.mixer.num_heads=7",
            "override 'model.blocks.mixer.num_heads=7': model.blocks.0.branches.0.num_heads: 7 heads",
        ),
    ],
)
def test_an_override_is_blamed_for_what_it_set(recipe_file: Path, override: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_recipe(recipe_file, [override, "training.steps=3"])
    assert str(caught.value).startswith(sentence)


def test_the_file_is_blamed_for_what_it_says(recipe_file: Path) -> None:
    recipe_file.write_text(EXAMPLE.replace("width: 64", "width: 63"))
    with pytest.raises(
        SpecError, match=r"small\.yaml:6: model\.blocks\.0\.branches\.0\.num_heads: 4 heads do not divide the width 63"
    ):
        read_recipe(recipe_file, ["training.steps=3"])


def test_the_format_is_written_and_older_ones_than_the_last_are_refused(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file)
    assert yaml.safe_load(dump(recipe))["format"] == FORMAT == recipe.format
    recipe_file.write_text(f"format: {FORMAT - 2}\n{recipe_file.read_text()}")
    with pytest.raises(UserError, match=f"{FORMAT - 2} given, but it should be greater than or equal to {FORMAT}"):
        read_recipe(recipe_file)


FORMER = """\
format: 2
data: x.csv
task: classification
model:
  head: classification
  wide: {kind: ngrams, buckets: 256}
quick: {model.wide.words: 1}
candidates: {plain: {model.wide: null}}
"""


def test_a_recipe_of_format_2_has_its_wide_path_beside_the_model(recipe_file: Path) -> None:
    recipe_file.write_text(FORMER)
    recipe = read_recipe(recipe_file)
    assert recipe.wide == Ngrams(buckets=256)
    assert recipe.format == FORMAT
    recipe_file.write_text(dump(recipe))
    assert read_recipe(recipe_file) == recipe
    assert read_recipe(recipe_file, quick=True).wide == Ngrams(buckets=256, words=1)
    assert override(recipe, quick_form(recipe.candidates["plain"])).wide is None
    assert read_recipe(recipe_file, ["model.wide.words=3"]) == read_recipe(recipe_file, ["wide.words=3"])
    recipe_file.write_text(FORMER.replace("buckets: 256", "buckets: 1"))
    with pytest.raises(SpecError, match=r":6: wide\.buckets: 1 given"):
        read_recipe(recipe_file)


def test_a_model_of_format_2_may_say_that_it_has_no_wide_path(recipe_file: Path) -> None:
    recipe_file.write_text("width: 64\nwide: null\n")
    assert read_model(recipe_file) == Model(width=64)


def test_a_later_format_is_refused_before_its_keys_are(recipe_file: Path) -> None:
    recipe_file.write_text(f"format: {FORMAT + 1}\nbetter: true\n{recipe_file.read_text()}")
    with pytest.raises(
        UserError, match=f"format: a later version of qkv wrote this file, in format {FORMAT + 1}; this version reads"
    ):
        read_recipe(recipe_file)


def test_a_start_in_a_folder_that_is_called_like_a_kind_is_read_again(tmp_path: Path) -> None:
    recipe = Recipe.parse({"data": "text.txt", "start": {"kind": "checkpoint", "source": "checkpoint"}})
    write_spec(tmp_path / "spec.yaml", recipe)
    assert read_recipe(tmp_path / "spec.yaml").start == recipe.start
