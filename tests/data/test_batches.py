"""Batches: pure in (seed, step), every target where it should be once, padding and document borders without loss."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.corpora import corpus_of

from qkv.data.batching import buckets as buckets_module
from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.batching.batches import Batches
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import Corpus
from qkv.layers.signal import Signal
from qkv.spec.data import Batching, LengthBuckets, Packed, RandomCrops, TokenBuckets
from qkv.spec.register import PARTS, implementations
from qkv.system.errors import UserError

LAYOUTS = (RandomCrops(), Packed(separator="\n"), LengthBuckets(buckets=3))


def prose(seed: int, lines: int = 60) -> str:
    """Lines of 0 to 40 bytes whose bytes tell their place well enough to be found again."""
    generator = np.random.default_rng(seed)
    return "".join(
        bytes(generator.integers(97, 123, generator.integers(0, 41)).tolist()).decode() + "\n" for _ in range(lines)
    )


def same(a: Batch, b: Batch) -> bool:
    read, other = a.input, b.input
    pairs = [
        (read.values, other.values),
        (a.targets, b.targets),
        (read.lengths, other.lengths),
        (read.segments, other.segments),
    ]
    return all((x is None and y is None) or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Each row's inputs and targets without padding."""
    lengths = (
        [batch.input.values.shape[1]] * len(batch.input.values)
        if batch.input.lengths is None
        else batch.input.lengths.tolist()
    )
    return [
        (ids[:n], targets[:n])
        for ids, targets, n in zip(batch.input.values.tolist(), batch.targets.tolist(), lengths, strict=True)
    ]


@pytest.fixture(params=LAYOUTS, ids=lambda b: b.kind)
def batching(request: pytest.FixtureRequest) -> Batching:
    return request.param


@pytest.fixture
def corpus(batching: Batching, tmp_path: Path) -> Corpus:
    return corpus_of(tmp_path, prose(0), batching)


def test_a_batch_depends_on_seed_and_step_alone(corpus: Corpus, batching: Batching) -> None:
    one, other = Batches(corpus, batching, 5, 16, seed=3), Batches(corpus, batching, 5, 16, seed=3)
    steps = [7, 0, 41, 7, 500, 1, 0]
    expected = {step: one.batch(step) for step in sorted(set(steps))}
    np.random.seed(1)
    torch.manual_seed(1)
    assert all(same(other.batch(step), expected[step]) for step in steps)


def test_batches_leave_global_random_state_alone(corpus: Corpus, batching: Batching) -> None:
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()
    batches = Batches(corpus, batching, 5, 16)
    batches.batch(3)
    list(batches.validation(2))
    assert np.random.get_state()[1].tolist() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_other_seeds_and_steps_give_other_batches(corpus: Corpus, batching: Batching) -> None:
    first = [Batches(corpus, batching, 5, 16, seed=seed).batch(0) for seed in range(4)]
    later = [Batches(corpus, batching, 5, 16, seed=0).batch(step) for step in range(1, 4)]
    found = [*first, *later]
    assert sum(same(a, b) for i, a in enumerate(found) for b in found[:i]) == 0


def test_a_batch_is_the_callers_own(corpus: Corpus, batching: Batching) -> None:
    batches = Batches(corpus, batching, 5, 16)
    batches.batch(0).input.values.zero_()
    next(batches.validation()).targets.zero_()
    assert batches.batch(0).input.values.any()
    assert next(batches.validation()).targets.any()


def test_all_is_int64_and_fits_together(corpus: Corpus, batching: Batching) -> None:
    batches = Batches(corpus, batching, 5, 16)
    for batch in (*map(batches.batch, range(30)), *batches.validation()):
        tensors = [batch.input.values, batch.targets, batch.input.lengths, batch.input.segments]
        assert {t.dtype for t in tensors if t is not None} == {torch.int64}
        assert batch.input.values.shape == batch.targets.shape
        assert 1 <= batch.input.values.shape[0] <= 5
        assert 1 <= batch.input.values.shape[1] <= 16
        assert all(t.is_contiguous() for t in tensors if t is not None)
        if batch.input.lengths is not None:
            padding = torch.arange(batch.input.values.shape[1]) >= batch.input.lengths[:, None]
            assert batch.input.values[padding].eq(0).all()
            assert batch.targets[padding].eq(IGNORED).all()
            assert batch.input.lengths.max() == batch.input.values.shape[1] or batching.kind != "length_buckets"


def test_validation_covers_every_target_of_the_part_once(corpus: Corpus, batching: Batching) -> None:
    """Running text: position i predicts i + 1, for all i but the last. Documents: each but its last."""
    part = corpus.splits["validation"]
    for batch_size, length in ((5, 16), (1, 7), (64, 16), (3, 200)):
        if batching.kind != "length_buckets" and length >= len(part.ids):
            continue
        pairs = Counter()
        for batch in Batches(corpus, batching, batch_size, length).validation(None):
            pairs.update(
                (a, b) for ids, targets in rows_of(batch) for a, b in zip(ids, targets, strict=True) if b != IGNORED
            )
        ids = part.ids.tolist()
        inside = set(range(len(ids) - 1))
        if batching.kind != "random_crops":
            inside -= {int(start) - 1 for start in part.documents}
        assert pairs == Counter((ids[i], ids[i + 1]) for i in inside)


