"""Both libraries side by side: one random checkpoint, read by both, and the same rows given to both."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tests.interop.cases.case import Case
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import generate
from qkv.interop.load import PublishedModel, load_published
from qkv.interop.mapping.family import Family
from qkv.interop.registry import families
from qkv.interop.save import published_tensors
from qkv.layers.signal import Signal
from qkv.lens.views.attention_maps import AttentionMap, attention_maps
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation

_FOLDER = Path(__file__).parent / "cases"
START = 5
"""The token after which a decoder that reads an encoder begins."""


CHOICE = ("correction_bias", "expert_bias")
"""Parts of names of the biases in the choice of experts."""


def every_case() -> list[Case]:
    """Those of every family, in the order of their files."""
    names = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "case")
    return [case for name in names for case in importlib.import_module(f"tests.interop.cases.{name}").CASES]


@dataclass(frozen=True, eq=False)
class Pair:
    """A case, the model of the transformers library, the folder that it wrote, and what qkv read there."""

    case: Case
    theirs: Any
    folder: Path
    published: PublishedModel
    rows: list[list[int]]
    targets: list[list[int]]
    """What an encoder–decoder's decoder reads."""

    @property
    def ours(self) -> Transformer:
        return self.published.model

    @property
    def family(self) -> Family:
        return next(family for family in families() if family.name == self.published.family)

    def parameters(self, stored_name: str) -> tuple[str, ...]:
        """The other library's parameters whose rows, joined, a tensor of the files is."""
        name = self.case.renamed.get(stored_name, stored_name)
        return (name,) if isinstance(name, str) else name


