"""Tags of words: which piece carries a tag, the loss, the words that do not fit, the figures, and the answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from tests.tasks.tables import dataset_of, model_of, recipe_for, rows_of

from qkv.data.batching.batch import IGNORED
from qkv.runs.evaluation import measure
from qkv.spec.errors import SpecError
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.example_task import trained
from qkv.tasks.words.entities import MostFrequent
from qkv.tasks.words.sentences import pieces_of

ROWS = rows_of("token_classification", 20)
TEXT = "The café, in Ötting 1,234 and 東京 too"
KINDS = [
    "characters",
    "bytes",
    "words(200)",
    "word_list(200)",
    "bpe(300)",
    "wordpiece(200)",
    "unigram(300)",
    "code(300)",
]


def opened(
    rows: list[dict[str, Any]] = ROWS, tokenizer: str = "bpe(300)", length: int = 32
) -> tuple[Any, ExampleDataset]:
    return dataset_of(recipe_for("token_classification", data={"tokenizer": tokenizer}, context_length=length), rows)


@pytest.mark.parametrize("kind", KINDS)
@given(words=st.lists(st.sampled_from([*TEXT.split(), "new", "A", "e"]), min_size=1, max_size=6))
def test_ids_are_those_of_the_sentence_and_a_tag_stands_at_the_first_piece_of_its_word(
    kind: str, words: list[str]
) -> None:
    tokenizer = trained(Recipe.parse({"data": {"source": "x", "tokenizer": kind}}).data.tokenizer, [TEXT] * 3)
    pieces = pieces_of(tokenizer)
    ids, heads = [], []
    for i, word in enumerate(words):
        own, head = pieces(word, i > 0)
        heads.append(len(ids) + head)
        ids += own
    text = " ".join(words)
    wanted, offsets = tokenizer.encode_offsets(text)
    assert ids == wanted
    begin = 0
    for word, head in zip(words, heads, strict=True):
        inside = [i for i, (b, e) in enumerate(offsets) if b < begin + len(word) and e > begin]
        assert head == inside[0]
        begin += len(word) + 1


def test_a_word_without_a_piece_is_read_as_unknown() -> None:
    tokenizer = trained(Recipe.parse({"data": {"source": "x", "tokenizer": "wordpiece(60)"}}).data.tokenizer, [TEXT])
    assert tokenizer.encode("\x01") == []
    assert pieces_of(tokenizer)("\x01", True) == ([tokenizer.unknown_id], 0)


def test_other_pieces_have_no_target() -> None:
    _, dataset = opened([{"words": ["redcat", "sat"], "tags": ["B-x", "O"]}], tokenizer="characters")
    batch = next(dataset.rows("validation"))
    assert dataset.vocabulary.labels == ("B-x", "O")
    none = IGNORED
    assert batch.targets.tolist() == [[0, none, none, none, none, none, none, 1, none, none]]
    assert batch.num_targets == 2


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_sum_over_words_in_float64(smoothing: float) -> None:
    recipe = recipe_for(f"token_classification(label_smoothing={smoothing})", data={"tokenizer": "bpe(300)"})
    task, dataset = dataset_of(recipe, ROWS)
    model, batch = model_of(dataset), next(dataset.rows("validation", 1))
    assert batch.input.lengths is not None
    wanted = plain = 0.0
    for ids, targets, length in zip(batch.input.values, batch.targets, batch.input.lengths.tolist(), strict=True):
        nats = -model(ids[None, :length])[0][0].double().log_softmax(-1)
        for i, target in enumerate(targets.tolist()[:length]):
            if target != IGNORED:
                wanted += float((1 - smoothing) * nats[i, target] + smoothing * nats[i].mean())
                plain += float(nats[i, target])
    assert float(task.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
    assert float(task.observe(model, batch).loss) == pytest.approx(plain, rel=1e-4)


def test_a_chain_runs_over_the_first_pieces_of_words() -> None:
    """Loss and answers of a conditional random field are those of the outputs of words, without padding and pieces."""
    recipe = recipe_for("token_classification", data={"tokenizer": "characters"}, head="crf", context_length=64)
    task, dataset = dataset_of(recipe, ROWS)
    model, batch = model_of(dataset), next(dataset.rows("validation", 1))
    generator = torch.Generator().manual_seed(1)
    for scores in (model.head.between, model.head.start, model.head.end):
        scores.copy_(3 * torch.randn(scores.shape, generator=generator))
    outputs, asked = model(batch.input)[0], batch.targets != IGNORED
    wanted, sentences = 0.0, []
    for row, marked in zip(range(len(asked)), asked, strict=True):
        tags = batch.targets[row][marked][None]
        wanted += float(model.head.loss(outputs[row][marked][None], tags))
        sentences.append(model.head.decode(outputs[row][marked][None], torch.ones_like(tags).bool())[0].tolist())
    seen = task.observe(model, batch)
    assert float(seen.loss) == pytest.approx(wanted, rel=1e-4)
    assert [[found for _, found in row] for row in seen.outcomes] == sentences
    assert sentences != [row[marked].tolist() for row, marked in zip(outputs.argmax(-1), asked, strict=True)]
    answers = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    known = {tuple(dataset.vocabulary.labels[i] for i in tags) for tags in sentences}
    assert known <= {tuple(answer["tags"]) for answer in answers}


def test_a_chain_has_no_label_smoothing_and_no_class_weights() -> None:
    with pytest.raises(
        SpecError, match=r"the loss of the head 'crf' has no class weights; give task\.class_weights=none"
    ):
        recipe_for("token_classification(class_weights=balanced)", head="crf")
    with pytest.raises(
        SpecError, match=r"the loss of the head 'crf' has no label smoothing; give task\.label_smoothing=0"
    ):
        recipe_for("token_classification(label_smoothing=0.1)", head="crf")
    with pytest.raises(
        SpecError, match="the task 'classification' needs a head of the kind 'classification', but the m"
    ):
        recipe_for("classification", head="crf")


def test_words_that_do_not_fit_are_noted_and_count_as_wrong() -> None:
    words = ["cat"] * 6
    rows = [{"words": words, "tags": ["B-x", "I-x", "O", "O", "B-x", "O"]}, {"words": ["cat"], "tags": ["O"]}]
    task, dataset = opened(rows, tokenizer="word_list(20, min_frequency=1)", length=4)
    assert dataset.notes == (
        "2 of 4 examples were truncated: their sentence is longer than the 4 tokens that fit (the longest has 6)",
    )
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    assert seen.count == 5
    assert sorted(map(len, seen.outcomes)) == [1, 6]
    long = max(seen.outcomes, key=len)
    assert [true for true, _ in long] == [dataset.vocabulary.labels.index(tag) for tag in rows[0]["tags"]]
    assert [found for _, found in long[4:]] == [-1, -1]
    right = sum(true == found for outcome in seen.outcomes for true, found in outcome)
    assert task.figures(seen, dataset.scale())["accuracy"] == pytest.approx(100 * right / 7)
    (answer,) = task.predict(model, dataset.vocabulary, dataset.recipe, rows[:1])
    assert answer["tags"][4:] == ["O", "O"]
    assert answer["note"] == "the last 2 of 6 words were truncated: the sentence is longer than the model can read"


def test_an_evaluation_is_seqeval_on_what_predict_answers() -> None:
    task, dataset = opened()
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    answers = task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)
    truth, found = [row["tags"] for row in ROWS], [answer["tags"] for answer in answers]
    assert evaluation.figures["f1"] == pytest.approx(100 * f1_score(truth, found, zero_division=0))
    assert evaluation.figures["accuracy"] == pytest.approx(
        100
        * sum(a == b for t, f in zip(truth, found, strict=True) for a, b in zip(t, f, strict=True))
        / sum(map(len, truth))
    )
    guess = [MostFrequent(ROWS)(row["words"]) for row in ROWS]
    assert evaluation.figures["f1_of_most_frequent_tag"] == pytest.approx(100 * f1_score(truth, guess, zero_division=0))
    assert evaluation.sections[-1]["kind"] == "tagged"
    assert evaluation.sections[-1]["sentences"][0] == {"words": ROWS[0]["words"], "tags": found[0], "truth": truth[0]}
    assert evaluation.sections[0]["title"] == "By type"


def test_tags_that_mark_no_entities_are_measured_word_by_word() -> None:
    rows = [{"words": ["the", "dog", "ran"], "tags": ["DET", "NOUN", "VERB"]}, {"words": ["dog"], "tags": ["VERB"]}]
    task, dataset = opened(rows)
    model = model_of(dataset)
    seen = measure(model, task, dataset.rows("validation"), "fp32")
    assert seen is not None
    evaluation = task.evaluate(model, dataset, "validation", seen, dataset.recipe)
    names = ["most_frequent_tag", "logistic_regression"]
    baselines = {f"{figure}_of_{name}" for figure in ("accuracy", "f1") for name in names}
    assert evaluation.figures.keys() == {"loss", "accuracy", "f1", *baselines}
    assert evaluation.figures["accuracy_of_most_frequent_tag"] == 75
    (answer,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"words": "the dog"}])
    assert answer["answer"] == " ".join(
        f"{word}/{tag}" for word, tag in zip(["the", "dog"], answer["tags"], strict=True)
    )


def test_a_text_is_cut_at_white_space() -> None:
    task, dataset = opened()
    model = model_of(dataset)
    text = " the red \n cat"
    (found,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"words": text}])
    (listed,) = task.predict(model, dataset.vocabulary, dataset.recipe, [{"words": ["the", "red", "cat"]}])
    assert (found["words"], found["tags"]) == (listed["words"], listed["tags"])
    assert [entity["type"] for entity in found["entities"]] == [entity["type"] for entity in listed["entities"]]
    assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in found["entities"])
    assert found["words"] == ["the", "red", "cat"]


@pytest.mark.parametrize(
    "given_words", ["  ", [], 5, ["a", 5], [""]], ids=["blank", "empty", "number", "a number in it", "an empty word"]
)
def test_what_is_no_sentence_is_refused(given_words: Any) -> None:
    task, dataset = opened()
    with pytest.raises(
        UserError, match=r"words: .* is not a sentence; give a text with at least one word, or a list of words"
    ):
        task.predict(model_of(dataset), dataset.vocabulary, dataset.recipe, [{"words": given_words}])


def test_one_tag_alone_is_nothing_to_learn() -> None:
    with pytest.raises(UserError, match=r"every word of 'table' has the tag 'O', so there are no tags to distinguish"):
        opened([{"words": ["a", "b"], "tags": ["O", "O"]}])


def test_a_tag_that_only_the_held_out_part_has_is_a_class_that_is_measured() -> None:
    rows, other = [{"words": ["a", "b"], "tags": ["O", "B-x"]}], [{"words": ["a"], "tags": ["B-y"]}]
    recipe = recipe_for("token_classification", data={"tokenizer": "bytes"})
    _, dataset = dataset_of(recipe, rows, other)
    assert dataset.vocabulary.labels == ("B-x", "B-y", "O")
    assert next(dataset.rows("validation")).targets.tolist() == [[1]]
    with pytest.raises(UserError, match=r"the tag 'B-z' is not among the tags of the run: B-x, B-y, O"):
        dataset_of(recipe, [{"words": ["a"], "tags": ["B-z"]}], vocabulary=dataset.vocabulary)


def test_the_batch_keeps_its_words_on_another_device() -> None:
    _, dataset = opened(length=4)
    batch = next(dataset.rows("validation"))
    moved = batch.to("cpu")
    assert moved.extras["unread"] == batch.extras["unread"]
    assert torch.equal(moved.targets, batch.targets)
