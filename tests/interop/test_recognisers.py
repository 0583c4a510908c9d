"""Moonshine, Parakeet CTC and classifiers of sound against the transformers library: folders, clips, texts, classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.interop.cases.sounds import MOONSHINE, PARAKEET, SIZES
from tests.runs import speech
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    Data2VecAudioConfig,
    Data2VecAudioForSequenceClassification,
    HubertConfig,
    HubertForSequenceClassification,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetProcessor,
    ParakeetTokenizer,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    WavLMConfig,
    WavLMForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
)

import qkv
from qkv.data.processors.processor import build_processor
from qkv.interop.check import compare
from qkv.interop.load import load_published
from qkv.interop.save import save_published
from qkv.interop.sounds import read_sound_processor
from qkv.layers.signal import Signal
from qkv.runs.storage.load import load
from qkv.system.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LABELS = {"id2label": {0: "yes", 1: "no", 2: "up"}, "label2id": {"yes": 0, "no": 1, "up": 2}}
CLASSES = {**SIZES, "classifier_proj_size": 6, **LABELS}
_STACKS = {
    f"{stack}_{key}": size
    for stack in ("encoder", "decoder")
    for key, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 50}.items()
}
WHISPER = WhisperConfig(
    d_model=32,
    num_mel_bins=20,
    max_source_positions=100,
    classifier_proj_size=10,
    activation_function="relu",
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1),
    **_STACKS,
    **LABELS,
)
CLASSIFIERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "whisper": (
        lambda: WhisperForAudioClassification(WHISPER),
        WhisperFeatureExtractor(feature_size=20, chunk_length=2),
    ),
    "wav2vec2": (lambda: Wav2Vec2ForSequenceClassification(Wav2Vec2Config(**CLASSES)), Wav2Vec2FeatureExtractor()),
    "hubert": (lambda: HubertForSequenceClassification(HubertConfig(**CLASSES)), Wav2Vec2FeatureExtractor()),
    "wavlm": (lambda: WavLMForSequenceClassification(WavLMConfig(**CLASSES)), Wav2Vec2FeatureExtractor()),
    "data2vec": (
        lambda: Data2VecAudioForSequenceClassification(
            Data2VecAudioConfig(**{**CLASSES, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 5})
        ),
        Wav2Vec2FeatureExtractor(),
    ),
}


def varied(model: Any) -> Any:
    """The model with weights so large that texts differ from clip to clip."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape)
        for name, buffer in model.named_buffers():
            if "running_" in name:
                buffer += torch.rand(buffer.shape)
    return model.eval()


def pieces(*specials: str) -> Tokenizer:
    """Pieces of words, as SentencePiece has them."""
    words = [*specials, "▁", *"abcdefgh", "▁a", "▁de", "bc"]
    core = Tokenizer(models.Unigram([(word, -float(i + 1)) for i, word in enumerate(words)], unk_id=0))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    core.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in specials])
    return core


def clips() -> list[np.ndarray]:
    return [speech.sound(seconds, seed) for seed, seconds in enumerate((1.3, 0.7, 0.45))]


def texts(folder: Path) -> list[str]:
    run = load(folder)
    return [qkv.transcribe(run, (clip, speech.RATE), guard=False).text.strip() for clip in clips()]


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder, core = tmp_path_factory.mktemp("moonshine"), pieces("<unk>", "<s>", "</s>")
    torch.manual_seed(0)
    config = MoonshineConfig(**{**MOONSHINE, "vocab_size": core.get_vocab_size()})
    model = varied(MoonshineForConditionalGeneration(config))
    model.generation_config.max_length = 20
    model.save_pretrained(folder)
    core.save(str(folder / "tokenizer.json"))
    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(folder)
    return folder, model