def made(case: Case, folder: Path) -> Pair:
    """The pair of a case. No weight keeps its initial value: norms of 1 or biases of 0 would hide a wrong name."""
    seed = sum(map(ord, case.name))
    generator = torch.Generator().manual_seed(seed)
    case.config._attn_implementation = case.attention
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)  # equal weights in every run
        theirs = case.model(case.config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.requires_grad or any(part in name for part in CHOICE):  # others, as sinusoids, are computed
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in theirs.named_buffers():
            if "running_" in name or any(part in name for part in CHOICE):  # of a batch norm, of the choice of experts
                buffer += torch.rand(buffer.shape, generator=generator)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    published = load_published(folder)
    return Pair(case, theirs, folder, published, *rows_of(case, published, generator))


def rows_of(
    case: Case, published: PublishedModel, generator: torch.Generator
) -> tuple[list[list[int]], list[list[int]]]:
    """(rows, targets), random; empty rows for images, which are the same for all models of a size."""
    if not published.spec.frontend.reads_tokens:
        return [[] for _ in case.lengths], []
    highest = published.spec.vocab_size or 0
    rows = [torch.randint(4, highest, (length,), generator=generator).tolist() for length in case.lengths]
    return rows, [torch.randint(4, highest, (max(1, 7 - i),), generator=generator).tolist() for i, _ in enumerate(rows)]


def hears(pair: Pair) -> bool:
    """True if the encoder reads sound."""
    return pair.ours.encoder is not None and not pair.ours.encoder.frontend.part.reads_tokens


def sounds(pair: Pair) -> Signal:
    """Random sounds, one per row: samples, or as many frames as the encoder has positions for."""
    encoder, generator = pair.ours.encoder, torch.Generator().manual_seed(3)
    assert encoder is not None
    if pair.theirs.main_input_name == "input_values":
        return encoder.frontend.random(len(pair.rows), 9, generator)
    length = pair.published.spec.encoder.context_length  # type: ignore[union-attr]
    frames = encoder.frontend.random(len(pair.rows), length, generator)
    assert pair.theirs.config.max_source_positions == length
    return Signal(F.pad(frames.values, (0, 0, 0, 2 * length - frames.values.shape[1])))


def heard(pair: Pair) -> Tensor:
    """The sounds as the transformers library reads them: samples, or the frames of each band."""
    values = sounds(pair).values
    return values.mT if values.dim() == 3 else values


def our_words(pair: Pair, beams: int = 1) -> list[list[int]]:
    """The most probable tokens that qkv's model writes on after each row, or after each source, ``steps`` of them."""
    search = Generation(max_new_tokens=pair.case.steps, temperature=0.0, num_beams=beams)
    if pair.ours.encoder is None:
        return generate(pair.ours, pair.rows, search)
    ids, real = padded(pair.rows)
    with torch.no_grad():
        memory = pair.ours.encode(sounds(pair) if hears(pair) else Signal(ids, lengths=real.sum(1)))
        found = beam_search(pair.ours, [[START]] * len(ids), search, memory=memory)
    return [best[0].tokens for best in found]


def their_words(pair: Pair, beams: int = 1) -> list[list[int]]:
    """The same of the transformers library."""
    decodes = pair.ours.encoder is None
    ids, real = padded(pair.rows, left=decodes)
    options = {
        "max_new_tokens": pair.case.steps,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
        "num_beams": beams,
    }
    if decodes:
        return pair.theirs.generate(ids, attention_mask=real, **options)[:, ids.shape[1] :].tolist()
    if hears(pair):  # its own method divides what it hears into windows
        words = GenerationMixin.generate(pair.theirs, heard(pair), decoder_start_token_id=START, **options)
        return words[:, 1:].tolist()  # type: ignore[index]
    return pair.theirs.generate(ids, attention_mask=real, decoder_start_token_id=START, **options)[:, 1:].tolist()


def read_again(pair: Pair) -> tuple[list[list[int]], list[list[int]]]:
    """Most probable tokens of both libraries after the first four of each row, the whole text read again for each."""

    def written(answer: Callable[[Tensor], Tensor], row: list[int]) -> list[int]:
        text = row[:4]
        for _ in range(pair.case.steps):
            text = [*text, int(answer(torch.tensor([text]))[0, -1].argmax())]
        return text

    with torch.no_grad():
        ours = [written(lambda ids: pair.ours(ids)[0], row) for row in pair.rows]
        return ours, [written(lambda ids: pair.theirs(ids, use_cache=False).logits, row) for row in pair.rows]


def greedy_difference(pair: Pair, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], begin: str) -> str:
    """Describe the first token in which greedy texts differ by more than rounding; empty if there is none.

    Where two tokens are equally probable but for rounding, the processor decides between them, and the rest of the row
    is another text. ``begin``: "row", or "four" if the texts begin with the first four tokens of their row.
    """
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b), None)
        if at is not None:
            read = [] if begin == "four" else [START] if pair.ours.encoder is not None else pair.rows[row]
            logits = _their_logits(pair, row, [*read, *mine[:at]])[-1]
            gap = float(logits[other[at]] - logits[mine[at]])
            if gap > 1e-4 * float(logits.abs().max()):
                return f"row {row}, token {at}: {mine[at]} instead of {other[at]}, whose logit is {gap:.1e} higher"
    return ""


