"""The recipe that a text gets: it grows with the text and the machine, and can be trained on whatever the text is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.choosing import automatic as module
from qkv.choosing.automatic import EPOCHS, automatic, expected_loss
from qkv.choosing.signals.settings import MINUTES
from qkv.costs.cost import cost
from qkv.costs.measuring import probe as probes
from qkv.costs.measuring.machine import Machine
from qkv.data.batching.batches import Batches
from qkv.data.corpora.corpus import open_corpus
from qkv.data.vocabulary import Vocabulary
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import BPE, Characters
from qkv.system.errors import UserError
from qkv.system.processor import processor_name
from qkv.tasks.dataset import with_vocabulary

SMALL = Machine("a processor", {"fp32": 4e11, "bf16": 8e11}, 4.8e10, 6e-6)
LARGE = Machine("ten of them", {"fp32": 4e12, "bf16": 8e12}, 4.8e11, 1e-6)


@pytest.fixture
def recipe_for(monkeypatch: pytest.MonkeyPatch):
    """The recipe of a text of so many characters, without the text."""

    class Found:
        def __init__(self, characters: int):
            self.train, self.characters = self, lambda: characters

    def make(characters: int, machine: Machine = SMALL, *overrides: str) -> Recipe:
        monkeypatch.setattr(module, "resolve", lambda _: Found(characters))
        return automatic("folder/my.txt", overrides, machine=machine)

    return make


def parameters(recipe: Recipe) -> int:
    frontend = recipe.model.frontend.changed(vocab_size=getattr(recipe.data.tokenizer, "vocab_size", 128))
    return cost(recipe.model.changed(frontend=frontend)).parameters


def test_a_longer_text_gets_a_larger_vocabulary_and_no_smaller_model(recipe_for) -> None:
    found = [recipe_for(10**n) for n in (3, 4, 5, 6, 7)]
    assert isinstance(found[0].data.tokenizer, Characters)
    sizes = [recipe.data.tokenizer.vocab_size for recipe in found if isinstance(recipe.data.tokenizer, BPE)]
    assert sizes == sorted(sizes) == sorted(set(sizes))
    assert [recipe.model.width for recipe in found] == sorted(recipe.model.width for recipe in found)
    assert found[-1].model.width > found[0].model.width
    assert {recipe.name for recipe in found} == {"my"}


def test_bf16_where_it_is_faster(recipe_for) -> None:
    slow = Machine("another", {"fp32": 4e11, "bf16": 3e11}, 4.8e10, 6e-6)
    assert (recipe_for(10**6, SMALL).training.precision, recipe_for(10**6, slow).training.precision) == ("bf16", "fp32")


def test_a_faster_machine_gets_a_larger_model_of_a_long_text(recipe_for) -> None:
    assert parameters(recipe_for(10**8, LARGE)) > 1.5 * parameters(recipe_for(10**8, SMALL))


@pytest.mark.parametrize("characters", [10**6, 10**9])
def test_the_text_bounds_the_steps_and_a_budget_the_time(recipe_for, characters: int) -> None:
    recipe = recipe_for(characters)
    tokens = recipe.training.steps * recipe.training.batch_size * recipe.model.context_length
    assert tokens == pytest.approx(EPOCHS * characters / 3, rel=0.01)
    assert recipe.training.minutes == MINUTES


def test_the_size_is_chosen_for_the_minutes_that_are_given(recipe_for) -> None:
    found = [recipe_for(10**8, SMALL, *change) for change in (["training.minutes=0.2"], [], ["training.minutes=500"])]
    assert [recipe.training.minutes for recipe in found] == [0.2, MINUTES, 500.0]
    assert [parameters(recipe) for recipe in found] == sorted({parameters(recipe) for recipe in found})


@pytest.mark.parametrize("characters", [60, 100, 500, 3000, 30_000])
def test_a_short_text_can_be_trained_on(tmp_path: Path, characters: int) -> None:
    path = tmp_path / "my.txt"
    path.write_text(("all work and no play makes a dull text\n" * 1000)[:characters])
    recipe = automatic(str(path), machine=SMALL)
    corpus = open_corpus(recipe.data)
    filled = with_vocabulary(recipe, Vocabulary(corpus.tokenizer, corpus.tokenizer))
    batches = Batches(corpus, filled.data.batching, filled.training.batch_size, filled.model.context_length)
    assert batches.batch(0).input.values.shape == (filled.training.batch_size, filled.model.context_length)
    assert filled.training.steps >= 300


def test_overrides_and_the_short_form(tmp_path: Path) -> None:
    path = tmp_path / "my.txt"
    path.write_text("all work and no play makes a dull text\n" * 100)
    recipe = automatic(str(path), ["training.steps=7", "model.blocks.mixer.num_heads=1"], machine=SMALL)
    assert (recipe.training.steps, recipe.model.blocks[0].branches[0].num_heads) == (7, 1)  # pyright: ignore[reportAttributeAccessIssue]
    assert (
        automatic(str(path), quick=True, machine=SMALL).training.steps
        == automatic(str(path), machine=SMALL).training.steps // 10
    )


def test_a_text_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        automatic(str(tmp_path / "absent.txt"), machine=SMALL)


def test_the_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    (tmp_path / "my.txt").write_text("all work and no play makes a dull text\n" * 100)
    measured: list[Machine] = []

    def probe() -> Machine:
        measured.append(Machine(processor_name(), SMALL.flops, SMALL.bandwidth, SMALL.call))
        return measured[-1]

    monkeypatch.setattr(probes, "probe", probe)
    assert automatic(str(tmp_path / "my.txt")) == automatic(str(tmp_path / "my.txt"))
    assert len(measured) == 1


@given(st.floats(1e4, 1e9), st.floats(1e4, 1e10), st.floats(1e3, 1e9))
def test_more_of_anything_is_expected_to_help(size: float, tokens: float, distinct: float) -> None:
    loss = expected_loss(size, tokens, distinct)
    assert expected_loss(2 * size, tokens, distinct) < loss
    assert expected_loss(size, 2 * tokens, distinct) <= loss
    assert expected_loss(size, tokens, 2 * distinct) <= loss


def test_the_expected_loss_is_the_published_one_for_new_text() -> None:
    # Hoffmann et al. 2022, Chinchilla: 70 billion parameters, 1.4 trillion tokens; no model saves 1.69 nats.
    assert expected_loss(70e9, 1.4e12, 1.4e12) + 1.69 == pytest.approx(1.937, abs=2e-3)


def test_nothing_is_chosen_that_the_memory_does_not_hold(recipe_for, monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(recipe: Recipe) -> int:
        frontend = recipe.model.frontend.changed(vocab_size=getattr(recipe.data.tokenizer, "vocab_size", 128))
        return cost(
            recipe.model.changed(frontend=frontend), training=recipe.training, batch_size=recipe.training.batch_size
        ).memory.peak

    free = recipe_for(10**9, LARGE)
    monkeypatch.setattr(module, "fits_memory", lambda needed: needed <= peak(free) / 2)
    assert parameters(recipe_for(10**9, LARGE)) < parameters(free)
    assert peak(recipe_for(10**9, LARGE)) <= peak(free) / 2