@pytest.fixture(scope="module")
def parakeet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder, core = tmp_path_factory.mktemp("parakeet"), pieces("<unk>")
    core.add_special_tokens([AddedToken("<pad>", special=True, normalized=False)])
    count = core.get_vocab_size()
    torch.manual_seed(0)
    model = varied(ParakeetForCTC(ParakeetCTCConfig(vocab_size=count, pad_token_id=count - 1, encoder_config=PARAKEET)))
    model.save_pretrained(folder)
    tokenizer = ParakeetTokenizer(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>")
    processor = ParakeetProcessor(ParakeetFeatureExtractor(feature_size=PARAKEET["num_mel_bins"]), tokenizer)
    processor.save_pretrained(folder)
    return folder, model, processor


def their_text(model: Any, core: Tokenizer, clip: np.ndarray) -> str:
    return core.decode(model.generate(torch.tensor(clip)[None])[0].tolist()).strip()


def test_moonshine_transcribes_as_the_other_library(moonshine: tuple[Path, Any]) -> None:
    folder, model = moonshine
    core = pieces("<unk>", "<s>", "</s>")
    expected = [their_text(model, core, clip) for clip in clips()]
    assert len(set(expected)) > 1
    assert texts(folder) == expected


def test_rows_of_moonshine_are_those_of_each_clip_alone(moonshine: tuple[Path, Any]) -> None:
    """The other library counts padding in the norm of the front end, so its rows are read one by one."""
    folder, model = moonshine
    published = load_published(folder)
    assert published.processor is not None
    signal, ids = build_processor(published.processor).signal(clips()), torch.tensor([[1, 5, 7, 4]])
    assert signal.lengths is not None
    with torch.no_grad():
        memory = published.model.encode(signal)
        ours = published.model(ids.expand(3, -1), memory=memory)[0]
        for row, clip in enumerate(clips()):
            expected = model(torch.tensor(clip)[None], decoder_input_ids=ids).logits[0]
            torch.testing.assert_close(ours[row], expected, rtol=1e-4, atol=1e-4)


def test_an_export_of_moonshine_is_compared_and_transcribes(moonshine: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = moonshine
    found = load_published(folder)
    save_published(found.model, tmp_path, found.tokenizer, processor=found.processor, begin=found.begin)
    assert "differs by" in compare(found.model, tmp_path)
    again = MoonshineForConditionalGeneration.from_pretrained(tmp_path).eval()
    again.generation_config.max_length = 20
    core = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert their_text(again, core, clips()[0]) == their_text(model, core, clips()[0])
    assert read_sound_processor(tmp_path, found.spec) == found.processor


@pytest.mark.parametrize(
    ("key", "value"),
    [("decoder_num_attention_heads", 3), ("encoder_num_key_value_heads", 1), ("decoder_num_key_value_heads", 1)],
)
def test_numbers_of_heads_that_differ_are_refused(
    moonshine: tuple[Path, Any], tmp_path: Path, key: str, value: int
) -> None:
    changed(moonshine[0], tmp_path, {key: value})
    with pytest.raises(UserError, match=f"{key} is {value} and encoder_num_attention_heads 2"):
        load_published(tmp_path)


def changed(folder: Path, place: Path, keys: dict[str, Any], file: str = "config.json") -> None:
    """Copy a folder with other values of keys, also of its encoder's."""
    for each in folder.iterdir():
        (place / each.name).write_bytes(each.read_bytes())
    table = json.loads((place / file).read_text())
    for part in (table, *(value for value in table.values() if isinstance(value, dict))):
        part.update({key: value for key, value in keys.items() if key in part})
    (place / file).write_text(json.dumps(table))


def test_parakeet_transcribes_as_the_other_library(parakeet: tuple[Path, Any, Any]) -> None:
    folder, model, processor = parakeet
    inputs = processor(clips(), sampling_rate=speech.RATE)
    expected = processor.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    assert len(set(expected)) > 1
    assert texts(folder) == [text.strip() for text in expected]


def test_frames_and_rows_of_parakeet_are_those_of_the_other_library(parakeet: tuple[Path, Any, Any]) -> None:
    """In noise: where a power is near 0, single precision, which the other library has, rounds its logarithm."""
    folder, model, processor = parakeet
    rng = np.random.default_rng(0)
    several = [0.1 * rng.standard_normal(size).astype(np.float32) for size in (9000, 5000, 1700)]
    published = load_published(folder)
    assert published.processor is not None
    signal = build_processor(published.processor).signal(several)
    inputs = processor.feature_extractor(several, sampling_rate=speech.RATE, return_tensors="pt")
    assert signal.lengths is not None
    assert signal.lengths.tolist() == inputs["attention_mask"].sum(1).tolist()
    frames = inputs["input_features"][:, : signal.values.shape[1]]
    torch.testing.assert_close(signal.values, frames, rtol=0, atol=1e-4)
    with torch.no_grad():
        ours, expected = published.model(signal)[0], model(**inputs).logits
    counts = published.model.frontend.lengths(signal)
    assert counts is not None
    for row, count in enumerate(counts.tolist()):
        torch.testing.assert_close(ours[row, :count], expected[row, :count], rtol=1e-3, atol=1e-3)


def test_an_export_of_parakeet_opens_with_its_processor(parakeet: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder, model, processor = parakeet
    found = load_published(folder)
    save_published(found.model, tmp_path, found.tokenizer, processor=found.processor)
    assert "differs by" in compare(found.model, tmp_path)
    again, reader = ParakeetForCTC.from_pretrained(tmp_path).eval(), ParakeetProcessor.from_pretrained(tmp_path)
    written = [
        each.batch_decode(one.generate(**each(clips(), sampling_rate=speech.RATE)), skip_special_tokens=True)
        for each, one in ((processor, model), (reader, again))
    ]
    assert written[0] == written[1]
    assert read_sound_processor(tmp_path, found.spec) == found.processor


@pytest.mark.parametrize(
    ("file", "key", "value", "sentence"),
    [
        ("config.json", "conv_kernel_size", 4, "conv_kernel_size is 4, which has no middle"),
        ("config.json", "subsampling_factor", 6, "subsampling_factor is 6, but qkv supports powers of 2"),
        ("processor_config.json", "win_length", 401, "n_fft is 512 and win_length 401"),
    ],
)
def test_what_parakeet_lacks_is_refused_by_name(
    parakeet: tuple[Path, Any, Any], tmp_path: Path, file: str, key: str, value: int, sentence: str
) -> None:
    changed(parakeet[0], tmp_path, {key: value}, file)
    with pytest.raises(UserError, match=sentence):
        load_published(tmp_path)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_of_a_clip_are_those_of_the_other_library(name: str, tmp_path: Path) -> None:
    build, reader = CLASSIFIERS[name]
    torch.manual_seed(1)
    model, clip = varied(build()), clips()[0]
    model.save_pretrained(tmp_path / "theirs")
    reader.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = model(**reader(clip, sampling_rate=speech.RATE, return_tensors="pt")).logits[0].softmax(-1)
    found = load_published(tmp_path / "theirs")
    assert found.processor is not None
    signal: Signal = build_processor(found.processor).signal([clip])
    with torch.no_grad():
        ours: Tensor = found.model(signal)[0][0].softmax(-1)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    (answer,) = qkv.predict(tmp_path / "theirs", (clip, speech.RATE))
    assert answer["answer"] == ("yes", "no", "up")[int(expected.argmax())]
    save_published(found.model, tmp_path / "ours", labels=found.labels, family=found.family, processor=found.processor)
    assert "differs by" in compare(found.model, tmp_path / "ours")
    changed(tmp_path / "theirs", tmp_path, {"use_weighted_layer_sum": True})
    with pytest.raises(UserError, match="use_weighted_layer_sum is True"):
        load_published(tmp_path)
