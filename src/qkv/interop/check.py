"""Verification of an export: open it with the transformers library, if installed, and compare the logits."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import CONFIG
from qkv.interop.series import answer_as_published, as_published, channels_of
from qkv.layers.signal import Signal
from qkv.models.heads.matching import Matcher
from qkv.models.heads.wave_decoder import WaveDecoderHead
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

LIMIT = 2 << 30
"""Size limit in bytes of fp32 weights for a comparison by default, because a comparison holds two copies in memory."""
TOLERANCE = 1e-4
"""Tolerance: maximum difference / maximum logit. fp32 rounding gives about 1e-6; a wrong RoPE, untrained, 5e-4."""
_LENGTH = 64


def size_of(model: Transformer) -> int:
    """Return the size of the model's weights in fp32, in bytes."""
    return 4 * sum(p.numel() for p in model.parameters())


def compare(model: Transformer, folder: Path) -> str:
    """Compare the logits of ``model`` with those of its export in ``folder``, opened by transformers, in fp32.

    The input is a few random ids, or a random image, series or sound. Return a clause for the user: the largest
    difference, or why nothing was compared. Raises ``UserError`` if the logits differ.
    """
    if importlib.util.find_spec("transformers") is None:
        return "not compared, because the transformers library is not installed"
    ours, errors = copy.deepcopy(model).to(torch.float32).eval(), list[float]()
    try:
        for attention in ("eager", "sdpa"):  # in some families one of the two omits an operation, such as a soft cap
            errors.append(_difference(ours, folder, attention))
            if errors[-1] <= TOLERANCE:
                return f"compared with the transformers library: differs by {errors[-1]:.1e} of the largest logit"
    except Exception as error:  # any exception of the other library
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"not compared, because the installed transformers library cannot open it: {lines[0][:200]}"
    raise UserError(
        f"the transformers library computes different logits from the export (they differ by {min(errors):.2g} of the "
        "largest logit), so nothing was written; please report it with the spec of the model, "
        "or use --no-check to write it anyway"
    )


@torch.no_grad()
def _difference(ours: Transformer, folder: Path, attention: str) -> float:
    with _quietly():
        theirs = _opened(folder, attention)
        if ours.spec.head.kind == "wave_decoder":
            return _of_waves(ours, theirs)
        if not ours.spec.frontend.reads_tokens:
            return _of_values(ours, theirs)
        if ours.spec.head.reads_memory:
            return _of_pairs(ours, theirs, folder)
        ids = _ids(ours, folder)
        inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if ours.encoder is None or ours.spec.encoder is None:
            output = ours(ids)[0]
        elif not ours.spec.encoder.frontend.reads_tokens:
            values = _source(ours.encoder.frontend, ours.spec.encoder.context_length)
            bands_first = values.mT if values.dim() == 3 else values
            inputs = {theirs.main_input_name: bands_first, "decoder_input_ids": ids}
            output = ours(ids, memory=ours.encode(Signal(values)))[0]
        else:
            inputs["decoder_input_ids"] = ids.flip(1)
            output = ours(ids.flip(1), memory=ours.encode(ids))[0]
        answer = _answer_of(theirs(**inputs), theirs)
    return _relative(output, answer)


def _of_pairs(ours: Transformer, theirs: Any, folder: Path) -> float:
    """Compare the score of a random image and a random text that ends with the end token."""
    assert ours.encoder is not None
    assert isinstance(ours.head, Matcher)
    image = ours.encoder.frontend.random(1, 1, torch.Generator().manual_seed(0))
    ids = _ids(ours, folder)
    vectors = ours(ids, memory=ours.encode(image))[0]
    outputs = theirs(input_ids=ids, pixel_values=as_published(ours.spec, image.values))
    both = torch.stack((outputs.text_embeds, outputs.image_embeds), 1)
    return max(_relative(vectors, both), _relative(ours.head.scores(*vectors.unbind(1)), outputs.logits_per_text))


def _source(frontend: Any, positions: int) -> Tensor:
    """Return random log-mel frames (1, T, bins) of a whole window, each of which other libraries need.

    For other front ends, return a random sound (1, T) or image.
    """
    generator, processor = torch.Generator().manual_seed(0), frontend.part.processor
    if not processor.of_sounds or processor.of_samples:
        return frontend.random(1, min(positions, _LENGTH), generator).values
    values = frontend.random(1, positions, generator).values
    return pad(values, (0, 0, 0, positions * math.prod(frontend.part.strides) - values.shape[1]))


