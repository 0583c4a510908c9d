"""wav2vec 2.0 and its relatives against the transformers library: logits, transcriptions, folders both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.cases.sounds import SIZES
from torch import Tensor
from transformers import (
    HubertConfig,
    HubertForCTC,
    UniSpeechConfig,
    UniSpeechForCTC,
    UniSpeechSatConfig,
    UniSpeechSatForSequenceClassification,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2ForCTC,
    Wav2Vec2ForPreTraining,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2Model,
    WavLMConfig,
    WavLMForCTC,
)

from qkv.interop.load import load_published
from qkv.interop.save import save_published, save_tokenizer
from qkv.layers.signal import Signal
from qkv.spec.heads import CTCHead
from qkv.spec.model import Model
from qkv.spec.signals.sound import WaveConvolutions
from qkv.spec.tokenizers import Characters
from qkv.tasks.sound.search import greedy
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.train import train

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYER = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
MODELS: dict[str, tuple[type[Any], Any]] = {
    "wav2vec2": (Wav2Vec2ForCTC, Wav2Vec2Config(**SIZES)),
    "wav2vec2, layer norms": (Wav2Vec2ForCTC, Wav2Vec2Config(**SIZES, **LAYER, pad_token_id=3)),
    "wav2vec2, body": (Wav2Vec2Model, Wav2Vec2Config(**{**SIZES, "num_conv_pos_embeddings": 5, "mask_time_prob": 0.1})),
    "wav2vec2, classes": (Wav2Vec2ForSequenceClassification, Wav2Vec2Config(**SIZES, classifier_proj_size=6)),
    "hubert": (HubertForCTC, HubertConfig(**SIZES, feat_proj_layer_norm=False)),
    "unispeech": (UniSpeechForCTC, UniSpeechConfig(**SIZES)),
    "unispeech-sat, layer norms": (
        UniSpeechSatForSequenceClassification,
        UniSpeechSatConfig(**SIZES, **LAYER, classifier_proj_size=5),
    ),
    "wavlm": (WavLMForCTC, WavLMConfig(**SIZES, num_buckets=8, max_bucket_distance=9)),
    "wavlm, layer norms": (WavLMForCTC, WavLMConfig(**SIZES, **LAYER, num_buckets=12, max_bucket_distance=20)),
    "hubert, layer norms": (HubertForCTC, HubertConfig(**SIZES, **LAYER)),
}


def answer(model: Any, samples: Tensor, **given: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = model(samples, **given)
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def random_model(name: str, folder: Path) -> Any:
    """A model of the other library with random weights, saved in a folder."""
    kind, config = MODELS[name]
    torch.manual_seed(len(name))
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_transcriptions_are_those_of_the_other_library(name: str, tmp_path: Path) -> None:
    theirs = random_model(name, tmp_path / "theirs")
    published = load_published(tmp_path / "theirs")
    assert not published.ignored
    samples = torch.randn(2, 300)
    expected = answer(theirs, samples)
    with torch.no_grad():
        outputs = published.model(Signal(samples))[0]
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
    if isinstance(published.spec.head, CTCHead):
        blank = theirs.config.pad_token_id
        ids = expected.argmax(-1)
        for row, logits in zip(ids.tolist(), outputs.numpy(), strict=True):
            changes = [a for a, b in zip(row, [-1, *row], strict=False) if a != b]
            assert list(greedy(logits, blank).tokens) == [token for token in changes if token != blank]
    save_published(published.model, tmp_path / "ours", family=published.family, kept=published.kept)
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[kind] for kind in ("unexpected_keys", "mismatched_keys", "missing_keys"))
    torch.testing.assert_close(answer(again.eval(), samples), expected, rtol=1e-4, atol=1e-4)


def test_rows_of_several_lengths_are_those_of_the_other_library(tmp_path: Path) -> None:
    theirs = random_model("wav2vec2, layer norms", tmp_path)
    model, lengths = load_published(tmp_path).model, torch.tensor([300, 190])
    samples = torch.randn(2, 300) * (torch.arange(300) < lengths[:, None])
    expected = answer(theirs, samples, attention_mask=(torch.arange(300) < lengths[:, None]).long())
    with torch.no_grad():
        outputs = model(Signal(samples, lengths))[0]
    count = model.frontend.lengths(Signal(samples, lengths))
    for row in range(2):
        torch.testing.assert_close(outputs[row, : count[row]], expected[row, : count[row]], rtol=1e-4, atol=1e-4)


def test_a_pretrained_model_without_its_quantiser_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = Wav2Vec2ForPreTraining(Wav2Vec2Config(**SIZES, codevector_dim=8, num_codevectors_per_group=4)).eval()
    theirs.save_pretrained(tmp_path)
    samples = torch.randn(1, 300)
    with torch.no_grad():
        expected = theirs.wav2vec2(samples).last_hidden_state
        torch.testing.assert_close(load_published(tmp_path).model(Signal(samples))[0], expected, rtol=1e-4, atol=1e-4)


def test_characters_of_a_folder_are_read_as_the_other_library_reads_them(tmp_path: Path) -> None:
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABC'", "é"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    theirs = Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in ("AB CAB", "A'BÉé", "x A"):
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids
        assert ours.decode(ids, skip_special=True).strip() == theirs.decode(
            ids, group_tokens=False, skip_special_tokens=True
        )


def test_characters_of_a_run_are_read_by_the_other_library(tmp_path: Path) -> None:
    ours = train(Characters(), ["a bc", "dé"])
    spec = Model(frontend=WaveConvolutions(), head=CTCHead(num_classes=7, blank=6))
    save_tokenizer(tmp_path, ours, spec)
    theirs = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    assert theirs("ab dé").input_ids == ours.encode("ab dé")
    assert theirs.pad_token_id == 6
    assert Tokenizer.load(tmp_path).encode("ab dé") == ours.encode("ab dé")
