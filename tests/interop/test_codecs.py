"""EnCodec, DAC and Mimi against the transformers library: vectors, codes and waveforms of random models, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoFeatureExtractor,
    DacConfig,
    DacFeatureExtractor,
    DacModel,
    EncodecConfig,
    EncodecFeatureExtractor,
    EncodecModel,
    MimiConfig,
    MimiModel,
)

import qkv
from qkv.interop.load import load_published
from qkv.interop.save import save_published
from qkv.layers.signal import Signal
from qkv.spec.signals.sound import Waveform
from qkv.system.errors import UserError

ENCODEC = {
    "num_filters": 4,
    "hidden_size": 16,
    "upsampling_ratios": [4, 2],
    "codebook_size": 16,
    "sampling_rate": 8000,
    "target_bandwidths": [4.0, 16.0],
}
DAC = {
    "encoder_hidden_size": 4,
    "decoder_hidden_size": 32,
    "downsampling_ratios": [2, 4],
    "n_codebooks": 3,
    "codebook_size": 16,
    "codebook_dim": 3,
}
MIMI = {
    "num_filters": 4,
    "hidden_size": 12,
    "upsampling_ratios": [3, 2],
    "upsample_groups": 12,
    "codebook_size": 16,
    "codebook_dim": 5,
    "vector_quantization_hidden_dimension": 5,
    "num_quantizers": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 14,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "sliding_window": 5,
    "sampling_rate": 6000,
}
CASES: dict[str, tuple[type[Any], Any, int]] = {
    "encodec": (EncodecModel, EncodecConfig(**ENCODEC), 101),
    "encodec-both-sides": (
        EncodecModel,
        EncodecConfig(
            **{**ENCODEC, "use_causal_conv": False, "num_residual_layers": 2, "upsampling_ratios": [3, 2]},
            use_conv_shortcut=False,
        ),
        101,
    ),
    "encodec-group-norm": (
        EncodecModel,
        EncodecConfig(**ENCODEC, norm_type="time_group_norm", pad_mode="constant", num_lstm_layers=1),
        5,
    ),
    "dac": (DacModel, DacConfig(**DAC), 120),
    "mimi": (MimiModel, MimiConfig(**MIMI), 101),
    "mimi-both-sides": (
        MimiModel,
        MimiConfig(
            **{**MIMI, "num_quantizers": 3, "num_semantic_quantizers": 2, "upsample_groups": 4, "frame_rate": 300.0},
            use_causal_conv=False,
            use_conv_shortcut=True,
            num_residual_layers=2,
            pad_mode="replicate",
            attention_bias=True,
        ),
        97,
    ),
    "mimi-without-projections": (
        MimiModel,
        MimiConfig(**{**MIMI, "codebook_dim": 12, "vector_quantization_hidden_dimension": 12, "sampling_rate": 6500}),
        64,
    ),
    "dac-odd": (DacModel, DacConfig(**{**DAC, "downsampling_ratios": [2, 5, 3], "decoder_hidden_size": 48}), 120),
}


def random_model(kind: Any, config: Any, folder: Path) -> Any:
    torch.manual_seed(3)
    theirs = kind(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
        for name, buffer in theirs.named_buffers():
            if name.endswith(("embed", "embed_avg", "cluster_size", "embed_sum")):
                buffer.copy_(torch.randn(buffer.shape))
            elif name.endswith("cluster_usage"):
                buffer.copy_(0.5 + torch.rand(buffer.shape))
    theirs.save_pretrained(folder)
    return theirs


def kind_of(theirs: Any) -> str:
    return theirs.config.model_type


def their_vectors(theirs: Any, samples: torch.Tensor) -> torch.Tensor:
    """Vectors that are quantised, (B, N, D)."""
    output = theirs.encoder(samples[:, None])
    return (output.latents if kind_of(theirs) == "mimi" else output).mT


def their_codes(theirs: Any, samples: torch.Tensor) -> torch.Tensor:
    """Codes (B, N, K)."""
    if kind_of(theirs) != "encodec":
        return theirs.encode(samples[:, None]).audio_codes.mT
    return theirs.encode(samples[:, None], bandwidth=theirs.config.target_bandwidths[-1]).audio_codes[0].mT


def their_wave(theirs: Any, codes: torch.Tensor) -> torch.Tensor:
    """Waveform (B, T)."""
    if kind_of(theirs) == "dac":
        return theirs.decode(audio_codes=codes.mT).audio_values
    if kind_of(theirs) == "mimi":
        return theirs.decode(codes.mT).audio_values[:, 0]
    return theirs.decode(codes.mT[None], [None]).audio_values[:, 0]


@pytest.mark.parametrize("name", CASES)
def test_codes_and_waveforms_are_equal_both_ways(name: str, tmp_path: Path) -> None:
    kind, config, length = CASES[name]
    theirs = random_model(kind, config, tmp_path / "theirs")
    published = load_published(tmp_path / "theirs")
    head: Any = published.model.head
    samples = torch.randn(2, length, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        x, _ = published.model.features(Signal(samples))
        wanted = their_vectors(theirs, samples)
        assert float((head.latents(x) - wanted).abs().max() / wanted.abs().max()) < 1e-4
        codes = their_codes(theirs, samples)
        assert torch.equal(head.ids(x), codes)
        assert len(codes.unique()) >= 4
        wave = their_wave(theirs, codes)
        found = head.samples(codes)
    assert found.shape == wave.shape
    assert float((found - wave).abs().max() / wave.abs().max()) < 1e-4
    cover = save_published(published.model, tmp_path / "again", family=published.family)
    assert cover.architecture == kind.__name__
    again, info = kind.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = again.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in theirs.state_dict().items())
    assert load_published(tmp_path / "again").spec == published.spec


EXTRACTORS = {"encodec": EncodecFeatureExtractor, "dac": DacFeatureExtractor, "mimi": EncodecFeatureExtractor}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_a_published_codec_compresses_sounds(name: str, tmp_path: Path) -> None:
    kind, config, _ = CASES[name]
    theirs = random_model(kind, config, tmp_path / "theirs")
    samples = torch.randn(104, generator=torch.Generator().manual_seed(5))
    rate = config.sampling_rate
    wave = qkv.compress(tmp_path / "theirs", (samples.numpy(), rate))
    with torch.no_grad():
        codes = their_codes(theirs, samples[None])
        wanted = their_wave(theirs, codes)[0, :104]
    assert wave.codes.tolist() == codes[0].tolist()
    torch.testing.assert_close(torch.from_numpy(qkv.decompress(tmp_path / "theirs", wave).samples), wanted)
    summary = qkv.export(tmp_path / "theirs", tmp_path / "again").summary
    assert "compared with the transformers library: differs" in summary
    assert qkv.compress(tmp_path / "again", (samples.numpy(), rate)).codes.tolist() == codes[0].tolist()
    extractor = AutoFeatureExtractor.from_pretrained(tmp_path / "again")
    assert type(extractor) is EXTRACTORS[name]
    assert extractor.sampling_rate == rate
    inputs = extractor(raw_audio=samples.numpy(), sampling_rate=rate, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(their_codes(kind.from_pretrained(tmp_path / "again"), inputs["input_values"][:, 0]), codes)


def test_names_of_old_files_are_read(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    kind, config, _ = CASES["encodec"]
    random_model(kind, config, tmp_path)
    before = load_published(tmp_path, copy=True).model.state_dict()
    tensors = load_file(tmp_path / "model.safetensors")
    old = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    renamed = {}
    for name, tensor in tensors.items():
        stem = next((name.replace(now, then) for now, then in old.items() if now in name), name)
        renamed[stem] = tensor
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    after = load_published(tmp_path).model.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("encodec", {"audio_channels": 2}, "audio_channels is 2, but qkv supports only 1"),
        ("encodec", {"normalize": True}, "normalize is True"),
        ("encodec", {"chunk_length_s": 1.0}, "chunk_length_s is 1.0"),
        ("encodec", {"target_bandwidths": [0.5]}, "one codebook takes 4 kbit/s; give at least as many"),
        ("encodec", {"pad_mode": "circular"}, "pad_mode is 'circular', which qkv does not support"),
        ("encodec", {"upsampling_ratios": [4, 0]}, "should be a list of integers >= 1"),
        ("mimi", {"audio_channels": 2}, "audio_channels is 2, but qkv supports only 1"),
        ("mimi", {"trim_right_ratio": 0.5}, "trim_right_ratio is 0.5"),
        ("mimi", {"codebook_dim": 7}, "codebook_dim is 7, but qkv supports only 5"),
        ("mimi", {"upsample_groups": 5}, "upsample_groups is 5, but it should divide hidden_size, 12"),
        ("mimi", {"frame_rate": 900.0}, "frame_rate is 900 codes a second"),
        ("mimi", {"num_semantic_quantizers": 4}, "4 of 4 codebooks leave none for the second quantiser"),
        ("dac", {"decoder_hidden_size": 30}, "give a multiple of 4"),
    ],
)
def test_what_cannot_be_followed_is_refused(name: str, changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    kind, config, _ = CASES[name]
    random_model(kind, config, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changed}))
    with pytest.raises(UserError, match=r"config\.json: ") as refusal:
        load_published(tmp_path)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("kind", [EncodecFeatureExtractor, DacFeatureExtractor])
def test_rates_of_published_feature_extractors_are_read(kind: Any, tmp_path: Path) -> None:
    kind(sampling_rate=8000).save_pretrained(tmp_path)
    random_model(*CASES["encodec"][:2], tmp_path)
    assert load_published(tmp_path).processor == Waveform(rate=8000, normalise=False)
