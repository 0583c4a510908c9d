"""Speech from text: rows of codes, delays, sampling against a loop, pieces, voices, files and server."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from openai import BadRequestError
from tests.serving.conftest import serving
from tests.tasks.sound.tones import RATE, quiet, tone
from tests.tasks.sound.tones import recipe as codec_recipe
from tests.tasks.sound.tones import trained as trained_codec

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.cli.main import main
from qkv.data.processors.speech import row_of
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import sound_bytes
from qkv.generation.codes import CodeSampling
from qkv.models.build import build
from qkv.runs.sound.speech import Speaker
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

WORDS = ("low", "high")
GREEDY = Generation(temperature=0.0, max_new_tokens=12)


def spoken() -> dict[str, list[Any]]:
    """Two words of two voices: a low or a high tone, short or long."""
    rows: dict[str, list[Any]] = {"sound": [], "text": [], "voice": []}
    for i in range(32):
        word, voice = i % 2, i // 2 % 2
        rows["sound"].append((tone(0.08 + 0.04 * voice, 150 + 400 * word), RATE))
        rows["text"].append(WORDS[word].upper() if i % 8 == 0 else WORDS[word])
        rows["voice"].append(("ann", "bob")[voice])
    return rows


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("codec") / "run"
    quantizer = {"kind": "scalar", "codebooks": 3, "levels": [3, 3]}
    trained_codec(codec_recipe(quantizer=quantizer), folder, steps=80, validation={"every": 40})
    return folder


def speech_recipe(codec: Path, **processor: Any) -> dict[str, Any]:
    return {
        "data": {"source": "words", "processor": {"kind": "speech_codes", "run": str(codec), **processor}},
        "task": "speech",
        "model": {
            "width": 16,
            "context_length": 64,
            "frontend": {"kind": "speech_codes", "positions": "none"},
            "blocks": [{"branches": ["attention(2, relative=rope)", "feed_forward(32)"]}],
            "head": "speech_codes",
        },
        "training": {
            "steps": 40,
            "batch_size": 8,
            "optimizer": {"kind": "adamw", "lr": 1e-2},
            "validation": {"every": 20},
        },
        "sample": {"max_new_tokens": 20, "temperature": 0.7},
    }


@pytest.fixture(scope="module")
def run(codec: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("speech") / "run"
    return qkv.train(Recipe.parse(speech_recipe(codec, codebooks=2)), folder, data=spoken(), on_event=quiet)


def test_a_row_holds_symbols_then_delayed_codes_and_the_end() -> None:
    codes = np.array([[3, 4], [5, 6], [7, 8]])
    assert row_of([1, 0], codes, delay=False).tolist() == [
        [2, 0, 0],
        [1, 0, 0],
        [0, 4, 5],
        [0, 6, 7],
        [0, 8, 9],
        [0, -1, 0],
    ]
    assert row_of([1], codes, delay=True).tolist() == [[2, 0, 0], [0, 4, 0], [0, 6, 5], [0, 8, 7], [0, -1, 9]]


@pytest.mark.parametrize("delay", [True, False])
def test_sampling_equals_a_loop_over_whole_rows(delay: bool) -> None:
    spec = Model.parse(
        {
            "width": 16,
            "context_length": 64,
            "frontend": {"kind": "speech_codes", "symbols": 6, "codebooks": 3, "codes": 4, "positions": "none"},
            "blocks": [{"branches": ["attention(2, relative=rope)", "feed_forward(32)"]}],
            "head": {"kind": "speech_codes", "codebooks": 3, "codes": 4},
            "init_std": 0.5,
        }
    )
    for seed in range(4):
        model = build(spec, seed).eval()
        prompts = [torch.tensor([[3, 0, 0, 0], [5, 0, 0, 0], [6, 0, 0, 0]]), torch.tensor([[1, 0, 0, 0], [6, 0, 0, 0]])]
        sampling = CodeSampling(model, prompts, GREEDY, delay)
        while sampling.running:
            sampling.step()
        for row, prompt in enumerate(prompts):
            assert sampling.codes(row).tolist() == reference(model, prompt, delay).tolist()


@torch.no_grad()
def reference(model: Any, prompt: torch.Tensor, delay: bool) -> torch.Tensor:
    """Codes (T, 3) of greedy sampling, one position at a time, each after a pass over all before it."""
    rows, length, steps = prompt.clone(), None, []
    for step in range(GREEDY.max_new_tokens):
        if length is not None and step >= length + 2 * delay:
            break
        logits = model(qkv.Signal(rows[None]))[0][0, -1]
        logits[1:, 4] = -torch.inf
        if step == 0:
            logits[0, 4] = -torch.inf
        codes = logits.argmax(-1)
        if length is None and int(codes[0]) == 4:
            length = step
        known = [book * delay <= step < (step + 1 if length is None else length) + book * delay for book in range(3)]
        codes = torch.tensor([int(code) if use else -1 for code, use in zip(codes, known, strict=True)])
        steps.append(codes)
        rows = torch.cat((rows, torch.cat((torch.zeros(1, dtype=torch.long), codes + 1))[None]))
    columns = torch.stack(steps)
    count = len(columns) - 2 * delay if length is None else min(length, len(columns) - 2 * delay)
    return torch.stack([columns[book * delay : book * delay + max(0, count), book] for book in range(3)], 1)


def test_training_learns_codes_and_shows_players(run: Any) -> None:
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["loss"] < figures["loss_of_code_frequencies"]
    assert run.vocabulary.processor.voices == ("ann", "bob")
    assert run.vocabulary.processor.characters == tuple(sorted(set("lowhigh")))
    assert (Path(run.folder) / "report.html").read_text().count("<audio") == 8


def test_speech_depends_on_seed_and_voice_and_comes_in_equal_pieces(run: Any) -> None:
    speaker = Speaker(run)
    settings = speaker.settings(seed=3)
    whole = speaker.say("high", "bob", settings).samples
    pieces = list(speaker.pieces("high", "bob", settings, 2))
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)
    assert len(pieces) > 1
    assert len(whole) % 10 == 0
    again = qkv.say(run, "HIGH", "bob", seed=3)
    assert again.rate == RATE
    np.testing.assert_array_equal(again.samples, whole)
    lines = [(text, voice, seed) for text in WORDS for voice in ("ann", "bob") for seed in (1, 2, 3, 4)]
    heard = {tuple(qkv.say(run, text, voice, seed=seed, temperature=2.0).samples) for text, voice, seed in lines}
    assert len(heard) > 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fox", None), "has the character 'f', which the model was not trained on; it reads 'ghilow'"),
        (("", None), "the text to say is empty"),
        (("low", "bod"), "the model has no voice 'bod'; did you mean 'bob'"),
    ],
)
def test_what_cannot_be_said_is_refused(arguments: tuple[str, str | None], sentence: str, run: Any) -> None:
    with pytest.raises(UserError) as refusal:
        qkv.say(run, *arguments)
    assert sentence in str(refusal.value)


def test_commands_write_sounds_and_codes(run: Any, codec: Path, tmp_path: Path, capsys: Any) -> None:
    folder, clip = str(run.folder), tmp_path / "low.wav"
    for name in ("low.wav", "low.flac"):
        assert main(["say", folder, "low", "--voice", "ann", "--seed", "1", "--out", str(tmp_path / name)]) == 0
    with wave.open(str(clip)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
    np.testing.assert_allclose(soundfile.read(tmp_path / "low.flac", dtype="int16")[0], samples, atol=1)
    assert f"{len(samples) / RATE:.2f} s at 2,000 Hz" in capsys.readouterr().out
    assert main(["compress", str(codec), str(clip), "--out", str(tmp_path / "low.npz"), "--codebooks", "2"]) == 0
    assert main(["compress", str(codec), str(tmp_path / "low.npz"), "--out", str(tmp_path / "again.wav")]) == 0
    coded = qkv.compress(codec, str(clip), 2)
    assert coded.codes.shape == (-(-len(samples) // 10), 2)
    decoded = qkv.decompress(codec, coded)
    assert len(decoded.samples) == len(samples)
    again = soundfile.read(tmp_path / "again.wav", dtype="float32")[0]
    np.testing.assert_allclose(again, decoded.samples.clip(-1, 1), atol=1e-4)
    for command, sentence in (
        (["say", folder, "low", "--out", str(tmp_path / "low.txt")], "a sound cannot be written as 'txt'"),
        (["say", str(codec), "low"], "does not speak"),
        (["compress", folder, str(clip), "--out", str(tmp_path / "x.npz")], "; name a neural codec"),
        (["compress", str(codec), str(clip), "--out", str(tmp_path / "x.wav")], "one of the two files holds codes"),
        (["compress", str(codec), str(clip), "--out", str(tmp_path / "x.npz"), "--codebooks", "9"], "has 1 to 3"),
        (["compress", str(codec), str(tmp_path / "none.wav"), "--out", str(tmp_path / "x.npz")], "there is no file"),
    ):
        assert main(command) == 2
        assert sentence in capsys.readouterr().err
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no codes")
    assert main(["compress", str(codec), str(tmp_path / "bad.npz"), "--out", str(tmp_path / "x.wav")]) == 2
    assert "holds no codes of a sound" in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists()
    assert not (tmp_path / "x.wav").exists()


def test_codes_of_another_codec_are_refused(codec: Path) -> None:
    coded = qkv.compress(codec, (tone(0.1, 200), RATE))
    with pytest.raises(UserError, match="this codec has 3 of 9 codes at 2,000 Hz"):
        qkv.decompress(codec, coded._replace(codes=coded.codes + 9))


def test_the_official_client_hears_speech(run: Any) -> None:
    with serving({"voice": run}) as server:
        client = server.client()
        request: dict[str, Any] = {"model": "voice", "input": "high", "voice": "bob", "extra_body": {"seed": 3}}
        whole = qkv.say(run, "high", "bob", seed=3).samples
        answer = client.audio.speech.create(**request, response_format="wav")
        samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
        assert rate == RATE
        np.testing.assert_allclose(samples, whole.clip(-1, 1), atol=1e-4)
        flac = soundfile.read(io.BytesIO(client.audio.speech.create(**request, response_format="flac").content))[0]
        np.testing.assert_allclose(flac, samples, atol=1e-4)
        with client.audio.speech.with_streaming_response.create(**request, response_format="pcm") as stream:
            pcm = np.frombuffer(b"".join(stream.iter_bytes()), "<i2")
        np.testing.assert_allclose(pcm / 32767, whole.clip(-1, 1), atol=1e-4)
        with pytest.raises(BadRequestError, match="no voice 'alloy'"):
            client.audio.speech.create(**{**request, "voice": "alloy"})
        with pytest.raises(BadRequestError, match="which the model was not trained on"):
            client.audio.speech.create(**{**request, "input": "fox"})
        assert "speech" in client.models.retrieve("voice").model_dump()["capabilities"]


def test_a_recipe_needs_a_codec(codec: Path, tmp_path: Path) -> None:
    rows = spoken()
    lines = ["sound,text,voice"]
    for i, (samples, rate) in enumerate(rows["sound"]):
        (tmp_path / f"{i}.wav").write_bytes(sound_bytes(Sound(samples, rate)))
        lines.append(f"{i}.wav,{rows['text'][i]},{rows['voice'][i]}")
    (tmp_path / "words.csv").write_text("\n".join(lines) + "\n")
    data = {"source": str(tmp_path / "words.csv")}
    with pytest.raises(UserError, match="name one with --codec RUN"):
        automatic_task("speech", data)
    chosen = automatic_task("speech", data, [f"data.processor.run={codec}"])
    assert "29 sounds, 3 codebooks of the codec" in chosen.description
    with pytest.raises(UserError, match=r"the codec in .* has 3; give at most as many"):
        qkv.train(Recipe.parse(speech_recipe(codec, codebooks=9)), tmp_path / "run", data=rows, on_event=quiet)
