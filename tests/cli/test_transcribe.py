"""``qkv transcribe``: the forms of a transcript, and one sentence for what it cannot read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runs import speech

import qkv
from qkv.cli.main import main
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.runs.storage.load import load
from qkv.runs.transcription.transcript import Transcript

WAV = sound_bytes(Sound(speech.sound(4.0), speech.RATE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = speech.write(tmp_path_factory.mktemp("whisper"))
    (folder / "talk.wav").write_bytes(WAV)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> Transcript:
    return qkv.transcribe(load(folder), WAV, language="en", word_times=True)


def said(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, sound: str = "talk.wav") -> str:
    place = str(folder / sound) if sound != "-" else sound
    assert main(["transcribe", str(folder), place, "--language", "en", *words]) == 0
    return capsys.readouterr().out


def test_each_form_is_printed(folder: Path, expected: Transcript, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(folder, capsys) == f"{expected.text}\n"
    assert said(folder, capsys, "--format", "srt") == f"{expected.srt()}\n"
    assert said(folder, capsys, "--format", "vtt") == f"{expected.vtt()}\n"
    plain = json.loads(said(folder, capsys, "--format", "json", "--word-times"))
    assert plain == json.loads(json.dumps(expected.to_dict()))


def test_the_suffix_of_a_file_is_its_form(folder: Path, expected: Transcript, tmp_path: Path) -> None:
    for suffix, text in {"srt": expected.srt(), "vtt": expected.vtt(), "txt": f"{expected.text}\n"}.items():
        out = tmp_path / f"talk.{suffix}"
        assert main(["transcribe", str(folder), str(folder / "talk.wav"), "--language", "en", "-o", str(out)]) == 0
        assert out.read_bytes().decode().rstrip() == text.rstrip()  # a random text may hold any character


def test_a_sound_is_read_from_standard_input(
    folder: Path, expected: Transcript, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(WAV)))
    assert said(folder, capsys, "--format", "srt", sound="-") == f"{expected.srt()}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("talk.wav", "--format", "mp3"), "--format: 'mp3' given; allowed: json, srt, text, vtt"),
        (("talk.wav", "--language", "xx"), "the model has no language 'xx'; allowed: de, en"),
        (("talk.wav", "--task", "sing"), "--task:"),
        (("talk.wav", "--batch", "0"), "--batch: 0 given"),
        (("config.json",), "is no sound file that can be read"),
        (("nowhere.wav",), "there is no sound file"),
        (("talk.wav", "--out", "nowhere/talk.srt"), "there is no folder"),
    ],
)
def test_one_sentence_for_what_is_wrong(
    folder: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(folder), str(folder / words[0]), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
