"""What a model is: a front end, a stack of blocks and a head."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.base import Part, Seq, Spec
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.errors import Problem
from qkv.spec.parts import Add, LanguageModelHead, LayerNorm, Learned, NoPositions, Norm, Positions, Residual


class Block(Spec):
    """A list of residual branches and an order.

    pre        x + f(norm x)                (GPT-2)
    post       norm(x + f(x))               (Vaswani et al. 2017)
    sandwich   x + norm f(norm x)           (CogView, Ding et al. 2021)
    parallel   x + Σ_k f_k(norm x)          (GPT-J 2021), one norm for all branches
    """

    branches: Seq[Branch] = Field(default=(Attention(), FeedForward()), min_length=1)
    order: Literal["pre", "post", "sandwich", "parallel"] = "pre"
    norm: Norm = LayerNorm()
    residual: Residual = Add()
    dropout: float = Field(default=0.0, ge=0, lt=1, description="of what a branch adds")
    drop_path: float = Field(default=0.0, ge=0, lt=1, description="chance that a sequence skips a branch in training (Huang et al. 2016)")

    @property
    def causal(self) -> bool:
        return all(branch.causal for branch in self.branches)


class Frontend(Part, slot=True):
    """A signal made into vectors with positions."""


class Text(Frontend, kind="text"):
    """Token ids -> a table of ``vocab_size`` vectors, joined by position vectors."""

    vocab_size: int | None = Field(default=None, gt=0, description="default: the tokenizer's")
    positions: Positions = Learned()
    join: Literal["add", "concatenate"] = "add"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    scale: bool = Field(default=False, description="multiply token vectors by √width, as in Vaswani et al. 2017")

    def problems(self) -> list[Problem]:
        if self.join == "concatenate" and isinstance(self.positions, NoPositions):
            return [Problem(("join",), "there are no positions to concatenate; use 'add', or other positions than 'none'")]
        return []


class Model(Spec):
    """Front end -> ``num_layers`` blocks, the listed ones repeated in turn -> final norm -> head."""

    width: int = Field(default=128, gt=0, description="features of a position, D")
    num_layers: int | None = Field(default=None, gt=0, description="default: the number of blocks listed")
    context_length: int = Field(default=256, gt=0, description="longest sequence in training; the size of a learned position table")
    frontend: Frontend = Text()
    blocks: Seq[Block] = Field(default=(Block(),), min_length=1)
    norm: Norm = LayerNorm()
    head: LanguageModelHead = LanguageModelHead()
    init_std: float = Field(
        default=0.02, gt=0, description="of weight matrices; those that end a branch are divided by √(number of branches)"
    )

    @property
    def layers(self) -> tuple[Block, ...]:
        """Every block, the pattern unrolled."""
        count = self.num_layers or len(self.blocks)
        return tuple(self.blocks[i % len(self.blocks)] for i in range(count))

    @property
    def causal(self) -> bool:
        """True if the model decodes: no position sees a later one in any branch, and no statistic spans positions."""
        return all(block.causal for block in self.layers)

    @property
    def vocab_size(self) -> int | None:
        """V, None while the tokenizer that decides it is not known."""
        return self.frontend.vocab_size if isinstance(self.frontend, Text) else None

    def first_not_causal(self) -> tuple[str | int, ...]:
        """The path of the first branch that lets a position see a later one; empty if there is none."""
        for i, block in enumerate(self.blocks):
            for j, branch in enumerate(block.branches):
                if not branch.causal:
                    return ("blocks", i, "branches", j)
        return ()

    def problems(self) -> list[Problem]:
        found: list[Problem] = []
        for i, block in enumerate(self.blocks):
            for j, branch in enumerate(block.branches):
                found += [p.under("blocks", i, "branches", j) for p in branch.width_problems(self.width)]
        if self.num_layers and self.num_layers < len(self.blocks):
            found.append(Problem(("num_layers",), f"{self.num_layers} layers are fewer than the {len(self.blocks)} blocks of the pattern"))
        if isinstance(self.frontend, Text) and self.frontend.join == "concatenate" and self.width % 2:
            found.append(Problem(("width",), f"concatenated positions take half of the width, and {self.width} is odd"))
        return found
