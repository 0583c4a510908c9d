"""Every family against the transformers library, by registration: random checkpoints of unusual sizes, read by both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interop.alone import unfollowed
from tests.interop.battery import (
    Pair,
    answered,
    beam_difference,
    every_case,
    gradients,
    greedy_difference,
    made,
    our_answers,
    our_input,
    our_words,
    read_again,
    stored,
    their_answer,
    their_answers,
    their_words,
    weights_difference,
)
from tests.inventory import assert_lists

from qkv.interop.load import load_published
from qkv.interop.mapping.family import named_as_now
from qkv.interop.mapping.normal import normal
from qkv.interop.registry import families
from qkv.interop.save import save_published
from qkv.lens.views.stream import read_stream

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers"
)


EAGER = (
    "gpt2",
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "t5",
    "bart",
    "marian",
    "vit",
    "llama",
    "mistral",
    "qwen2",
    "gpt_neox",
    "bloom",
)
"""Model types whose attention weights are compared."""
WITHOUT_WEIGHTS = ("bart-classes", "electra-replaced")
"""Cases whose class, written for the tests, does not return the weights of its parts."""


@pytest.fixture(scope="module", params=every_case(), ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return made(request.param, tmp_path_factory.mktemp(request.param.name))


@pytest.fixture(scope="module")
def folder(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model is written again, with all that is kept of the folder that it was read from."""
    folder, found = tmp_path_factory.mktemp("again"), pair.published
    save_published(pair.ours, folder, family=found.family, kept=found.kept, kept_config=found.kept_config)
    return folder


def test_every_family_has_cases() -> None:
    shown = {case.config.model_type for case in every_case()}
    elsewhere = {
        "kimi_k2": "its class is in its folders: tests/interop/test_decoders.py",
        "encodec": "its answer is a waveform: tests/interop/test_codecs.py",
        "mimi": "its answer is a waveform: tests/interop/test_codecs.py",
        "dac": "its answer is a waveform: tests/interop/test_codecs.py",
        "wav2vec2": "a weight is the product of two tensors: tests/interop/test_speech.py",
        "wavlm": "a weight is the product of two tensors: tests/interop/test_speech.py",
        "unispeech": "a weight is the product of two tensors: tests/interop/test_speech.py",
        "unispeech-sat": "a weight is the product of two tensors: tests/interop/test_speech.py",
        "hubert": "a weight is the product of two tensors: tests/interop/test_speech.py",
        "audio-spectrogram-transformer": "it reads frames as an image: tests/interop/test_spectrograms.py",
        "llava": "its rows hold images: tests/interop/test_vision_chats.py",
        "paligemma": "its rows hold images: tests/interop/test_paligemma.py",
        "idefics3": "its rows hold images: tests/interop/test_idefics3.py",
        "qwen2_vl": "its rows hold images: tests/interop/test_qwen2_vl.py",
        "smolvlm": "its rows hold images: tests/interop/test_idefics3.py",
        "open_clip": "its names are not those of the library: tests/interop/test_open_clip.py",
        "chinese_clip": "it compares images with texts: tests/interop/test_chinese_clip.py",
        "blip": "its answer is a text about an image: tests/interop/test_blip.py",
        "vision-encoder-decoder": "its answer is a text about an image: tests/interop/test_pairs.py",
        "vit_mae": "its class leaves out random patches: tests/interop/test_images.py",
    }
    known = [name for family in families() for name in family.model_types]
    assert_lists("tests/interop/cases, or elsewhere with its test", {*shown, *elsewhere}, known)
    assert not shown & elsewhere.keys(), "a case in tests/interop/cases is not elsewhere"


def test_the_logits_are_equal(pair: Pair, record_property: Any) -> None:
    ours, theirs = our_answers(pair), their_answers(pair)
    error = float((ours - theirs).abs().max() / theirs.abs().max())
    record_property("error", error)
    print(f"{pair.case}: largest difference {error:.1e} of the largest logit")
    assert error < 1e-4


def test_the_lens_at_the_last_layer_gives_the_logits(pair: Pair) -> None:
    """A post-norm model's last point is the output of its last norm; the head reads it as it does in the model."""
    with torch.no_grad():
        stream = read_stream(pair.ours, *our_input(pair))
        predicts = pair.published.spec.head.predicts_tokens
        expected = our_answers(pair) if predicts else answered(pair, stream.output)
        last = answered(pair, stream.read(stream.vectors[-1]) if stream.vectors else stream.output)
    assert float((last - expected).abs().max() / expected.abs().max()) < 1e-5


