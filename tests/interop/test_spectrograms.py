"""AST against the transformers library: frames, logits and labels of random models, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification, ASTModel

import qkv
from qkv.data.processors.processor import build_processor
from qkv.interop.load import load_published
from qkv.layers.signal import Signal
from qkv.spec.signals.sound import LogMel, MelPatches
from qkv.system.errors import UserError

SIZES = {
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "num_mel_bins": 26,
    "max_length": 57,
    "patch_size": 6,
    "frequency_stride": 4,
    "time_stride": 4,
}
LABELS = {0: "bark", 1: "meow", 2: "silence"}
RATE = 16_000


def folder(path: Path, model: type[Any] = ASTForAudioClassification, **changed: Any) -> Any:
    """Write a folder with a random model of the library and its feature extractor; return the model."""
    torch.manual_seed(0)
    built = model(ASTConfig(**{**SIZES, **changed})).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    built.save_pretrained(path)
    ASTFeatureExtractor(num_mel_bins=26, max_length=57).save_pretrained(path)
    return built


def samples(seconds: float) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(round(seconds * RATE)) * 0.1).astype(np.float32)


@pytest.mark.parametrize("seconds", [0.3, 2.0], ids=["short", "cut"])
def test_frames_and_logits_equal_those_of_the_library(tmp_path: Path, seconds: float) -> None:
    theirs = folder(tmp_path, id2label=LABELS, qkv_bias=False)
    published = load_published(tmp_path)
    processor = build_processor(published.processor)
    extractor = ASTFeatureExtractor.from_pretrained(tmp_path)
    sound = samples(seconds)
    expected = extractor(sound, sampling_rate=RATE, return_tensors="pt").input_values
    signal = processor.signal([processor.encode((sound, RATE))])
    torch.testing.assert_close(signal.values, expected, atol=2e-5, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(
            published.model.eval()(signal)[0], theirs(input_values=expected).logits, atol=1e-4, rtol=1e-4
        )


def test_vectors_of_a_body(tmp_path: Path) -> None:
    theirs = folder(tmp_path, ASTModel)
    frames = torch.randn(2, 57, 26, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = load_published(tmp_path).model.eval()(Signal(frames))[0]
        torch.testing.assert_close(ours, theirs(input_values=frames).last_hidden_state, atol=1e-4, rtol=1e-4)


def test_an_export_is_read_back(tmp_path: Path) -> None:
    theirs = folder(tmp_path / "folder", id2label=LABELS)
    run = qkv.load(tmp_path / "folder")
    qkv.export(run, tmp_path / "again")
    again = ASTForAudioClassification.from_pretrained(tmp_path / "again").eval()
    frames = torch.randn(1, 57, 26, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(again(input_values=frames).logits, theirs(input_values=frames).logits)
    settings = ASTFeatureExtractor.from_pretrained(tmp_path / "again").to_dict()
    assert settings == ASTFeatureExtractor.from_pretrained(tmp_path / "folder").to_dict()


def test_a_folder_names_a_sound(tmp_path: Path) -> None:
    theirs = folder(tmp_path, id2label=LABELS)
    answer = qkv.predict(qkv.load(tmp_path), (samples(0.4), RATE))[0]
    expected = ASTFeatureExtractor.from_pretrained(tmp_path)(samples(0.4), sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        chosen = int(theirs(**expected).logits.argmax())
    assert answer["answer"] == LABELS[chosen]


def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    folder(tmp_path, time_stride=3)
    with pytest.raises(UserError, match="frequency_stride is 4 and time_stride 3, but qkv supports equal ones only"):
        load_published(tmp_path)
    with pytest.raises(UserError, match="patches need sounds of one number of frames"):
        MelPatches().fitted(LogMel(rate=RATE))
