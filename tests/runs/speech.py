"""A folder of Whisper's form with random weights, and the transformers library's transcription of it."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

SECONDS, RATE, LIMIT = 2, 16_000, 60
"""Length of a window, rate of the samples, and largest number of tokens."""
_NAMES = ("endoftext", "startoftranscript", "en", "de", "translate", "transcribe", "startoflm", "startofprev")
_NAMES = (*_NAMES, "nospeech", "notimestamps", *(f"{i / 50:.2f}" for i in range(50 * SECONDS + 1)))


@cache
def tokenizer() -> Tokenizer:
    """Bytes, and Whisper's special tokens."""
    vocab = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(f"<|{name}|>", special=True, normalized=False) for name in _NAMES])
    return core


def token(name: str) -> int:
    return tokenizer().token_to_id(f"<|{name}|>")


def write(folder: Path, seed: int = 0) -> Path:
    """Write the folder. The weights are large, so that texts differ from window to window."""
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(_config()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    for name, value in _settings().items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    WhisperFeatureExtractor(feature_size=20, chunk_length=SECONDS).save_pretrained(folder)
    return folder


def _config() -> WhisperConfig:
    stacks = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
    sizes = {f"{stack}_{key}": size for stack in ("encoder", "decoder") for key, size in stacks.items()}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), token("endoftext"))
    return WhisperConfig(
        vocab_size=tokenizer().get_vocab_size(),
        d_model=32,
        num_mel_bins=20,
        max_source_positions=50 * SECONDS,
        max_target_positions=LIMIT,
        decoder_start_token_id=token("startoftranscript"),
        **sizes,
        **ids,
    )


def _settings() -> dict[str, Any]:
    """Settings of generation."""
    silenced = ("startoftranscript", "startofprev", "nospeech", "startoflm")
    return {
        "_from_model_config": False,
        "max_length": LIMIT,
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": token(code) for code in ("en", "de")},
        "task_to_id": {name: token(name) for name in ("transcribe", "translate")},
        "no_timestamps_token_id": token("notimestamps"),
        "prev_sot_token_id": token("startofprev"),
        "max_initial_timestamp_index": 50,
        "suppress_tokens": [1, 2, 7, *map(token, silenced)],
        "begin_suppress_tokens": [220, token("endoftext")],
        "alignment_heads": [[0, 1], [1, 2]],
        "return_timestamps": False,
    }


def sound(seconds: float = 7.0, seed: int = 0) -> np.ndarray:
    """Random tones that change ten times a second."""
    rng, count = np.random.default_rng(seed), int(seconds * RATE)
    pitch = np.repeat(rng.uniform(100, 3000, 10 * int(seconds) + 10), RATE // 10)[:count]
    loud = np.repeat(rng.uniform(0.05, 0.9, 10 * int(seconds) + 10), RATE // 10)[:count]
    return (loud * np.sin(2 * np.pi * np.cumsum(pitch) / RATE)).astype(np.float32)


class Hearing(WhisperForConditionalGeneration):
    """The model of the transformers library, whose last window is padded in the sound, as OpenAI's, not in the frames;
    compression is measured in the text, also as OpenAI does.
    """

    frames: Tensor
    tried: list[float]

    def _get_input_segment(  # type: ignore[override]
        self,
        input_features: Any,
        seek: Any,
        seek_num_frames: Any,
        num_segment_frames: int,
        cur_bsz: int,
        batch_idx_map: list[int],
    ) -> Tensor:
        return torch.cat([self.frames[:, :, seek[i] : seek[i] + num_segment_frames] for i in batch_idx_map])

    @staticmethod
    def _retrieve_compression_ratio(tokens: Tensor, vocab_size: int) -> float:
        return compression(tokenizer().decode([i for i in tokens.tolist() if i < token("endoftext")]).strip())

    def _need_fallback(self, *given: Any) -> Any:
        self.tried.append(given[-1])
        return super()._need_fallback(*given)


def compression(text: str) -> float:
    return len(text.encode()) / len(zlib.compress(text.encode()))


def their_segments(folder: Path, samples: np.ndarray, **options: Any) -> tuple[list[Any], Hearing]:
    """Segments (start, end, tokens) of the transformers library, and the model with the temperatures it tried."""
    model, extractor = Hearing.from_pretrained(folder).eval(), WhisperFeatureExtractor.from_pretrained(folder)
    silence = np.zeros(SECONDS * RATE + 400, np.float32)
    padded = np.concatenate((samples, silence))
    given = {"sampling_rate": RATE, "return_tensors": "pt", "padding": "longest", "truncation": False}
    model.frames, model.tried = extractor(padded, **given).input_features, []
    heard = model.frames[:, :, : len(samples) // 160]
    with torch.no_grad():
        answer = model.generate(
            heard, return_timestamps=True, return_segments=True, return_dict_in_generate=True, **options
        )
    first = token("0.00")

    def own(tokens: list[int]) -> list[int]:
        """Without the second timestamp of a pair, which begins the next segment."""
        return tokens[:-1] if len(tokens) > 2 and min(tokens[-2:]) >= first else tokens

    segments = answer["segments"][0]  # type: ignore[index,call-overload]
    return [(float(s["start"]), float(s["end"]), own(s["tokens"].tolist())) for s in segments], model
