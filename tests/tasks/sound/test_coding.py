"""Neural codecs of sound: distances against loops, training, bit rates, report, codes and back."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tasks.sound.tones import RATE, clips, recipe, tone, trained

import qkv
from qkv.choosing.automatic_task import automatic_task
from qkv.data.features.mel import mel_filters
from qkv.data.processors.codec import Codec
from qkv.data.processors.image_codes import Autoencoder
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import as_uri, read_sound, sound_bytes
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.system.errors import UserError
from qkv.tasks.sound.coding import excerpts, rates_of
from qkv.tasks.sound.wave_distances import (
    WINDOWS,
    distortion_ratios,
    log_bands,
    mel_distances,
    relative_errors,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(recipe(), tmp_path_factory.mktemp("runs") / "codec")


def test_the_mel_distance_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    y, x = rng.normal(size=(2, 300)) * 0.1
    total = []
    for window in WINDOWS:
        filters = mel_filters(RATE, window, min(80, 5 * window // 32), "slaney", 0.0, RATE / 2)
        weights = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
        levels = []
        for samples in (y, x):
            wide = np.pad(samples, window // 2)
            starts = range(0, len(wide) - window + 1, window // 4)
            power = [np.abs(np.fft.rfft(wide[start : start + window] * weights)) ** 2 for start in starts]
            levels.append(np.log10(np.maximum(np.sqrt(np.array(power) + 1e-10) @ filters, 1e-5)))
        total.append(np.abs(levels[0] - levels[1]).mean())
    found = mel_distances(*(torch.from_numpy(each.astype(np.float32))[None] for each in (y, x)), RATE)
    assert float(found) == pytest.approx(float(np.mean(total)), rel=1e-3)
    assert log_bands(torch.zeros(1, 100), RATE, 64).min() == -5


def test_the_ratio_ignores_scale_and_offset() -> None:
    rng = np.random.default_rng(2)
    x, noise = (torch.from_numpy(rng.normal(size=(1, 4000))) for _ in range(2))
    x, noise = x - x.mean(), noise - noise.mean()
    noise = noise - (noise * x).sum() / x.square().sum() * x
    wanted = 10 * math.log10(float(x.square().sum() / (0.1 * noise).square().sum()))
    assert float(distortion_ratios(3 * (x + 0.1 * noise) + 0.5, x)) == pytest.approx(wanted, abs=1e-6)
    assert math.isnan(float(distortion_ratios(x, torch.zeros_like(x))))


def test_the_relative_error_counts_quiet_rows_as_much_as_loud_ones() -> None:
    rng = np.random.default_rng(3)
    y, x = rng.normal(size=(2, 2, 50))
    wanted = [
        sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) / sum(b * b for b in pair[1])
        for pair in zip(y, x, strict=True)
    ]
    found = relative_errors(torch.from_numpy(y), torch.from_numpy(x))
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    np.testing.assert_allclose(relative_errors(torch.from_numpy(0.2 * y), torch.from_numpy(0.2 * x)), wanted, rtol=1e-2)
    assert float(relative_errors(torch.full((1, 9), 0.02), torch.zeros(1, 9))) == pytest.approx(4)


def test_excerpts_lie_inside_of_their_sounds() -> None:
    rows = torch.arange(1.0, 11.0).repeat(2, 1)
    rows[1, 4:] = 0.0
    rng, starts = np.random.default_rng(0), set[float]()
    for _ in range(40):
        found = excerpts(Signal(rows, torch.tensor([10, 4])), 6, rng).values
        assert found.shape == (2, 6)
        assert torch.equal(found[0], torch.arange(float(found[0, 0]), float(found[0, 0]) + 6))
        assert found[1].tolist() == [1, 2, 3, 4, 0, 0]
        starts.add(float(found[0, 0]))
    assert starts == {1, 2, 3, 4, 5}
    assert rates_of(1) == [1]
    assert rates_of(6) == [1, 2, 4, 6]


def test_training_lowers_the_distance_and_reports_bit_rates_with_players(run: Any) -> None:
    evaluation = run.evaluation["splits"]["validation"]
    figures = evaluation["figures"]
    assert figures["mel_distance"] < figures["mel_distance_of_silence"]
    assert figures["bits_per_second"] == pytest.approx(4 * math.log2(1000) * RATE / 10)
    assert 0 < figures["codes_used"] <= 100
    rates = next(section for section in evaluation["sections"] if section["title"] == "Bit rates")
    assert [row[0] for row in rates["rows"]] == [1, 2, 4]
    page = (Path(run.folder) / "report.html").read_text()
    assert len(re.findall(r'<audio controls="controls" preload="none" src="data:audio/wav;base64,', page)) == 2 * 4


def test_codes_of_a_sound_do_not_depend_on_the_others_and_decode_to_its_length(run: Any) -> None:
    codec = Codec.read(str(run.folder))
    sounds = [tone(seconds, 200) for seconds in (0.05, 0.31, 0.2)]
    together = codec.codes(sounds)
    for sound, codes in zip(sounds, together, strict=True):
        assert codes.shape == (-(-len(sound) // 10), 4)
        assert np.array_equal(codec.codes([sound])[0], codes)
        assert np.array_equal(codec.codes([sound], 2)[0], codes[:, :2])
    decoded = codec.decoded([codes[:, :2] for codes in together])
    assert [len(each) for each in decoded] == [10 * len(codes) for codes in together]
    (alone,) = codec.decoded([together[0][:, :2]])
    np.testing.assert_allclose(decoded[0], alone, atol=1e-6)
    with pytest.raises(UserError, match="with the head 'wave_decoder'; name an autoencoder of images"):
        Autoencoder.read(str(run.folder))
    (answer,) = qkv.predict(run, {"sound": (sounds[1], RATE)})
    assert answer["codes"] == together[1].tolist()


def test_residual_codebooks_resume_bit_for_bit(tmp_path: Path) -> None:
    spec = recipe(quantizer={"kind": "residual", "codes": 8, "codebooks": 2})
    whole = trained(spec, tmp_path / "whole").model.state_dict()
    trained(spec, tmp_path / "parts", steps=6)
    resumed = trained(spec, tmp_path / "parts").model.state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
    assert float(whole["head.quantizer.books.1.counts"].sum()) > 0


SPECTRUM = {"kind": "spectrum_decoder", "frames": 1, "hop": 8}
WAVE = {"kind": "wave_decoder", "network": {"channels": 4, "strides": [2, 4]}}


@pytest.mark.parametrize(
    ("head", "lookahead"),
    [
        ({**SPECTRUM, "decoder": {"blocks": [{"branches": ["causal_convolution(2)"]}]}}, 12),
        ({**SPECTRUM, "decoder": {"blocks": [{"branches": ["convolution(3)"]}]}}, None),
        (WAVE, 0),
        ({**WAVE, "network": {**WAVE["network"], "causal": False}}, None),
    ],
)
def test_earlier_codes_alone_give_all_but_the_samples_ahead(head: dict[str, Any], lookahead: int | None) -> None:
    model = {**recipe()["model"], "frontend": {"kind": "spectra", "hop": 8, "frames": 1}, "head": head}
    decoder: Any = build(Model.parse(model).changed(init_std=0.5), 1).eval().head
    ids = torch.randint(1000, (1, 6, 4), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, part = decoder.samples(ids), decoder.samples(ids[:, :4])
    assert whole.shape == (1, 48)
    assert decoder.lookahead == lookahead
    end = 32 - (lookahead or 0)
    assert torch.allclose(whole[:, :end], part[:, :end], atol=1e-6) == (lookahead is not None)
    if lookahead:
        assert not torch.allclose(whole[:, end:32], part[:, end:32], atol=1e-6)


def test_a_codec_by_spectra_learns_and_codes_alike_in_every_batch(tmp_path: Path) -> None:
    model = {
        **recipe()["model"],
        "frontend": {"kind": "spectra", "hop": 16, "frames": 2},
        "blocks": [{"branches": ["convolution(3)"]}],
        "head": {"kind": "spectrum_decoder", "frames": 2},
    }
    run = trained({**recipe(), "model": model}, tmp_path / "run")
    figures = run.evaluation["splits"]["validation"]["figures"]
    assert figures["mel_distance"] < figures["mel_distance_of_silence"]
    codec = Codec.read(str(run.folder))
    sounds = [tone(seconds, 200) for seconds in (0.05, 0.31, 0.2)]
    together = codec.codes(sounds)
    assert [len(codes) for codes in together] == [-(-len(sound) // 16) for sound in sounds]
    decoded = codec.decoded(together)
    errors = [
        mel_distances(torch.from_numpy(y[: len(x)])[None], torch.from_numpy(x)[None], RATE)
        for y, x in zip(decoded, sounds, strict=True)
    ]
    assert float(torch.cat(errors).mean()) < figures["mel_distance_of_silence"]
    (answer,) = qkv.predict(run, {"sound": (sounds[1], RATE)})
    assert answer["codes"] == together[1].tolist()
    assert all(np.array_equal(codec.codes([each])[0], codes) for each, codes in zip(sounds, together, strict=True))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"head": {"kind": "codebook"}}, "a codec of sound needs 'wave_decoder' or 'spectrum_decoder', not 'codebook'"),
        (
            {"frontend": {"kind": "wave_convolutions", "groups": 2}},
            "a codec of sound needs 'wave_encoder' or 'spectra'",
        ),
        (
            {"head": {"kind": "wave_decoder", "network": {"strides": [2, 2]}}},
            "the strides give 4 samples a vector, but those of the front end 10",
        ),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    spec = recipe()
    with pytest.raises((SpecError, UserError), match=re.escape(sentence)):
        trained({**spec, "model": {**spec["model"], **changed}}, tmp_path / "run")


def test_a_recipe_is_chosen_for_clips(tmp_path: Path) -> None:
    for i, (samples, rate) in enumerate(clips()["sound"]):
        (tmp_path / f"{i}.wav").write_bytes(sound_bytes(Sound(samples, rate)))
    (tmp_path / "clips.csv").write_text("sound\n" + "".join(f"{i}.wav\n" for i in range(24)))
    chosen = automatic_task("autoencoding", {"source": str(tmp_path / "clips.csv")})
    assert chosen.data.processor is not None
    assert chosen.data.processor.rate == RATE  # type: ignore[attr-defined]
    assert chosen.model.frontend.hop == 40  # type: ignore[attr-defined]
    assert "22 sounds at 2,000 Hz, 50 vectors a second" in chosen.description


def test_a_sound_in_memory_is_written_without_the_time() -> None:
    samples = np.linspace(-1.5, 1.5, 7).astype(np.float32)
    uri = as_uri((samples, RATE))
    found = read_sound(uri)
    assert (found.rate, found.samples.tolist()) == (RATE, samples.tolist())
    assert b"PEAK" not in base64.b64decode(uri.partition(",")[2])
