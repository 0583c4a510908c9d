"""Specs of the initial weights of a training run: random, from a checkpoint, or set by hand."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from qkv.spec.base import LARGEST_SEED, Part, Seq, Spec, call_form
from qkv.spec.errors import Problem

Values = float | Literal["identity"] | Seq[float] | Seq[Seq[float]]
"""One number for all elements, the identity, or the elements of a vector or matrix."""
_KIND = re.compile(r"\s*(\w+)\s*(\(.*\))?\s*", re.DOTALL)


def _path_in(call: str) -> str:
    """Return the path in ``(path)`` or ``(source=path)``, with or without quotes: a path is no expression."""
    inside = call[1:-1].strip()
    path = re.sub(r"^source\s*=\s*", "", inside)
    return path[1:-1] if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"" else path


class Start(Part, slot=True):
    """Base class of the sources of a training run's initial weights.

    A text that names no kind is a checkpoint: ``start: bert-base-uncased``.
    """

    @property
    def checkpoint(self) -> str | None:
        """Run or published checkpoint with the weights; None for other kinds.

        It also provides the tokenizer, and the model if the recipe gives none.
        """
        return None

    @property
    def blocks_of(self) -> str | None:
        """Run or published checkpoint whose blocks are read alone, behind another front end; None for other kinds."""
        return None

    @classmethod
    def short_form(cls, text: str) -> Any:
        match = _KIND.fullmatch(text)
        if match and (match[2] is not None or match[1] in cls.kinds()) and (part := cls.of_kind(match[1])) is not None:
            named = match[2] is not None and "source" in part.model_fields
            return {"kind": match[1], "source": _path_in(match[2])} if named else call_form(cls, text)
        return {"kind": "checkpoint", "source": text}


class RandomStart(Start, kind="random"):
    """Random weights: matrices from N(0, init_std²), see ``qkv.build``."""

    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED, description="default: training.seed")


class CheckpointStart(Start, kind="checkpoint"):
    """Weights of a run, or of a published checkpoint: pretraining, then fine-tuning (Howard & Ruder 2018)."""

    source: str = Field(min_length=1, description="run folder, or folder or name of a published checkpoint")

    @property
    def checkpoint(self) -> str:
        return self.source

    def essential(self) -> Any:
        if self.source.partition("(")[0].strip() in Start.kinds():  # a folder that is called like a kind of start
            return super().essential()
        return self.source  # as written by hand, and as stored with the weights of earlier runs


class BlocksStart(Start, kind="blocks"):
    """Weights of the blocks and the final norm of a run, behind another front end and before another head.

    With ``training.frozen: [blocks, norm]`` one encoder serves several kinds of signals (Meta-Transformer, Zhang et al.
    2023). Width, blocks and norm that the recipe leaves out are those of the run.
    """

    source: str = Field(min_length=1, description="run folder, or folder or name of a published checkpoint")

    @property
    def blocks_of(self) -> str:
        return self.source


class DecoderStart(CheckpointStart, kind="decoder"):
    """Weights of a language model that becomes the decoder of an encoder–decoder (VisualGPT, Chen et al. 2022).

    The recipe sets ``model.encoder``, and in ``model.blocks`` the new blocks that read it: one of them stands before
    each block of the language model. With ``residual: gated`` their gates begin at 0, so that the model begins as the
    language model (Flamingo, Alayrac et al. 2022).
    """

    def essential(self) -> Any:
        return Part.essential(self)


class WeightPiece(Spec):
    """Piece of a weight tensor, and its values.

    ``weight`` is a full name, such as ``blocks.0.branches.1.body.down``, or if ``layer`` is set, a name below a branch.
    It can be omitted if only one weight of the branch has the ``piece``: ``layer: 0, piece: q, head: 2`` selects the
    queries of head 2.
    """

    weight: str = Field(default="", description="full name of the weight; with 'layer', its name below the branch")
    layer: int | None = Field(default=None, ge=0)
    branch: int = Field(default=0, ge=0, description="index of the branch in its block")
    piece: str = Field(default="", description="piece of the rows or columns, such as q, k, v, gate; default: all")
    head: int | None = Field(default=None, ge=0, description="head of the piece; default: all")
    values: Values = Field(description="a number, 'identity', or nested lists of the piece's shape")

    def problems(self) -> list[Problem]:
        if self.layer is None and not self.weight:
            return [Problem((), "name a weight, or a layer and a piece")]
        if self.layer is not None and not (self.weight or self.piece):
            return [Problem(("layer",), "name a weight or a piece of the layer")]
        if self.head is not None and not self.piece:
            return [Problem(("head",), "name the piece that the head belongs to, such as q")]
        return []


class ConstructedStart(Start, kind="constructed"):
    """Weights set by hand, piece by piece, by the names in their layouts; later pieces overwrite earlier ones.

    With ``rest: zero``, matrices, tables and biases that no piece sets are 0, and norms have their initial values.
    """

    pieces: Seq[WeightPiece] = ()
    rest: Literal["random", "zero"] = "random"
    seed: int | None = Field(
        default=None, ge=0, le=LARGEST_SEED, description="seed of the other weights; default: training.seed"
    )
