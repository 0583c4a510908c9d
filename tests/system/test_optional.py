"""Optional paths are turned off by name."""

from __future__ import annotations

import pytest

from qkv.system import optional
from qkv.system.errors import UserError


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(optional.VARIABLE, raising=False)


def off() -> list[str]:
    return [path for path in optional.PATHS if optional.turned_off(path)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", []),
        (" , ", []),
        ("bf16", ["bf16"]),
        ("graphs, onednn", ["onednn", "graphs"]),
        ("native", ["native", "tiles"]),  # which are a part of the native library
        ("bf16,all", list(optional.PATHS)),
    ],
)
def test_paths_are_turned_off_by_name(monkeypatch: pytest.MonkeyPatch, given: str, expected: list[str]) -> None:
    monkeypatch.setenv(optional.VARIABLE, given)
    assert off() == expected
    assert {optional.turned_off(path) for path in expected} <= {f"QKV_WITHOUT={given}"}


def test_an_unknown_name_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(optional.VARIABLE, "native,one-dnn")
    with pytest.raises(UserError, match=r"QKV_WITHOUT: there is no optional path 'one-dnn'; choose from native, .*all"):
        optional.turned_off("native")
