"""Subject of an inspection: a model and an input, and what views say of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.lens.capture.edits import ablate
from qkv.lens.capture.regions import Region
from qkv.lens.inspection.reading import ReadInput
from qkv.lens.views.head_roles import repeated_tokens
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.runs.chats.pieces import pieces
from qkv.runs.run import Run

_MARKS = ".,;:!?\n"
_REPEATED = 24
"""Number of random tokens that are repeated, if the model reads twice as many."""


@dataclass(frozen=True)
class AblatedHead:
    """AblatedHead of a branch: ``path`` of the branch, such as "blocks.3.branches.0", and number of the head."""

    path: str
    number: int


@dataclass(frozen=True)
class Subject:
    """Model and input that are looked at, with the heads that are taken out of the model: their outputs are replaced by
    their mean over the positions. text: text over which neurons are read; None: held-out rows of the run.
    """

    run: Run
    read: ReadInput
    ablated: tuple[AblatedHead, ...] = ()
    text: str | None = None

    @cached_property
    def output(self) -> Tensor:
        """Output of the model for the answer that is explained: logits (C) of classes, or values."""
        model, read = self.run.model, self.read
        with torch.no_grad(), evaluating(model), self.edited():
            memory = None if read.source is None else model.encode(read.source)
            output = at_least_single(model(read.signal, memory=memory)[0])[read.row]
        return output[self.position] if output.dim() == 2 else output

    def edited(self) -> AbstractContextManager[Any]:
        """Take the heads out of all calls of the model inside."""
        edits = [ablate(Region(f"{head.path}.head_outputs", heads=[head.number]), "positions") for head in self.ablated]
        return self.run.model.tapped(*edits) if edits else nullcontext()

    @property
    def position(self) -> int:
        """Position whose prediction is explained, counted from 0."""
        count = len(self.read.sides["model"].labels)
        return self.read.position % count

    @property
    def classes(self) -> bool:
        """True if the outputs are logits of classes, of which one is right."""
        return self.run.model.spec.head.serves in ("language_model", "tokens", "classification", "ctc")

    @cached_property
    def target(self) -> int:
        """Class with the highest output, of those that have a name."""
        return int(self.output[: self.named].argmax())

    @property
    def named(self) -> int:
        """Number of classes that have a name; a published model may have rows of its table without a token."""
        labels, tokenizer = self.run.vocabulary.labels, self.run.tokenizer
        if self.run.model.spec.head.serves == "classification" and labels:
            return len(labels)
        return len(self.output) if tokenizer.absent else min(len(self.output), tokenizer.vocab_size)

    def name_classes(self, ids: list[int]) -> list[str]:
        """Return the names of classes: labels, or texts of tokens."""
        labels, tokenizer = self.run.vocabulary.labels, self.run.tokenizer
        if self.run.model.spec.head.serves == "classification" and labels:
            return [labels[i] if i < len(labels) else str(i) for i in ids]
        return [str(i) for i in ids] if tokenizer.absent else [pieces(tokenizer, [i])[0] for i in ids]

    def with_model(self, model: Transformer) -> Self:
        """Return the same input and heads for other weights, such as those of a checkpoint."""
        return replace(self, run=replace(self.run, model=model))

    @property
    def repeats_tokens(self) -> bool:
        """True if heads are scored on random tokens that are repeated, not on the input."""
        return self.run.model.vocab_size is not None and self.run.model.encoder is None

    @cached_property
    def scored(self) -> tuple[Signal, Signal | None, int]:
        """Rows on which heads are scored, the encoder's, and the first position whose loss counts: random tokens that
        are repeated once, or else the input.
        """
        model = self.run.model
        if model.vocab_size is None or not self.repeats_tokens:
            return self.read.signal, self.read.source, 0
        limit = model.spec.position_limit or 2 * _REPEATED
        length = max(1, min(_REPEATED, limit // 2))
        rows = repeated_tokens(model.vocab_size, length=length).to(model.device)
        return Signal.of(rows), None, length

    @cached_property
    def delimiters(self) -> tuple[int, ...]:
        """Ids of tokens of one punctuation mark, with or without a space before it, in an order of their own."""
        tokenizer = self.run.vocabulary.tokenizer
        if tokenizer.absent:
            return ()
        texts = [before + mark for mark in _MARKS for before in ("", " ", "a")]
        ids = dict.fromkeys(i for text in texts if not tokenizer.unknown(text) for i in tokenizer.encode(text))
        return tuple(i for i in ids if pieces(tokenizer, [i])[0].strip(" ") in tuple(_MARKS))