def test_the_weights_are_those_of_eager_attention(pair: Pair) -> None:
    name = pair.case.config.model_type
    if name not in EAGER or pair.case.attention != "eager" or pair.case.name in WITHOUT_WEIGHTS:
        pytest.skip("another family, or a class that gives no weights")
    assert weights_difference(pair) < 1e-5


def test_padding_on_the_left_changes_nothing(pair: Pair) -> None:
    if pair.ours.encoder is not None or not pair.published.spec.decodes or not pair.case.left:
        pytest.skip("only decoders are padded on the left")
    with torch.no_grad():
        ours, theirs = our_answers(pair), answered(pair, their_answer(pair, left=True))
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-4


def test_greedy_tokens_are_equal(pair: Pair) -> None:
    if not pair.theirs.can_generate() or not pair.published.spec.decodes:
        pytest.skip("it does not write")
    cached = pair.case.cached and pair.case.left
    ours, theirs = (our_words(pair), their_words(pair)) if cached else read_again(pair)
    assert not greedy_difference(pair, ours, theirs, "row" if cached else "four")


def test_the_best_of_three_beams_is_equal(pair: Pair) -> None:
    if pair.ours.encoder is None or not pair.theirs.can_generate():
        pytest.skip("of encoder–decoders; the search itself is tested with its own")
    assert not beam_difference(pair, our_words(pair, beams=3), their_words(pair, beams=3))


def test_loss_and_every_gradient_are_equal(pair: Pair) -> None:
    """A gradient takes the way of its weight, so the name table compares them."""
    found = gradients(pair)
    assert float((found.our_loss - found.their_loss).abs()) < 1e-4 * max(1.0, float(found.their_loss.abs()))
    compared, largest = 0, max(float(gradient.abs().max()) for gradient in found.theirs.values())
    for name, gradient in pair.case.joined(found.ours).items():
        wanted = found.of(pair, name)
        if wanted is not None:
            scale = wanted.abs().max().clamp(min=1e-4 * largest)  # that of a key's bias is rounding alone
            assert float((gradient - wanted).abs().max() / scale) < 1e-3, name
            compared += len(pair.parameters(name))
    assert compared == len(found.theirs)


def test_saved_and_loaded_by_the_other_library(pair: Pair, folder: Path) -> None:
    again, info = type(pair.theirs).from_pretrained(
        folder, output_loading_info=True, attn_implementation=pair.case.attention
    )
    assert not any(info[kind] for kind in ("unexpected_keys", "mismatched_keys"))
    assert not [name for name in info["missing_keys"] if not name.endswith(pair.case.computed)]
    if pair.published.spec.decodes and hasattr(pair.theirs.config, "pad_token_id"):
        again.config.pad_token_id = pair.theirs.config.pad_token_id  # the tokenizer says it, and none is saved here
    if getattr(pair.theirs.config, "use_cache", None) is False:
        again.config.use_cache = False
    state = again.eval().state_dict()
    read = {name: tensor for name, tensor in pair.theirs.state_dict().items() if name not in info["missing_keys"]}
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.items())
    before, after = their_answers(pair), their_answers(replace(pair, theirs=again))
    # Where a product has one column, its rounding depends on where in memory the weights lie.
    assert torch.allclose(before, after, rtol=0, atol=1e-5 * float(before.abs().max()))


def test_the_round_trip_is_bit_equal(pair: Pair, folder: Path) -> None:
    first, second = named_as_now(pair.family, stored(pair.folder)), stored(folder)
    ignored = {name for name, _ in pair.published.ignored} - pair.published.kept.keys()
    copies = pair.family.copies(pair.published.spec)
    assert second.keys() == (first.keys() - ignored) | copies.keys()
    assert all(torch.equal(first[copies.get(name, name)], tensor) for name, tensor in second.items())
    again = load_published(folder)
    assert (again.family, again.architecture) == (pair.published.family, pair.published.architecture)
    assert normal(again.spec) == normal(pair.published.spec)


def test_noise_in_each_tensor_is_followed_or_refused(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of the tensors without a gradient, whose ways ``test_loss_and_every_gradient_are_equal`` does not compare."""
    assert not unfollowed(pair, tmp_path_factory.mktemp("alone"))
