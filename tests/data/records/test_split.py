"""The held-out part: the same each time, of the requested size, each label in its share, no article in both."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.records.cases import ANSWER, CLASSIFY, LABEL, SCORE, TEXT, TRANSLATE, read, write

from qkv.data.records.model import Role
from qkv.data.records.split import hold_out
from qkv.system.errors import UserError


@given(count=st.integers(2, 300), fraction=st.floats(0.01, 0.99), seed=st.text(max_size=4))
def test_every_row_is_in_one_part(count: int, fraction: float, seed: str) -> None:
    split = hold_out(count, fraction, seed)
    assert sorted(split.train + split.validation) == list(range(count))
    assert len(split.validation) == min(max(round(fraction * count), 1), count - 1)
    assert split == hold_out(count, fraction, seed)


@given(labels=st.lists(st.sampled_from("aaaaabbc"), min_size=2, max_size=200), fraction=st.floats(0.05, 0.6))
def test_labels_are_held_out_in_their_share(labels: list[str], fraction: float) -> None:
    split = hold_out(len(labels), fraction, "seed", labels)
    assert sorted(split.train + split.validation) == list(range(len(labels)))
    sizes, held = Counter(labels), Counter(labels[i] for i in split.validation)
    if max(sizes.values()) == 1:
        assert len(split.validation) == min(max(round(fraction * len(labels)), 1), len(labels) - 1)
        return
    wanted = min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    assert len(split.validation) == min(wanted, len(labels) - len(sizes))
    for label, size in sizes.items():
        assert held[label] < size, "every label is trained on"
    if all(size * fraction <= size - 1 for size in sizes.values()):
        for label, size in sizes.items():
            assert abs(held[label] - wanted * size / len(labels)) < 1 + 1e-9


@given(groups=st.lists(st.integers(0, 8), min_size=2, max_size=100), fraction=st.floats(0.05, 0.6))
def test_groups_stay_together(groups: list[int], fraction: float) -> None:
    split = hold_out(len(groups), fraction, "seed", groups=groups)
    train, held = {groups[i] for i in split.train}, {groups[i] for i in split.validation}
    assert sorted(split.train + split.validation) == list(range(len(groups)))
    assert split.train
    assert split.validation
    if len(set(groups)) > 1:
        assert not train & held
        smaller = len(split.validation) - max(groups.count(group) for group in held)
        assert smaller < max(round(fraction * len(groups)), 1), "no group more than is needed"


def test_the_split_is_fixed_for_all_time() -> None:
    """A golden value: a change here changes everybody's held-out rows."""
    assert hold_out(10, 0.3, "qkv") == ([0, 2, 1, 8, 6, 3, 9], [7, 4, 5])


@pytest.mark.parametrize(("count", "what"), [(0, "there are no rows"), (1, "there is one row")])
def test_too_few_rows(count: int, what: str) -> None:
    with pytest.raises(UserError, match=f"{what}; at least two are needed"):
        hold_out(count, 0.1, "")


SORTED = "text,label\n" + "".join(f"text {i},{'good' if i < 80 else 'bad'}\n" for i in range(100))


def test_a_file_sorted_by_label_is_split_in_equal_shares(tmp_path: Path) -> None:
    records = read(write(tmp_path / "a.csv", SORTED), CLASSIFY, validation_fraction=0.25)
    assert Counter(row["label"] for row in records.splits["validation"]) == {"good": 20, "bad": 5}
    assert len({row["label"] for row in records.splits["validation"][:10]}) == 2, "a beginning of it has both"
    assert "25 of 100 rows were held out for validation, stratified by label" in records.notes
    numbers = read(
        write(tmp_path / "b.csv", SORTED.replace("label", "score").replace("good", "1").replace("bad", "0")), SCORE
    )
    assert "10 of 100 rows were held out for validation, at random" in numbers.notes


def test_the_split_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    first, again = (
        read(write(tmp_path / name, SORTED, packed), CLASSIFY) for name, packed in (("a.csv", False), ("b.csv", True))
    )
    assert first.splits == again.splits
    assert first.digest == again.digest
    other = read(write(tmp_path / "c.csv", SORTED.replace("text 7,", "text x,")), CLASSIFY)
    assert [row["text"] for row in other.splits["validation"]] != [row["text"] for row in first.splits["validation"]]


def test_own_files_are_the_splits(tmp_path: Path) -> None:
    train, held, test = (
        write(tmp_path / f"{name}.csv", "text,label\n" + f"{name} 1,a\n{name} 2,b\n" * size)
        for name, size in (("a", 3), ("b", 1), ("c", 2))
    )
    records = read(train, CLASSIFY, validation=held, test=test)
    assert {name: [row["text"] for row in rows] for name, rows in records.splits.items()} == {
        "train": ["a 1", "a 2"] * 3,
        "validation": ["b 1", "b 2"],
        "test": ["c 1", "c 2"] * 2,
    }
    without = read(train, CLASSIFY, test=test)
    assert {name: len(rows) for name, rows in without.splits.items()} == {"train": 5, "validation": 1, "test": 4}
    assert list(without.splits) == ["train", "validation", "test"]


