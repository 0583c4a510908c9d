"""Transcription against the transformers library with random weights: the same tokens at the same times."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs import speech
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import qkv
from qkv.data.features.mel import log_mel
from qkv.data.vocabulary import Vocabulary
from qkv.generation.logits.speech import TranscriptRule
from qkv.interop.check import compare
from qkv.models.fast.native_token import decoding_path
from qkv.ops.native import library
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.runs.transcription.segments import divide
from qkv.runs.transcription.transcribe import transcriber_of
from qkv.runs.transcription.transcript import SpokenSegment, SpokenWord, Transcript
from qkv.runs.transcription.windows import SoundWindows
from qkv.runs.transcription.word_times import TimedToken, focused, group_words, warp
from qkv.runs.transcription.writing import WindowWriter
from qkv.spec import tokenizers
from qkv.spec.processors import INPUT
from qkv.spec.recipe import Recipe
from qkv.spec.signals.sound import LogMel
from qkv.system.errors import UserError
from qkv.tasks.sound.transcription import TranscriptionTask
from qkv.tokenizers.train import train

PLAIN: dict[str, Any] = {
    "guard": False,
    "temperatures": (0.0,),
    "compression": None,
    "log_probability": None,
    "silence": None,
}
"""Without any test of a window."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech.write(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(folder)


def our_segments(run: Run, samples: np.ndarray, **options: Any) -> list[tuple[float, float, list[int]]]:
    transcript = qkv.transcribe(run, (samples, speech.RATE), **{**PLAIN, **options})
    return [(each.start, each.end, list(each.tokens)) for each in transcript.segments]


def assert_equal(ours: list[tuple[float, float, list[int]]], theirs: list[Any]) -> None:
    """Segments of spaces alone, which only theirs has, are left out."""
    shown = [each for each in theirs if speech.tokenizer().decode(each[2]).strip()]
    assert [tokens for *_, tokens in ours] == [tokens for *_, tokens in shown]
    np.testing.assert_allclose([each[:2] for each in ours], [each[:2] for each in shown], atol=1e-6)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("previous", [False, True])
def test_long_sounds_give_the_same_tokens(tmp_path: Path, seed: int, previous: bool) -> None:
    """Windows follow the timestamps, with and without the text before them; the language is the detected one."""
    folder, samples = speech.write(tmp_path, seed), speech.sound(seed=seed)
    theirs, _ = speech.their_segments(folder, samples, task="transcribe", condition_on_prev_tokens=previous)
    assert len(theirs) > 3
    assert_equal(our_segments(load(folder), samples, previous=previous), theirs)


def test_language_task_and_prompt_are_those_named(folder: Path, run: Run) -> None:
    samples = speech.sound(1.5)
    options = {"language": "de", "task": "translate"}
    prompt = torch.tensor([speech.token("startofprev"), *speech.tokenizer().encode(" a name").ids])
    theirs, _ = speech.their_segments(folder, samples, **options, prompt_ids=prompt)
    ours = our_segments(run, samples, **options, prompt="a name")
    assert_equal(ours, [each for each in theirs if each[2][0] >= speech.token("0.00")])
    assert ours != our_segments(run, samples, **options)


def test_without_timestamps_a_window_is_a_segment(run: Run) -> None:
    (first, second) = our_segments(run, speech.sound(2 * speech.SECONDS), language="en", timestamps=False)
    assert (first[:2], second[:2]) == ((0.0, 2.0), (2.0, 4.0))
    assert max(first[2]) < speech.token("0.00")


