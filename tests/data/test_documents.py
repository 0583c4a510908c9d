"""Pieces and documents: nothing lost, nothing depends on how the text arrived."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpora import documents
from qkv.data.corpora.documents import pieces
from qkv.tokenizers.coders import SpaceBorders


class Small(SpaceBorders):
    """Borders at spaces, with pieces that a test can fill."""

    piece_size = 8


class Anywhere:
    """Every place is a border, as for characters."""

    piece_size = 8

    def border(self, text: str) -> int:
        return len(text)


def documents_of(blocks: list[str], separator: str | None, borders: documents.Borders | None = None) -> list[str]:
    found: list[str] = []
    for group in pieces(blocks, borders or Small(), separator):
        assert len(group.texts) == len(group.opens)
        for text, opens in zip(*group, strict=True):
            assert text
            if opens or not found:
                found.append(text)
            else:
                found[-1] += text
    return found


def by_definition(text: str, separator: str) -> list[str]:
    """A document and the separators after it; separators at the beginning are one by themselves."""
    bodies = text.split(separator)
    found: list[str] = []
    for i, body in enumerate(bodies):
        whole = body + separator * (i < len(bodies) - 1)
        if body or not found:
            found.append(whole)
        else:
            found[-1] += whole
    return [one for one in found if one]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(min(place, len(text)) for place in places)})
    return [text[a:b] for a, b in pairwise(ends)]


@given(
    text=st.text(alphabet="ab \n", max_size=80),
    places=st.lists(st.integers(0, 80), max_size=8),
    separator=st.sampled_from(["\n", "\n\n", "aba"]),
)
def test_documents_do_not_depend_on_how_the_text_arrives(text: str, places: list[int], separator: str) -> None:
    for borders in (Small(), Anywhere()):
        assert documents_of(cut(text, places), separator, borders) == by_definition(text, separator)


@given(text=st.text(alphabet="ab \n", max_size=80), places=st.lists(st.integers(0, 80), max_size=8))
def test_without_a_separator_all_is_one_document(text: str, places: list[int]) -> None:
    assert documents_of(cut(text, places), None) == ([text] if text else [])


def test_pieces_are_cut_at_borders_and_about_as_long_as_asked() -> None:
    text = "one two three four five six seven eight nine ten"
    found = [piece for group in pieces([text[:20], text[20:]], Small(), None) for piece in group.texts]
    assert "".join(found) == text
    assert len(found) > 4
    assert all(piece.startswith(" ") for piece in found[1:])


def test_a_word_longer_than_a_piece_stays_whole() -> None:
    found = [piece for group in pieces(["a " + "b" * 50, "b" * 50 + " c"], Small(), None) for piece in group.texts]
    assert found == ["a", " " + "b" * 100, " c"]


def test_a_text_without_any_border_is_cut_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST", 20)
    found = [piece for group in pieces(["b" * 15] * 4, Small(), None) for piece in group.texts]
    assert "".join(found) == "b" * 60
    assert max(map(len, found)) <= 35


def test_a_long_document_is_never_cut_inside_its_separator() -> None:
    for length in range(1, 30):
        text = "a " * length + "===" + "b c"
        for block in range(1, 6):
            blocks = [text[i : i + block] for i in range(0, len(text), block)]
            for borders in (Small(), Anywhere()):
                assert documents_of(blocks, "===", borders) == ["a " * length + "===", "b c"]