def test_one_row_is_enough_beside_a_validation_file(tmp_path: Path) -> None:
    one, more = write(tmp_path / "a.csv", "text,label\nx,a\n"), write(tmp_path / "b.csv", "text,label\nx,a\ny,b\n")
    assert len(read(one, CLASSIFY, validation=more).splits["train"]) == 1


def test_the_digest_changes_with_how_a_file_is_read(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", "text,other,label\n" + "a,b,c\nd,e,f\n" * 4)
    ways = [{}, {"columns": {"text": "other"}}, {"validation_fraction": 0.5}, {"validation": source}, {"test": source}]
    digests = [read(source, CLASSIFY, **way).digest for way in ways]
    assert len(set(digests)) == len(ways)
    assert digests[0] == read(source, CLASSIFY, bad_rows="refuse").digest


@pytest.mark.parametrize("articles", [1, 4])
def test_no_context_is_in_both_parts(articles: int, tmp_path: Path) -> None:
    def paragraph(name: str) -> dict[str, object]:
        questions = [
            {"id": f"{name}-{i}", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]} for i in range(5)
        ]
        return {"context": f"Ann of {name}", "qas": questions}

    data = [{"title": str(i), "paragraphs": [paragraph(f"{i}.{j}") for j in range(4)]} for i in range(articles)]
    records = read(write(tmp_path / "a.json", json.dumps({"data": data})), ANSWER)
    train, held = ({row["context"] for row in records.splits[split]} for split in ("train", "validation"))
    assert not train & held
    assert len(held) == (1 if articles == 1 else 4), "a paragraph of the only article, or a whole article"
    assert any(
        note.endswith("rows were held out for validation, with no context in both splits") for note in records.notes
    )


@given(inputs=st.lists(st.integers(0, 30), min_size=2, max_size=80), fraction=st.floats(0.05, 0.6))
def test_equal_inputs_are_on_one_side(inputs: list[int], fraction: float) -> None:
    labels = [key % 2 for key in inputs]
    split = hold_out(len(inputs), fraction, "seed", labels, inputs=inputs)
    assert sorted(split.train + split.validation) == list(range(len(inputs)))
    assert split.train
    assert split.validation
    if len(set(inputs)) > 8:  # each label has several
        assert not {inputs[i] for i in split.train} & {inputs[i] for i in split.validation}
    if len(set(inputs)) in (1, len(inputs)):
        assert split == hold_out(len(inputs), fraction, "seed", labels), "the split of tables without duplicates"
    assert {labels[i] for i in split.train} >= {label for label in labels if labels.count(label) > 1}


def test_a_label_of_copies_alone_is_trained_on_and_a_frequent_text_too() -> None:
    """Row 0 repeats row 1 with a label of its own; half of the rows are one text."""
    inputs = ["a", "a", *"bcdefghijklmnopqrs", *["spam"] * 20]
    labels = ["rare", *["common"] * (len(inputs) - 1)]
    for seed in "0123456789":
        split = hold_out(len(inputs), 0.3, seed, labels, inputs=inputs)
        assert {0, 1} <= set(split.train)
        assert not any(inputs[i] == "spam" for i in split.validation)
        assert 6 <= len(split.validation) <= 18


def test_copies_are_kept_together_and_counted(tmp_path: Path) -> None:
    rows = [f"text {i},{'ab'[i % 2]}\n" for i in range(40)]
    source = write(tmp_path / "a.csv", "text,label\n" + "".join(rows) + " text  7,a\ntext\t8,a\n")
    records = read(source, CLASSIFY, validation_fraction=0.5)
    sides = [{" ".join(row["text"].split()) for row in records.splits[name]} for name in ("train", "validation")]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 40
    assert (
        f"{source}: 2 of 42 rows repeat the input of an earlier row; rows with the same input are in the same split; "
        "2 rows share their input with a row of another label"
    ) in records.notes


def test_copies_between_given_files_are_counted_and_stay(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(10)))
    held = write(tmp_path / "b.csv", "text,label\ntext 1,b\ntext  2,b\nother,a\n")
    records = read(train, CLASSIFY, validation=held, test=train)
    assert [len(records.splits[name]) for name in ("train", "validation", "test")] == [10, 3, 10]
    said = "\n".join(records.notes)
    assert "2 of 3 rows of validation have the same input as a training row (1 of them with another label), so" in said
    assert "10 of 10 rows of test have the same input as a training row, so they do not test" in said


def test_pairs_are_equal_if_both_texts_are_and_targets_do_not_count(tmp_path: Path) -> None:
    pair = Role("pair", "text", ("pair",), optional=True)
    source = write(tmp_path / "a.csv", "text,pair,label\na,b,x\na,c,x\nab,c,y\na,bc,y\nd,e,y\n")
    assert not any("repeat" in note for note in read(source, (TEXT, pair, LABEL), columns={"pair": "pair"}).notes)
    assert any("2 of 5 rows repeat" in note for note in read(source, CLASSIFY).notes)
    translated = write(tmp_path / "b.csv", "source,target\na,b\na,c\nd,c\n")
    roles = (TRANSLATE[0], TRANSLATE[1]._replace(written=True))
    assert any("1 of 3 rows repeat" in note and "another target" in note for note in read(translated, roles).notes)