def test_validation_is_the_same_at_every_call(corpus: Corpus, batching: Batching) -> None:
    batches = Batches(corpus, batching, 5, 16, seed=1)
    other = Batches(corpus, batching, 5, 16, seed=2)
    for count in (None, 2):
        first = list(batches.validation(count))
        batches.batch(3)
        assert all(same(a, b) for a, b in zip(first, batches.validation(count), strict=True))
        assert all(same(a, b) for a, b in zip(first, other.validation(count), strict=True))


def test_some_validation_batches_are_spread_over_the_part(corpus: Corpus, batching: Batching) -> None:
    batches = Batches(corpus, batching, 2, 16)
    every = [row for batch in batches.validation(None) for row in rows_of(batch)]
    some = [row for batch in batches.validation(4) for row in rows_of(batch)]
    places = [every.index(row) for row in some]
    assert len(some) == 8 == len(set(places))
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 7 * len(every) // 8)
    assert len(list(batches.validation(10_000))) == len(list(batches.validation(None)))


def test_crops_are_windows_of_the_text_and_begin_everywhere(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "".join(map(chr, range(33, 97))), fraction=0.4)
    starts: Counter[int] = Counter()
    for step in range(200):
        for ids, targets in rows_of(Batches(corpus, RandomCrops(), 4, 10).batch(step)):
            start = ids[0] - 33
            assert ids == corpus.train[start : start + 10].tolist()
            assert targets == corpus.train[start + 1 : start + 11].tolist()
            starts[start] += 1
    assert set(starts) == set(range(len(corpus.train) - 10))
    assert max(starts.values()) < 3 * min(starts.values())


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_packed_windows_are_seen_once_an_epoch_in_an_order_of_its_own(batch_size: int, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, prose(1), Packed(separator="\n"))
    windows = (len(corpus.train) - 1) // 16
    batches = Batches(corpus, Packed(separator="\n"), batch_size, 16)
    steps = -(-3 * windows // batch_size)
    seen = [tuple(ids) for step in range(steps) for ids, _ in rows_of(batches.batch(step))]
    expected = sorted(tuple(corpus.train[i * 16 : i * 16 + 16].tolist()) for i in range(windows))
    epochs = [seen[i * windows : (i + 1) * windows] for i in range(3)]
    assert all(sorted(epoch) == expected for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@given(seed=st.integers(0, 1000), length=st.integers(1, 30), separator=st.sampled_from(["\n", "\n\n", "e"]))
def test_segments_and_targets_of_packed_rows_follow_a_plain_loop(
    seed: int, length: int, separator: str, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, prose(seed, 20), Packed(separator=separator))
    part, row = corpus.splits["validation"], 0
    document_of = np.searchsorted(part.documents, np.arange(len(part.ids)), side="right").tolist()
    if len(part.ids) <= length:
        return
    for batch in Batches(corpus, Packed(separator=separator), 3, length).validation():
        assert batch.input.segments is not None
        for (_, targets), segments in zip(rows_of(batch), batch.input.segments.tolist(), strict=True):
            here = document_of[row * length : row * length + length + 1]
            numbers = [here[i] - here[0] for i in range(len(targets))]
            assert segments[: len(targets)] == numbers
            for i, target in enumerate(targets):
                across = here[i] != here[i + 1]
                assert target == (IGNORED if across else int(part.ids[row * length + i + 1]))
            row += 1


@pytest.mark.parametrize("length", [1, 7, 16, 39, 40, 41, 100])
def test_an_epoch_of_buckets_shows_every_document_once_in_pieces_of_the_context(length: int, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, prose(2), LengthBuckets())
    part = corpus.splits["train"]
    expected: Counter[tuple[int, ...]] = Counter()
    for start, stop in zip(part.documents, [*part.documents[1:], len(part.ids)], strict=True):
        document = part.ids[start:stop].tolist()
        for begin in range(0, len(document) - 1, length):
            expected[tuple(document[begin : begin + length + 1])] += 1
    batches = Batches(corpus, LengthBuckets(buckets=4), 5, length)
    steps = -(-sum(expected.values()) // 5)
    epochs = []
    for epoch in range(2):
        seen = [batches.batch(epoch * steps + step) for step in range(steps)]
        assert sum(len(batch.input.values) < 5 for batch in seen) <= 1
        assert Counter(tuple([*ids, targets[-1]]) for batch in seen for ids, targets in rows_of(batch)) == expected
        epochs.append(seen)
    assert not all(same(a, b) for a, b in zip(*epochs, strict=True))


def test_more_buckets_pad_less_and_the_share_is_the_measured_one(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, prose(3, 400), LengthBuckets())
    shares = []
    for buckets in (1, 2, 4, 8, 1000):
        batches = Batches(corpus, LengthBuckets(buckets=buckets), 8, 30)
        rows = buckets_module.LengthBuckets(LengthBuckets(buckets=buckets), corpus.splits["train"], 8, 30, 0).num_rows  # type: ignore[attr-defined]
        seen = [batches.batch(step) for step in range(-(-rows // 8))]
        real = sum(
            int(batch.input.lengths.sum()) if batch.input.lengths is not None else batch.input.values.numel()
            for batch in seen
        )
        assert batches.padding == pytest.approx(1 - real / sum(batch.input.values.numel() for batch in seen))
        shares.append(batches.padding)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.2
    assert shares[-1] < 0.02


def test_rows_that_are_full_have_no_padding(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, prose(0))
    assert Batches(corpus, RandomCrops(), 5, 16).padding == 0.0
    assert Batches(corpus, RandomCrops(), 5, 16).batch(0).input.lengths is None


@pytest.mark.parametrize(
    ("text", "fraction", "sentence"),
    [
        ("x" * 30, 0.5, "the train split of '{path}' has 15 tokens, and a context of 16 needs at least 17"),
        ("x" * 60, 0.2, "the validation split of '{path}' has 12 tokens, and a context of 16 needs at least 17"),
    ],
)
@pytest.mark.parametrize("batching", [RandomCrops(), Packed()], ids=lambda b: b.kind)
def test_a_part_shorter_than_the_context_is_refused_with_the_numbers(
    text: str, fraction: float, sentence: str, batching: Batching, tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path, text, batching, fraction=fraction)
    with pytest.raises(UserError) as caught:
        Batches(corpus, batching, 4, 16)
    train, held_out = len(corpus.train), len(corpus.validation)
    assert str(caught.value) == (
        f"data.source: {sentence.format(path=tmp_path / 'text.txt')}; "
        f"give more text (tokens: {train} in train and {held_out} in validation), "
        "a shorter model.context_length or another data.validation_fraction"
    )


def test_a_part_exactly_as_long_as_a_context_and_its_target_is_enough(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "x" * 34, fraction=0.5)
    assert Batches(corpus, RandomCrops(), 4, 16).batch(0).num_targets == 64
    with pytest.raises(UserError, match="has 17 tokens, and a context of 17 needs at least 18"):
        Batches(corpus, RandomCrops(), 4, 17)


def test_documents_of_one_token_alone_are_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "ab" * 9 + "ea", LengthBuckets(separator="e"), fraction=0.1)
    assert corpus.splits["validation"].documents.tolist() == [0, 1]
    with pytest.raises(UserError, match=r"the validation split of .* has 2 documents, and none has two tokens"):
        Batches(corpus, LengthBuckets(), 4, 16)


def test_a_layout_that_nobody_registered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PARTS, RandomCrops)
    with pytest.raises(UserError, match="no module implements 'random_crops'; import the file that does"):
        Batches(corpus_of(tmp_path, prose(0)), RandomCrops(), 4, 16)


def test_token_buckets_show_every_document_once_and_never_hold_more_positions(tmp_path: Path) -> None:
    words = ["x" * (1 + i % 17) for i in range(200)]
    corpus = corpus_of(tmp_path, "\n".join(words), batching=TokenBuckets(tokens=40))
    batches, seen = Batches(corpus, TokenBuckets(tokens=40), 8, 32), 0
    targets = len(corpus.train) - len(corpus.splits["train"].documents)  # the last token of a document has no target
    for step in range(10_000):
        batch = batches.batch(step)
        assert batch.input.values.numel() <= 40
        seen += batch.num_targets
        if seen >= targets:
            break
    assert seen == targets
    assert 0 <= batches.padding < 0.5


def test_every_batching_of_the_spec_has_a_layout() -> None:
    assert set(Batching.kinds().values()) <= implementations(Batching, "qkv.data.batching").keys()


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (2**64 + 5, 1), (10**30, 2**40)])
def test_any_seed_and_step_have_numbers_of_their_own(seed: int, step: int) -> None:
    first = random(seed, step).integers(0, 2**60, 4).tolist()
    assert random(seed, step).integers(0, 2**60, 4).tolist() == first
    assert random(seed, step + 1).integers(0, 2**60, 4).tolist() != first
    assert random(seed + 1, step).integers(0, 2**60, 4).tolist() != first


def test_a_batch_moves_whole_and_counts_its_targets(tmp_path: Path) -> None:
    ids = torch.arange(6).view(2, 3)
    targets = torch.tensor([[1, 2, IGNORED], [4, IGNORED, IGNORED]])
    batch = Batch.of(Signal(ids, torch.tensor([2, 1]), torch.zeros(2, 3, dtype=torch.int64)), targets)
    assert batch.num_targets == 3
    moved = batch.to("meta")
    read = moved.input
    assert {t.device.type for t in (read.values, moved.targets, read.lengths, read.segments) if t is not None} == {
        "meta"
    }
    assert Batch.of(ids, targets).to("cpu").input.lengths is None