def beam_difference(pair: Pair, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    """Describe the first row whose texts have different probabilities; empty if there is none."""
    for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine != other:
            scores = [_log_probability(_their_logits(pair, row, [START, *text[:-1]]), text) for text in (mine, other)]
            if abs(scores[0] - scores[1]) > 1e-4 * abs(scores[1]):
                return f"row {row}: {mine} instead of {other}, logarithms of probability {scores[0]} and {scores[1]}"
    return ""


def _log_probability(logits: Tensor, text: Sequence[int]) -> float:
    return float(logits.double().log_softmax(-1)[range(len(text)), list(text)].sum())


def _their_logits(pair: Pair, row: int, text: Sequence[int]) -> Tensor:
    """Logits (N, C) of the transformers library after each token of ``text``, read by a decoder without a cache."""
    ids = torch.tensor([text])
    with torch.no_grad():
        if pair.ours.encoder is None:
            return pair.theirs(ids, use_cache=False).logits[0]
        if hears(pair):
            return pair.theirs(heard(pair)[row : row + 1], decoder_input_ids=ids, use_cache=False).logits[0]
        return pair.theirs(torch.tensor([pair.rows[row]]), decoder_input_ids=ids, use_cache=False).logits[0]


def padded(rows: Sequence[Sequence[int]], left: bool = False) -> tuple[Tensor, Tensor]:
    """(ids, which are real), each (B, N)."""
    longest = max(map(len, rows))
    ids, real = torch.ones(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, where], real[i, where] = torch.tensor(row), 1
    return ids, real


def images(pair: Pair) -> Signal:
    """Random images, or sounds, one per row; of series a window of three channels, each of which is a row."""
    needed = pair.published.spec.frontend.processor
    length = 9 if needed is not None and needed.of_sounds else 1
    return pair.ours.frontend.random(len(pair.rows), length, torch.Generator().manual_seed(3))


def _series(pair: Pair) -> bool:
    return pair.theirs.main_input_name == "past_values"


def our_answer(pair: Pair) -> Tensor:
    """What qkv's model says of the rows, padded on the right: (B, N, C), or (B, C) of a head that pools."""
    if not pair.published.spec.frontend.reads_tokens:
        answer = pair.ours(images(pair))[0]
        if not _series(pair) or answer.shape[1:] != (1, pair.theirs.config.prediction_length, 1):
            return answer
        windows = images(pair).values[..., 0]
        scale = (windows.var(1, correction=0) + 1e-5).sqrt()
        return (answer[:, 0, :, 0] * scale[:, None] + windows.mean(1)[:, None])[..., None]
    signal, source = our_input(pair)
    return pair.ours(signal, memory=None if source is None else pair.ours.encode(source))[0]


def our_input(pair: Pair) -> tuple[Signal, Signal | None]:
    """(input, source of the encoder), padded on the right."""
    if not pair.published.spec.frontend.reads_tokens:
        return images(pair), None
    ids, real = padded(pair.rows)
    rows = Signal(ids, lengths=real.sum(1))
    if pair.ours.encoder is None:
        return rows, None
    targets, there = padded(pair.targets)
    return Signal(targets, lengths=there.sum(1)), sounds(pair) if hears(pair) else rows


def weights_difference(pair: Pair) -> float:
    """Largest difference of attention weights at positions that are not padding, over all branches of both models."""
    with torch.no_grad():
        ours = attention_maps(pair.ours, *our_input(pair))
        answer = pair.theirs(**_their_input(pair), output_attentions=True)
    names = {"encoder": "encoder_attentions", "self": "decoder_attentions", "cross": "cross_attentions"}
    theirs = {name: list(answer.get(attribute) or ()) for name, attribute in names.items()}
    theirs["self"] = theirs["self"] or list(answer.get("attentions") or ())
    assert len(ours) == sum(map(len, theirs.values())) > 0
    differences = []
    for found in ours:
        expected = theirs["encoder" if found.stack == "encoder" else found.kind].pop(0)
        assert found.weights.shape == expected.shape
        read, keys = _counts(pair, found)
        for row in range(len(expected)):
            difference = (found.weights - expected)[row, :, : read[row], : keys[row]]
            differences.append(float(difference.abs().max()))
    return max(differences)


def _counts(pair: Pair, found: AttentionMap) -> tuple[list[int], list[int]]:
    """Numbers of queries and of keys of each row that are not padding."""
    if not pair.rows[0]:
        everything = [found.weights.shape[2]] * len(pair.rows)
        return everything, everything
    rows, targets = [len(row) for row in pair.rows], [len(row) for row in pair.targets]
    if pair.ours.encoder is None or found.stack == "encoder":
        return rows, rows
    return targets, rows if found.kind == "cross" else targets


def their_answer(pair: Pair, left: bool = False) -> Tensor:
    """The same of the transformers library; rows padded on the left are moved to where ours are."""
    if not pair.published.spec.frontend.reads_tokens:
        values = images(pair).values
        if _series(pair):
            found = pair.theirs(past_values=values[..., 0].T[None])
            forecast = "prediction_outputs" in found
            return found.prediction_outputs[0].T[..., None] if forecast else found.last_hidden_state[0]
        found = pair.theirs(**{pair.theirs.main_input_name: values})
        return found.logits if "logits" in found else found.last_hidden_state
    given = _their_input(pair, left)
    answer = _answer_of(pair.theirs(**given), pair)
    return moved(answer, given["attention_mask"]) if left and answer.dim() == 3 else answer


def _their_input(pair: Pair, left: bool = False) -> dict[str, Tensor]:
    if not pair.published.spec.frontend.reads_tokens:
        return {pair.theirs.main_input_name: images(pair).values}
    ids, real = padded(pair.rows, left)
    given: dict[str, Tensor] = {"input_ids": ids, "attention_mask": real}
    if hears(pair):
        given = {pair.theirs.main_input_name: heard(pair)}
    if pair.ours.encoder is not None:
        targets, there = padded(pair.targets)
        given |= {"decoder_input_ids": targets, "decoder_attention_mask": there}
    elif left and "position_ids" in inspect.signature(pair.theirs.forward).parameters:
        given["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    return given


def _answer_of(found: Any, pair: Pair) -> Tensor:
    """Logits; of span heads, start and end stacked; of a body without a head, hidden states times the token table, or
    alone where qkv's model has no head either.
    """
    if "logits" in found:
        return found.logits
    if "start_logits" in found:
        return torch.stack((found.start_logits, found.end_logits), -1)
    if not pair.published.spec.head.predicts_tokens:
        return found.last_hidden_state
    return found.last_hidden_state @ pair.theirs.get_input_embeddings().weight.t()


def moved(answer: Tensor, real: Tensor) -> Tensor:
    """(B, N, C) with what stands at the right of each row brought to its left."""
    out = torch.zeros_like(answer)
    for i, count in enumerate(real.sum(1).tolist()):
        out[i, :count] = answer[i, real.shape[1] - count :]
    return out


def answered(pair: Pair, answer: Tensor) -> Tensor:
    """The answers at real positions, (…, C)."""
    if answer.dim() == 2 or not pair.published.spec.frontend.reads_tokens:
        return answer.flatten(0, -2)
    _, real = padded(pair.rows if pair.ours.encoder is None else pair.targets)
    return answer[real.bool()]


@lru_cache(maxsize=1)
def our_answers(pair: Pair) -> Tensor:
    """Those at real positions, the same for all tests of a pair."""
    with torch.no_grad():
        return answered(pair, our_answer(pair))


@lru_cache(maxsize=1)
def their_answers(pair: Pair) -> Tensor:
    """The same of the transformers library."""
    with torch.no_grad():
        return answered(pair, their_answer(pair))


def loss(pair: Pair, answer: Tensor) -> Tensor:
    """A cross-entropy and a linear function of the answers, so that every number of them counts."""
    logits = answered(pair, answer).float()
    generator = torch.Generator().manual_seed(7)
    chosen = torch.randint(0, logits.shape[-1], logits.shape[:-1], generator=generator)
    weights = torch.randn(logits.shape, generator=generator)
    return F.cross_entropy(logits, chosen) + (logits * weights).mean()


class Gradients(NamedTuple):
    """Losses of both libraries, and their gradients by the names of the parameters of each."""

    our_loss: Tensor
    their_loss: Tensor
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]

    def of(self, pair: Pair, stored_name: str) -> Tensor | None:
        """The other library's gradient of a tensor of the files; None if it has none."""
        parts = pair.parameters(stored_name)
        if not all(part in self.theirs for part in parts):
            return None
        return torch.cat([self.theirs[part] for part in parts]) if len(parts) > 1 else self.theirs[parts[0]]


@lru_cache(maxsize=1)
def gradients(pair: Pair) -> Gradients:
    """A gradient takes the way of its weight: ours have the names of the files."""
    pair.theirs.train(pair.case.trains)
    ours, theirs = loss(pair, our_answer(pair)), loss(pair, their_answer(pair))
    ours.backward()
    theirs.backward()
    with torch.no_grad():
        tensors = published_tensors(pair.ours, pair.family, pair.published.architecture, gradients=True)
    named = {name: p.grad for name, p in pair.theirs.named_parameters() if p.grad is not None}
    pair.ours.zero_grad()
    pair.theirs.eval().zero_grad()
    return Gradients(ours.detach(), theirs.detach(), dict(tensors), named)


def stored(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's one file."""
    return load_file(folder / "model.safetensors")
