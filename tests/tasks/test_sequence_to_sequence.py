"""Texts from texts, by encoder–decoder and by one stack with a prefix: batches, loss, what is written, figures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from tests.tasks.tables import dataset_of, model_of, rows_of, translating
from tokenizers.processors import TemplateProcessing

from qkv.data.batching.batch import IGNORED
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation
from qkv.system.errors import UserError
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.task import Totals
from qkv.tokenizers.tokenizer import Tokenizer

ROWS = rows_of("translation", 6)
BOTH = pytest.mark.parametrize("encoder", [True, False], ids=["encoder", "prefix"])


def opened(
    encoder: bool, task: str = "translation", rows: list[dict[str, Any]] = ROWS, **options: Any
) -> tuple[Any, ExampleDataset]:
    words = {"tokenizer": "word_list(60, min_frequency=1)", **options.pop("data", {})}
    return dataset_of(translating(encoder, task, data=words, **options), rows)


def ids_of(dataset: ExampleDataset, row: dict[str, Any]) -> tuple[list[int], list[int], int, int]:
    tokenizer, target = dataset.vocabulary.tokenizer, dataset.vocabulary.target
    bos, eos = target.special("bos"), target.special("eos")
    assert bos is not None
    assert eos is not None
    return tokenizer.encode(row["source"]), target.encode(row["target"]), bos, eos


def test_with_an_encoder_source_and_target_are_two_rows() -> None:
    task, dataset = opened(True)
    batch = task.collator(dataset.recipe, dataset.vocabulary)([example.fields for example in dataset.examples["train"]])
    assert batch.source is not None
    assert batch.input.lengths is not None
    for i, row in enumerate(ROWS):
        source, target, bos, eos = ids_of(dataset, row)
        assert batch.source.values[i, : batch.source.lengths[i]].tolist() == [*source, eos]
        assert batch.input.values[i, : batch.input.lengths[i]].tolist() == [bos, *target]
        assert batch.targets[i].tolist() == [*target, eos] + [IGNORED] * (batch.input.values.shape[1] - len(target) - 1)
        assert dataset.examples["train"][i].size == len(source) + 1 + len(target) + 1
    assert batch.num_targets == sum(len(row["target"].split()) + 1 for row in ROWS) == dataset.epoch_targets


@BOTH
def test_it_may_begin_with_tokens_of_its_own(encoder: bool) -> None:
    """Those after the first are learned too, and none is learned anew that is not used."""
    task, dataset = opened(encoder, "translation(begin=['<eos>', '<unk>'])")
    target = dataset.vocabulary.target
    end, unknown = target.special("eos"), target.special("unk")
    assert end is not None
    assert unknown is not None
    assert target.special("bos") is None
    batch = task.collator(dataset.recipe, dataset.vocabulary)([example.fields for example in dataset.examples["train"]])
    for i, row in enumerate(ROWS):
        source, written = dataset.vocabulary.tokenizer.encode(row["source"]), target.encode(row["target"])
        before = [] if encoder else source
        assert batch.input.values[i].tolist()[: len(before) + len(written) + 2] == [*before, end, unknown, *written]
        assert [one for one in batch.targets[i].tolist() if one != IGNORED] == [unknown, *written, end]
    model = model_of(dataset, 0.3)
    recipe = dataset.recipe.changed(sample=Generation(max_new_tokens=1, temperature=0.0))
    for row, answer in zip(ROWS, task.predict(model, dataset.vocabulary, recipe, ROWS), strict=True):
        first = next_id(model, encoder, dataset.vocabulary.tokenizer.encode(row["source"]), [unknown], end, end)
        assert answer["answer"] == target.decode([first] if first != end else [], skip_special=True).strip()


def test_a_token_that_begins_is_one_of_the_tokenizers() -> None:
    with pytest.raises(
        UserError, match=r"task\.begin: the tokenizer of the target has no token '<eoss>'; did you mean '<eos>'"
    ):
        opened(True, "translation(begin=['<eoss>'])")


def test_a_framed_source_stands_in_what_its_tokenizer_puts_round_it() -> None:
    task, dataset = opened(True, "translation(framed=true)")
    vocabulary = dataset.vocabulary
    cut = task.reader(dataset.recipe, vocabulary)
    end = vocabulary.tokenizer.special("eos")
    plain = [vocabulary.tokenizer.encode(row["source"]) for row in ROWS]
    assert [example.fields.source.tolist() for example in dataset.examples["train"]] == [
        [*ids, end] for ids in plain
    ]  # it has no template
    framing = Tokenizer.from_json(vocabulary.tokenizer.to_json())
    framing.core.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", framing.special("bos")), ("<eos>", end)]
    )
    framed = Vocabulary(framing, framing)
    assert task.encode(ROWS[0], framed, task.reader(dataset.recipe, framed)).fields.source.tolist() == [
        framing.special("bos"),
        *plain[0],
        end,
    ]
    assert task.reader(dataset.recipe, framed).limits["source"] == cut.limits["source"] - 1


def test_without_one_they_are_one_row_with_a_prefix() -> None:
    task, dataset = opened(False)
    batch = task.collator(dataset.recipe, dataset.vocabulary)([example.fields for example in dataset.examples["train"]])
    assert batch.source is None
    assert batch.input.lengths is not None
    for i, row in enumerate(ROWS):
        source, target, bos, eos = ids_of(dataset, row)
        length = int(batch.input.lengths[i])
        assert batch.input.values[i, :length].tolist() == [*source, bos, *target]
        assert batch.targets[i, :length].tolist() == [*[IGNORED] * len(source), *target, eos]
        assert set(batch.targets[i, length:].tolist()) <= {IGNORED}
        assert int(batch.input.prefix[i]) == len(source) + 1


@BOTH
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_teacher_forcing_in_float64(encoder: bool, smoothing: float) -> None:
    task, dataset = opened(encoder, f"translation(label_smoothing={smoothing})")
    model = model_of(dataset, 0.3)
    batch = task.collator(dataset.recipe, dataset.vocabulary)([example.fields for example in dataset.examples["train"]])
    wanted = plain = 0.0
    for i, (ids, targets) in enumerate(zip(batch.input.values, batch.targets, strict=True)):
        length = int(batch.input.lengths[i])
        if encoder:
            memory = model.encode(batch.source.values[i : i + 1, : batch.source.lengths[i]])
            logits = model(ids[None, :length], memory=memory)[0][0]
        else:
            logits = model(Signal(ids[None, :length], prefix=batch.input.prefix[i : i + 1]))[0][0]
        nats = -logits.double().log_softmax(-1)
        for place, target in enumerate(targets.tolist()[:length]):
            if target != IGNORED:
                wanted += float((1 - smoothing) * nats[place, target] + smoothing * nats[place].mean())
                plain += float(nats[place, target])
    assert float(task.summed_loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
    seen = Totals()
    seen.add(task.observe(model, batch))
    assert seen.loss == pytest.approx(plain, rel=1e-4)
    figures = task.figures(seen, dataset.scale())
    assert figures["perplexity"] == pytest.approx(math.exp(plain / batch.num_targets), rel=1e-3)


@BOTH
def test_what_is_written_is_the_most_probable_token_after_token(encoder: bool) -> None:
    task, dataset = opened(encoder)
    model = model_of(dataset, 0.3)
    answers = task.predict(
        model, dataset.vocabulary, dataset.recipe.changed(sample=Generation(max_new_tokens=4, temperature=0.0)), ROWS
    )
    for row, answer in zip(ROWS, answers, strict=True):
        source, _, bos, eos = ids_of(dataset, row)
        written: list[int] = []
        while len(written) < 4 and eos not in written:
            written.append(next_id(model, encoder, source, written, bos, eos))
        assert (
            answer["answer"]
            == dataset.vocabulary.target.decode([i for i in written if i != eos], skip_special=True).strip()
        )


def next_id(model: Any, encoder: bool, source: list[int], written: list[int], bos: int, eos: int) -> int:
    import torch

    if encoder:
        memory = model.encode(torch.tensor([[*source, eos]]))
        return int(model(torch.tensor([[bos, *written]]), memory=memory)[0][0, -1].argmax())
    ids = torch.tensor([[*source, bos, *written]])
    return int(model(Signal(ids, prefix=torch.tensor([len(source) + 1])))[0][0, -1].argmax())


@BOTH
def test_by_default_as_much_is_written_as_can_be_learned(encoder: bool) -> None:
    _, dataset = opened(encoder)
    assert dataset.recipe.sample == Generation(max_new_tokens=31 if encoder else 15, temperature=0.0)
    _, other = opened(encoder, rows=ROWS)
    own = translating(encoder).changed(sample=Generation(max_new_tokens=3, num_beams=2))
    assert dataset_of(own, ROWS)[1].recipe.sample == own.sample
    assert other.digest() == dataset.digest()


def test_long_sides_are_cut_each_to_its_own_limit() -> None:
    rows = [{"source": "a " * 30, "target": "cat"}, {"source": "a", "target": "cat " * 40}]
    _, dataset = opened(True, rows=rows)
    assert dataset.notes == (
        "2 of 4 examples were truncated: their source is longer than the 23 tokens that fit (the longest has 30)",
        "2 of 4 examples were truncated: their target is longer than the 31 tokens that fit (the longest has 40)",
    )
    task, other = opened(False, rows=rows)
    assert max(example.size for example in other.examples["train"]) <= 32
    answers = task.predict(model_of(other), other.vocabulary, other.recipe, rows)
    assert answers[0]["note"] == "the input has 30 tokens and the model reads 15; the rest was not read"
    assert "note" not in answers[1]


def test_two_tokenizers_only_with_an_encoder() -> None:
    data = {"target_tokenizer": "characters"}
    _, dataset = opened(True, data=data)
    assert not dataset.vocabulary.shared
    assert dataset.recipe.model.frontend.vocab_size == dataset.vocabulary.target.vocab_size
    with pytest.raises(
        SpecError, match=r"data\.target_tokenizer: source and target are one sequence in a model without an encoder"
    ):
        opened(False, data=data)


@BOTH
def test_a_translation_is_measured_by_bleu(encoder: bool) -> None:
    task, dataset = opened(encoder)
    model = model_of(dataset, 0.3)
    evaluation = task.evaluate(model, dataset, "validation", Totals(2.0, 4), dataset.recipe)
    written = [answer["answer"] for answer in task.predict(model, dataset.vocabulary, dataset.recipe, ROWS)]
    assert evaluation.figures["bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(written, [[row["target"] for row in ROWS]]).score
    )
    assert evaluation.figures["loss"] == 0.5
    assert evaluation.sections[-1]["rows"] == [
        [row["source"], text, row["target"]] for row, text in zip(ROWS, written, strict=True)
    ]
    assert "version:" in evaluation.notes[0]


def test_a_summary_is_measured_by_rouge_beside_the_first_sentence() -> None:
    rows = [
        {"source": "the cat sat. the dog ran", "target": "cats sit", "targets": ["cats sit", "the cat sat"]},
        {"source": "a red house", "target": "house"},
    ]
    task, dataset = opened(True, "summarization", rows)
    scorer = RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
    found = task.compare(["the cat", "a house"], rows).figures
    best = max(scorer.score(target, "the cat")["rouge1"].fmeasure for target in rows[0]["targets"])
    assert found["rouge1"] == pytest.approx(50 * (best + scorer.score("house", "a house")["rouge1"].fmeasure))
    assert found["rougeL_of_lead_1"] == pytest.approx(
        50 * (1 + scorer.score("house", "a red house")["rougeL"].fmeasure)
    )
    text = task.sample(model_of(dataset), dataset, dataset.recipe)
    assert text.count("→") == 2
