"""Canonical form of a spec, in which every default is explicit, so that equal models compare equal."""

from __future__ import annotations

from typing import TypeVar

from qkv.spec.model import Block, Layered, Model, Stack


def normal(spec: Model) -> Model:
    """Convert ``spec`` to canonical form.

    Repeated blocks are unrolled, derived sizes become numbers, and settings that matter in training only (dropout,
    initialisation) are reset.
    """
    plain = _stack(spec, spec.width)
    latents = spec.latents
    if latents is not None:
        once = latents.once if latents.rounds > 1 else 0
        latents = _layered(latents, spec.latent_width).changed(width=spec.latent_width, once=once)
    segmentation = spec.segmentation
    if segmentation is not None:
        width = segmentation.inner_width(spec.width)
        segmentation = segmentation.with_inner(lambda inner: _layered(inner, width))
    encoder = _stack(spec.encoder, spec.encoder_width) if spec.encoder else None
    if encoder is not None and encoder.latents is not None:
        width = encoder.latents.width or spec.encoder_width
        encoder = encoder.changed(latents=_layered(encoder.latents, width).changed(width=width))
    return plain.changed(encoder=encoder, latents=latents, segmentation=segmentation, init_std=0.02)


L = TypeVar("L", bound=Layered)
S = TypeVar("S", bound=Stack)


def _stack(spec: S, width: int) -> S:
    length = spec.frontend.num_positions or spec.context_length
    return _layered(spec, width).changed(frontend=spec.frontend.canonical(width), context_length=length)


def _layered(spec: L, width: int) -> L:
    blocks, grid = list[Block](), spec.grid
    for block, features, place in zip(spec.layers, spec.widths(width), spec.places, strict=True):
        merge = None if block.merge is None else block.merge.canonical(width, grid)
        blocks.append(_block(block, features).changed(merge=merge))
        width, grid = features, place.grid
    return spec.changed(num_layers=len(blocks) or None, blocks=tuple(blocks))


def _block(block: Block, width: int) -> Block:
    return block.changed(
        branches=tuple(branch.canonical(width) for branch in block.branches), dropout=0.0, drop_path=0.0
    )