def test_texts_that_fail_are_written_again_hotter(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With draws that take the most probable token, both try the same temperatures and keep the same tokens."""
    monkeypatch.setattr(torch, "multinomial", lambda chances, num_samples: chances.argmax(-1, keepdim=True))
    monkeypatch.setattr("qkv.generation.logits.filters.draw_by", lambda weights, _: weights.argmax(-1))
    samples = speech.sound(seed=2)
    options: dict[str, Any] = {**PLAIN, "language": "en", "temperatures": (0.0, 0.4, 0.8)}
    figures = [
        (segment.log_probability, segment.compression)
        for segment in qkv.transcribe(run, (samples, speech.RATE), **options).segments
    ]
    chances, ratios = (sorted(set(each)) for each in zip(*figures, strict=True))
    least, most = (sum(chances[len(chances) // 2 - 1 :][:2]) / 2, sum(ratios[-2:]) / 2)  # between two windows
    tried = list[float]()
    sample = WindowWriter._sample
    monkeypatch.setattr(
        WindowWriter,
        "_sample",
        lambda self, memory, rows, temperature: tried.append(temperature) or sample(self, memory, rows, temperature),
    )
    ours = our_segments(run, samples, **{**options, "log_probability": least, "compression": most})
    theirs, model = speech.their_segments(
        folder,
        samples,
        language="en",
        task="transcribe",
        temperature=(0.0, 0.4, 0.8),
        top_k=0,
        logprob_threshold=least,
        compression_ratio_threshold=most,
    )
    assert_equal(ours, theirs)
    assert tried == model.tried
    assert {0.0, 0.4, 0.8} == set(tried)
    assert tried.count(0.0) > tried.count(0.4)


def test_a_window_of_probable_silence_is_skipped(folder: Path, run: Run) -> None:
    samples = speech.sound(seed=1)
    thresholds = {"logprob_threshold": 0.0, "no_speech_threshold": 0.0}
    theirs, _ = speech.their_segments(
        folder, samples, language="en", task="transcribe", **thresholds, temperature=(0.0,)
    )
    assert theirs == [] == our_segments(run, samples, language="en", log_probability=0.0, silence=0.0)


def test_batches_of_parts_are_those_of_the_parts_alone(run: Run) -> None:
    """A sound with pauses is cut there; each part gives what it gives alone, later by its beginning."""
    pieces = [speech.sound(1.2, seed) for seed in range(3)]
    pause = np.zeros(speech.RATE, np.float32)
    whole = np.concatenate([part for piece in pieces for part in (piece, pause)])
    together = our_segments(run, whole, language="en", guard=True, batch=4)
    assert together == our_segments(run, whole, language="en", guard=True, batch=2)
    assert len(together) > 2
    assert all(a[0] <= b[0] for a, b in pairwise(together))


def test_nothing_is_written_where_nothing_is_said(run: Run) -> None:
    """Silence, and the noise of a recorder; between speech, silent windows are passed over."""
    quiet = np.zeros(5 * speech.RATE, np.float32)
    noise = (1e-4 * np.random.default_rng(0).standard_normal(5 * speech.RATE)).astype(np.float32)
    for samples in (quiet, noise):
        transcript = qkv.transcribe(run, (samples, speech.RATE))
        assert (transcript.text, transcript.segments, transcript.seconds) == ("", (), 5.0)
        assert our_segments(run, samples, language="en") != []
    spoken = np.concatenate((speech.sound(2.0), quiet, speech.sound(1.0, 1)))
    for start, end, _ in our_segments(run, spoken, language="en", guard=True):
        assert start < 2.3 or end > 6.7


def test_words_have_times_within_their_segments(run: Run) -> None:
    options = {**PLAIN, "language": "en", "word_times": True}
    transcript = qkv.transcribe(run, (speech.sound(), speech.RATE), **options)
    assert transcript.words
    for segment in transcript.segments:
        assert "".join(word.text for word in segment.words or ()) == segment.text
        times = [time for word in segment.words or () for time in (word.start, word.end)]
        assert times == sorted(times)
    assert all(0 <= word.probability <= 1 and word.end <= 9.1 for word in transcript.words)


@pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")
def test_a_token_is_one_native_call(run: Run) -> None:
    our_segments(run, speech.sound(1.0), language="en")
    assert decoding_path(run.model) == "one native call a token"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_export_is_compared_for_a_window_of_sound(folder: Path, run: Run) -> None:
    assert "differs by" in compare(run.model, folder)


def test_a_text_is_not_continued(run: Run) -> None:
    with pytest.raises(UserError, match="continues no text; use qkv transcribe"):
        qkv.generate(run, "One two")


@pytest.mark.parametrize("value", [{"language": "xx"}, {"task": "sing"}, {"temperatures": ()}, {"batch": 0}])
def test_wrong_options_are_one_sentence(run: Run, value: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        transcriber_of(run, value)
    assert "\n" not in str(error.value)


def test_models_of_whole_clips_read_parts_between_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is read as a clip, and is a segment with its times."""
    spec = {
        "width": 8,
        "num_layers": 1,
        "blocks": [{"branches": ["attention(2, mask=full)"]}],
        "frontend": {"kind": "mel_convolutions", "bins": 20},
        "head": {"kind": "ctc", "num_classes": 4, "blank": 3},
    }
    data = {"source": "none", "processor": {"kind": "log_mel", "rate": speech.RATE, "bins": 20, "longest": 5.0}}
    recipe = Recipe.parse({"data": data, "task": "transcription", "model": spec})
    tokenizer, processors = train(tokenizers.Characters(), ["abc"]), {INPUT: recipe.data.processor}
    vocabulary = Vocabulary(tokenizer, tokenizer, (), processors)  # type: ignore[arg-type]
    run, heard = Run(tmp_path, recipe, qkv.build(recipe.model).eval(), vocabulary, [], 0), list[float]()

    def predict(self: Any, model: Any, vocabulary: Any, recipe: Any, rows: list[Any]) -> list[dict[str, str]]:
        heard.extend(len(row["sound"][0]) / speech.RATE for row in rows)
        return [{"answer": "a" * len(heard)} for _ in rows]

    monkeypatch.setattr(TranscriptionTask, "predict", predict)
    pause, spoken = np.zeros(2 * speech.RATE, np.float32), [speech.sound(2.0, 1), speech.sound(12.0, 2)]
    samples = np.concatenate((pause, spoken[0], pause, spoken[1]))
    transcript = qkv.transcribe(run, (samples, speech.RATE))
    assert transcript.seconds == 18.0
    assert [segment.text.strip("a") for segment in transcript.segments] == [" "] * len(transcript.segments)
    assert (transcript.segments[0].start, transcript.segments[0].end) == pytest.approx((1.8, 4.2), abs=0.1)
    assert max(heard) <= 5.0
    assert sum(heard) == pytest.approx(14.6, abs=0.3)
    with pytest.raises(UserError, match=r"language: .* reads whole clips and has no such setting"):
        qkv.transcribe(run, (samples, speech.RATE), language="en")


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (np.zeros(0, np.float32), "has no samples"),
        (np.full(100, np.nan, np.float32), "no finite numbers"),
        (np.zeros((2, 2, 2), np.float32), "has the shape"),
    ],
)
def test_hostile_sounds_are_one_sentence(run: Run, samples: np.ndarray, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        qkv.transcribe(run, (samples, speech.RATE))


def test_the_shortest_sound_is_silent_or_spoken(run: Run) -> None:
    assert qkv.transcribe(run, (np.zeros(1, np.float32), speech.RATE)).segments == ()
    for count in (1, 150, 170):
        loud = np.ones(count, np.float32)
        transcript = qkv.transcribe(run, (loud, speech.RATE), **{**PLAIN, "language": "en", "max_new_tokens": 5})
        assert transcript.seconds == pytest.approx(count / speech.RATE)


def test_rules_are_those_of_the_transformers_library() -> None:
    """On random logits after random beginnings, with and without a limit of the first timestamp."""
    generator, size, first = torch.Generator().manual_seed(0), 40, 25
    for trial in range(300):
        latest = 4 if trial % 2 else None
        config: Any = GenerationConfig(eos_token_id=20, no_timestamps_token_id=first - 1)
        config.max_initial_timestamp_index = latest
        theirs: Any = WhisperTimeStampLogitsProcessor(config, begin_index=3)
        length = int(torch.randint(0, 6, (1,), generator=generator))
        written = torch.randint(0, size, (length,), generator=generator).tolist()
        if trial % 3:
            written = [min(size - 1, first + 2 * i) if i % 2 else token for i, token in enumerate(written)]
        logits = 3 * torch.randn(size, generator=generator)
        rule = TranscriptRule(20, first, (7, 8), latest_start=latest)
        ours = logits.clone()
        rule(ours, [7, 8, *written])
        expected = theirs(torch.tensor([[6, 7, 8, *written]]), logits[None].clone())[0]
        torch.testing.assert_close(ours, expected)


def test_forced_and_suppressed_tokens() -> None:
    rule = TranscriptRule(9, 10, (3,), suppressed=(1,), first_suppressed=(2,), timed=False, no_speech=4)
    logits = torch.zeros(12)
    rule(logits, [])
    assert rule.silence == pytest.approx(1 / 12)
    assert logits.isfinite().nonzero().flatten().tolist() == [3]
    first, second = torch.zeros(12), torch.zeros(12)
    rule(first, [3])
    rule(second, [3, 5])
    assert first.isinf().nonzero().flatten().tolist() == [1, 2]
    assert second.isinf().nonzero().flatten().tolist() == [1]
    assert rule.silence == pytest.approx(1 / 12)


def test_tokens_are_divided_at_pairs_of_timestamps() -> None:
    """Timestamps are 100 (0.00) and above, in a window of 50 steps."""
    assert divide([100, 1, 110, 110, 2, 3, 120, 120, 4], 100, 50) == (
        [(0, 10, [100, 1, 110]), (10, 20, [110, 2, 3, 120])],
        20,
    )
    assert divide([105, 1, 110, 112, 2, 130], 100, 50) == ([(5, 10, [105, 1, 110]), (12, 30, [112, 2, 130])], None)
    assert divide([100, 1, 130], 100, 50) == ([(0, 30, [100, 1, 130])], None)
    assert divide([1, 2], 100, 50) == ([(0, 50, [1, 2])], None)
    assert divide([], 100, 50) == ([], None)


def test_windows_are_those_of_the_whole_sound() -> None:
    """Frames of windows at any place equal those of the whole sound with silence behind it."""
    spec, samples = LogMel(rate=16_000, bins=20), speech.sound(3.3)
    whole = np.concatenate((samples, np.zeros(40_000, np.float32)))
    expected = log_mel(torch.from_numpy(whole)[None], spec)[0]
    windows = SoundWindows((samples, 16_000), spec, 100)
    assert (windows.count, windows.seconds) == (330, 3.3)
    for begin in (0, 1, 90, 250, 329):
        torch.testing.assert_close(windows.at(begin), expected[begin : begin + 100], rtol=0, atol=1e-6)
    assert windows.silent == pytest.approx(float(expected[-1, 0]))


def test_paths_are_those_of_the_transformers_library() -> None:
    generator = torch.Generator().manual_seed(0)
    for count, width in ((1, 9), (6, 40), (12, 13), (5, 5)):
        weights = torch.rand(3, count + 1, width, generator=generator)
        standard = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False)
        expected = _median_filter(standard, 7).mean(0)
        torch.testing.assert_close(focused(weights), expected)
        rows, columns = warp(-expected.double().numpy())
        theirs = _dynamic_time_warping(-expected.double().numpy())
        assert (rows.tolist(), columns.tolist()) == (theirs[0].tolist(), theirs[1].tolist())


