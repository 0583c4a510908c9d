"""Canonical form of a spec: every default written out, so that equal models compare equal."""

from __future__ import annotations

from typing import TypeVar

from qkv.spec.branches import Branch, DotProduct, FeedForward, GatedFeedForward
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.mixers.relative_attention import DisentangledAttention
from qkv.spec.mixers.sparse_attention import SparseAttention
from qkv.spec.model import Block, Layered, Model, Stack, Text


def normal(spec: Model) -> Model:
    """Canonical ``spec``: blocks unrolled, derived sizes as numbers, settings of training alone (dropout, initialisation) reset."""
    plain = _stack(spec, spec.width)
    latents = spec.latents
    if latents is not None:
        once = latents.once if latents.rounds > 1 else 0
        latents = _layered(latents, spec.latent_width).changed(width=spec.latent_width, once=once)
    return plain.changed(encoder=_stack(spec.encoder, spec.width) if spec.encoder else None, latents=latents, init_std=0.02)


L = TypeVar("L", bound=Layered)
S = TypeVar("S", bound=Stack)


def _stack(spec: S, width: int) -> S:
    frontend = spec.frontend
    if isinstance(frontend, Text):
        frontend = frontend.changed(vectors=None, dropout=0.0, width=spec.frontend_width(width))
    return _layered(spec, width).changed(frontend=frontend)


def _layered(spec: L, width: int) -> L:
    blocks = tuple(_block(block, width) for block in spec.layers)
    return spec.changed(num_layers=len(blocks) or None, blocks=blocks)


def _block(block: Block, width: int) -> Block:
    return block.changed(branches=tuple(_branch(branch, width) for branch in block.branches), dropout=0.0, drop_path=0.0)


def _branch(branch: Branch, width: int) -> Branch:
    match branch:
        case DotProduct():
            head_dim, value_dim = branch.dims(width)
            sizes = {"head_dim": head_dim, "value_dim": value_dim, "num_kv_heads": branch.kv_heads}
            plain = branch.changed(**sizes, output_bias=branch.ends_with_bias, dropout=0.0)
            return plain.changed(table_dropout=0.0) if isinstance(plain, DisentangledAttention) else plain
        case LSHAttention():
            return branch.changed(head_dim=branch.head_width(width), dropout=0.0, inexact_decoding=False)
        case SparseAttention():
            return branch.changed(head_dim=branch.head_width(width), dropout=0.0)
        case FeedForward() | GatedFeedForward():
            return branch.changed(hidden=branch.hidden_at(width), dropout=0.0)
        case _:
            return branch