def _of_waves(ours: Transformer, theirs: Any) -> float:
    """Compare the vectors that a codec quantises for a random sound, and the sound that its decoder makes of them."""
    signal, head = ours.frontend.random(1, 5, torch.Generator().manual_seed(0)), ours.head
    assert isinstance(head, WaveDecoderHead)
    z = head.latents(ours.features(signal)[0])
    vectors, wave = _tensor(theirs.encoder(signal.values[:, None])).mT, _tensor(theirs.decoder(z.mT))[:, 0]
    return max(_relative(z, vectors), _relative(head.decoded(z), wave))


def _tensor(output: Any) -> Tensor:
    """Return an output that is a tensor, or the first of its fields."""
    return output if isinstance(output, Tensor) else output[0]


def _of_values(ours: Transformer, theirs: Any) -> float:
    """Compare the outputs for a random image, sound or window of a series.

    Learned positions of an image are resampled if the model was trained with another size.
    """
    signal = ours.frontend.random(channels_of(ours.spec), 1, torch.Generator().manual_seed(0))
    if theirs.main_input_name == "input_features" and hasattr(theirs.config, "max_source_positions"):
        frames = _source(ours.frontend, ours.spec.context_length)  # of Whisper's encoder, which reads bands first
        return _relative(ours(Signal(frames))[0], theirs(frames.mT).logits)
    resampled = "interpolate_pos_encoding" in inspect.signature(theirs.forward).parameters
    options = {"interpolate_pos_encoding": True} if resampled else {}
    outputs = theirs(**{theirs.main_input_name: as_published(ours.spec, signal.values)}, **options)
    names = ("logits", "prediction_outputs", "last_hidden_state")
    return _relative(answer_as_published(ours, signal), next(outputs[name] for name in names if name in outputs))


def _relative(output: Tensor, answer: Tensor) -> float:
    if output.shape != answer.shape:
        return float("inf")
    return float((output - answer).abs().max() / answer.abs().max().clamp(min=1e-30))


def _ids(ours: Transformer, folder: Path) -> Tensor:
    """Return random token ids (1, N) for the comparison; for an encoder–decoder the last id is the end-of-text token.

    Special tokens are excluded, because other libraries may mask them or pool by them.
    """
    config, count = read_json(folder / CONFIG), ours.spec.vocab_size or 1
    config = config.get("text_config", config) if ours.spec.head.reads_memory else config
    special = {value for key, value in config.items() if key.endswith("_token_id") and isinstance(value, int)}
    plain = [i for i in range(min(count, 4096)) if i > 3 and i not in special] or list(range(count))
    room = ours.spec.position_limit or ours.spec.context_length
    chosen = torch.randint(0, len(plain), (max(1, min(_LENGTH, room)),), generator=torch.Generator().manual_seed(0))
    ids = [plain[i] for i in chosen.tolist()]
    end = config.get("eos_token_id")
    if ours.encoder is not None and isinstance(end, int) and 0 <= end < count:
        ids[-1] = end
    return torch.tensor([ids])


def _opened(folder: Path, attention: str) -> Any:
    """Open the export with the transformers class of its architecture.

    For other architectures, use the Python model file that was written into ``folder``.
    """
    transformers, config = importlib.import_module("transformers"), read_json(folder / CONFIG)
    custom_code = "auto_map" in config
    kind = transformers.AutoModelForCausalLM if custom_code else getattr(transformers, config["architectures"][0])
    options = {"trust_remote_code": True} if custom_code else {"attn_implementation": attention}
    return kind.from_pretrained(folder, torch_dtype=torch.float32, local_files_only=True, **options).eval()


def _answer_of(outputs: Any, theirs: Any) -> Tensor:
    """Return the logits in the outputs of a transformers model.

    For span heads, stack start and end logits; for a model without a head, multiply hidden states by the token table.
    """
    if "logits" in outputs:
        return outputs.logits
    if "start_logits" in outputs:
        return torch.stack((outputs.start_logits, outputs.end_logits), -1)
    return outputs.last_hidden_state @ theirs.get_input_embeddings().weight.t()


@contextmanager
def _quietly() -> Iterator[None]:
    """Context manager: silence warnings and progress bars of the transformers library."""
    logger = logging.getLogger("transformers")
    level = logger.level
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
