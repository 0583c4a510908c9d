"""Common parts of image families in stages: blocks over ever coarser grids of patches, in ever wider vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qkv.interop.families.common.heads import label_count, pooled_head, problem_keys
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule
from qkv.spec.heads import ClassificationHead, Head, RegressionHead
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoNorm, NoPositions, Norm
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError, quoted


class Stage(NamedTuple):
    """Stage of a model: the index of its first block, its blocks, and the features of its vectors."""

    first: int
    blocks: tuple[Block, ...]
    width: int


def numbers(config: Config, key: str, default: Sequence[int], least: int = 1) -> tuple[int, ...]:
    """Return a list of integers of at least ``least``, one for each stage. Raises ``UserError``."""
    values = config.items(key) if config.has(key) else list(default)
    if not values or not all(isinstance(each, int) and not isinstance(each, bool) and each >= least for each in values):
        raise UserError(f"{config.source}: {key} is {quoted(values)}, but it should be a list of integers >= {least}")
    return tuple(values)


def of_each_stage(config: Config, count: int, **lists: Sequence[int]) -> None:
    """Raise ``UserError`` unless each of ``lists``, by its key, has ``count`` entries."""
    for key, values in lists.items():
        if len(values) != count:
            raise UserError(f"{config.source}: {key} has {len(values)} entries, but the model has {count} stages")


def drop_paths(config: Config, depths: Sequence[int], default: float) -> list[float]:
    """Return the probability of skipping a branch of each block, which grows linearly up to ``drop_path_rate``."""
    count, rate = sum(depths), config.number("drop_path_rate", default)
    return [rate * i / max(count - 1, 1) for i in range(count)]


def whole_patches(config: Config, embeds: Patches) -> Patches:
    """Return the front end. Raises ``UserError`` if the patches leave pixels over, which published code fills up."""
    if embeds.height and embeds.width and (embeds.height % embeds.patch or embeds.width % embeds.patch):
        raise UserError(
            f"{config.source}: image_size is {embeds.height} × {embeds.width}, but qkv supports only multiples of the "
            f"patch size, {embeds.patch}; the others are filled up with zeros"
        )
    return embeds


def overlapping(config: Config, size: int, step: int, border: int) -> Patches:
    """Build the front end of patches of ``size`` pixels, ``step`` apart, of images with a border of zeros."""
    height, width = vit.sides(config, "image_size", 224)
    return Patches(
        patch=size,
        stride=None if step == size else step,
        padding=border,
        height=height,
        width=width,
        channels=config.integer("num_channels", 3),
        positions=NoPositions(),
    )


def overlapping_config(embeds: Patches, parts: Sequence[Stage]) -> dict[str, Any]:
    """Return the keys of the sizes of each stage, whose merges are convolutions."""
    merges = [part.blocks[0].merge for part in parts[1:]]
    return {
        "depths": [len(part.blocks) for part in parts],
        "hidden_sizes": [part.width for part in parts],
        "patch_sizes": [embeds.patch, *(getattr(merge, "size", 0) for merge in merges)],
        "strides": [embeds.stride or embeds.patch, *(getattr(merge, "stride", 0) for merge in merges)],
        "num_channels": embeds.channels,
        "image_size": sides(embeds),
    }


def model(config: Config, width: int, embeds: Patches, blocks: Sequence[Block], norm: Norm, head: Head) -> Model:
    """Build the spec of a model whose first stage has ``width`` features."""
    return Model(
        width=width,
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=tuple(blocks),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def stages_of(spec: Model) -> list[Stage]:
    """Return the stages of a model; the first begins without a merge."""
    starts = [i for i, block in enumerate(spec.layers) if i == 0 or block.merge is not None]
    widths, ends = spec.widths(spec.width), [*starts[1:], len(spec.layers)]
    return [Stage(i, spec.layers[i:end], widths[i]) for i, end in zip(starts, ends, strict=True)]


def sides(embeds: Patches) -> int | list[int | None] | None:
    """Return the value of ``image_size`` for a front end."""
    return embeds.height if embeds.height == embeds.width else [embeds.height, embeds.width]


def classifier(
    pooling: str = "mean",
    norm: Callable[[Config], LayerNorm] | None = None,
    norms: str = "",
    count: Callable[[Config], int] = label_count,
) -> Architecture:
    """Build the classifier of a pooled vector.

    ``norm``: norm of that vector, ``norms``: its published name.   ``count``: number of classes of a config.
    """

    def read(config: Config) -> Head:
        return pooled_head(config, count(config), pooling=pooling, norm=norm(config) if norm else NoNorm())

    def write(head: Head) -> dict[str, Any] | None:
        return problem_keys(head) if isinstance(head, ClassificationHead | RegressionHead) else None

    rows = (NameRule("head.norm.*", norms),) if norms else ()
    return Architecture(read, write, (*rows, NameRule("head.output.*", "classifier.*")))