def test_words_are_divided_at_spaces_and_keep_their_punctuation() -> None:
    def grouped(pieces: list[str], spaces: bool = True) -> list[str]:
        timed = [TimedToken(i, 0.0, 0.0, 1.0) for i in range(len(pieces))]
        return [text for text, _ in group_words(timed, lambda ids: "".join(pieces[i] for i in ids), spaces)]

    assert grouped([" He", " said", ",", ' "', "don", "'t", ".", '"']) == [" He", " said,", ' "don\'t."']
    assert grouped(["今", "天", "。"], spaces=False) == ["今", "天。"]
    assert grouped([" e", "-", "mail"]) == [" e-mail"]


def test_bytes_of_one_character_stay_together() -> None:
    core = speech.tokenizer()
    ids = core.encode(" né").ids
    groups = group_words([TimedToken(i, 0.0, 0.0, 1.0) for i in ids], core.decode, True)
    assert [(text, len(tokens)) for text, tokens in groups] == [(" né", 4)]


def transcript() -> Transcript:
    words = (SpokenWord(" a", 0.0, 0.5, 0.9), SpokenWord(" <b>", 0.5, 1.25, 0.5))
    segments = SpokenSegment(" a <b>", 0.0, 1.25, words=words), SpokenSegment(" c\n\nd", 3661.0, 3662.9996)
    return Transcript(segments, 3663.0, "en")


def test_subtitles() -> None:
    one = transcript()
    assert one.srt() == ("1\n00:00:00,000 --> 00:00:01,250\na <b>\n\n2\n01:01:01,000 --> 01:01:03,000\nc d\n")
    assert one.vtt() == ("WEBVTT\n\n00:00:00.000 --> 00:00:01.250\na &lt;b&gt;\n\n01:01:01.000 --> 01:01:03.000\nc d\n")
    assert one.text == str(one) == "a <b> c\n\nd"
    assert "<b>" not in one._repr_html_()


def test_plain_data_has_the_names_of_openai() -> None:
    plain = json.loads(json.dumps(transcript().to_dict()))
    assert (plain["language"], plain["duration"], plain["text"]) == ("en", 3663.0, "a <b> c\n\nd")
    assert plain["words"][1] == {"word": "<b>", "start": 0.5, "end": 1.25, "probability": 0.5}
    assert {"id", "start", "end", "text", "tokens", "temperature", "avg_logprob"} < plain["segments"][0].keys()
