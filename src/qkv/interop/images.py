"""Conversion of image processors between qkv and ``preprocessor_config.json`` of published folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.interop.files.folder import read_json
from qkv.interop.files.places import OPEN_CLIP, PREPROCESSOR, PROCESSOR
from qkv.interop.mapping.config import Config
from qkv.spec.model import Model, Stack, Tower
from qkv.spec.processors import Processor
from qkv.spec.signals.images import Images, Patches
from qkv.spec.signals.sizes import SizedImages, SizedPatches
from qkv.spec.signals.tiles import ImageTiles
from qkv.system.errors import UserError, nearest, quoted

_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Resampling filters by their numbers in the library Pillow."""
_HALF = (0.5, 0.5, 0.5)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class _Kind(NamedTuple):
    """Defaults of a published image processor.

    square: True if an integer ``size`` is the length of both sides, False if it is the length of the shorter side.
    rounded: True if resized pixels are rounded to bytes.
    share: share of the resized shorter side that is cropped, the default of ``crop_pct``; None: resized to ``size``.
    whole: least side of images that are resized to a square without a crop; smaller crops have ``size`` itself
    (ConvNeXt). None: crops have their own size.
    fits: True if images are shrunk to fit into ``size``, with a black border (Donut).
    """

    size: dict[str, int]
    resample: int
    crop: int | None = None
    mean: tuple[float, ...] = _HALF
    deviation: tuple[float, ...] = _HALF
    square: bool = True
    rounded: bool = True
    share: float | None = None
    whole: int | None = None
    fits: bool = False


_KINDS = {
    "ViT": _Kind({"height": 224, "width": 224}, 2),
    "DeiT": _Kind({"height": 256, "width": 256}, 3, crop=224),
    "Bit": _Kind({"shortest_edge": 224}, 3, 224, *_CLIP, square=False),
    "Blip": _Kind({"height": 384, "width": 384}, 3, None, *_CLIP),
    "Siglip": _Kind({"height": 224, "width": 224}, 3),
    "CLIP": _Kind({"shortest_edge": 224}, 3, 224, *_CLIP, square=False),
    "ChineseCLIP": _Kind({"shortest_edge": 224}, 3, 224, *_CLIP, square=False),
    "Beit": _Kind({"height": 224, "width": 224}, 3),
    "Segformer": _Kind({"height": 512, "width": 512}, 2, None, *_IMAGENET),
    "Pvt": _Kind({"height": 224, "width": 224}, 3, None, *_IMAGENET),
    "PoolFormer": _Kind({"shortest_edge": 224}, 3, 224, *_IMAGENET, square=False, share=0.9),
    "ConvNext": _Kind({"shortest_edge": 384}, 3, square=False, share=224 / 256, whole=384),
    "Donut": _Kind({"height": 2560, "width": 1920}, 2, fits=True),
    "DINOv3ViT": _Kind({"height": 224, "width": 224}, 2, None, *_IMAGENET, rounded=False),
}
_TILED = ("Idefics3", "SmolVLM")
"""Published image processors that cut images into tiles."""
_ENDINGS = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
_IGNORED = {
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "auto_map",
    "do_convert_rgb",  # images always have the model's channels
    "data_format",
    "input_data_format",
    "return_tensors",
    "device",
    "disable_grouping",
    "default_to_square",
    "image_seq_length",
    "crop_pct",
    "_valid_processor_keys",
    "do_reduce_labels",  # segmentation only
    "reduce_labels",
}
"""Keys that do not affect the pixels."""


def read_processor(folder: Path, spec: Model) -> Processor | None:
    """Read the image processor of the published ``folder`` for a model of ``spec``.

    Return None if the model reads no images, or the folder has no processor. Raises ``UserError`` for a processor that
    qkv cannot reproduce exactly.
    """
    config = _config(folder) if has_processor(spec) else None
    if config is None:
        return None
    frontend = _stack(spec).frontend
    channels = getattr(frontend, "channels", None) or 3

    if isinstance(frontend, SizedPatches):
        return _sized(config, channels)
    if config.values.get("image_processor_type") in _names(_TILED):
        return _tiles(config, channels, getattr(frontend, "height", None))
    return _images(config, _kind(config), channels)


def _config(folder: Path) -> Config | None:
    """Read the settings of an image processor, which may be part of the file of a whole processor."""
    file = folder / PREPROCESSOR
    if file.is_file():
        return Config(read_json(file), str(file))
    file = folder / PROCESSOR
    table = read_json(file).get("image_processor") if file.is_file() else None
    if isinstance(table, dict):
        return Config(table, f"{file}: image_processor")
    file = folder / OPEN_CLIP
    return Config(_of_open_clip(read_json(file)), f"{file}: preprocess_cfg") if file.is_file() else None


def _of_open_clip(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of OpenCLIP as those of CLIP's processor: images are cropped, or resized to a square."""
    read, towers = values.get("preprocess_cfg") or {}, values.get("model_cfg", {}).get("vision_cfg", {})
    side = read.get("size", towers.get("image_size", 224))
    side = side[0] if isinstance(side, list) else side
    numbers = {name: number for number, name in _RESAMPLE.items()}
    mode, filtered = read.get("resize_mode", "shortest"), read.get("interpolation", "bicubic")
    square = {"height": side, "width": side}
    sizes = {
        "shortest": {"size": {"shortest_edge": side}, "crop_size": square},
        "squash": {"size": square, "do_center_crop": False},
    }
    return {
        "image_processor_type": "CLIPImageProcessor",
        "image_mean": read.get("mean", list(_CLIP[0])),
        "image_std": read.get("std", list(_CLIP[1])),
        "resample": numbers.get(filtered, filtered),
        **sizes.get(mode, {"resize_mode": mode}),
    }


def _stack(spec: Model) -> Stack:
    """Return the stack that reads images: a tower in a row of several inputs, the encoder, or the model's own."""
    towers = (each.stack for each in spec.frontend.inputs_read.values() if isinstance(each, Tower))
    return next(towers, spec.encoder or spec)


def _with_stack(spec: Model, sizes: Mapping[str, Any]) -> Model:
    """Return ``spec`` with the fields ``sizes`` of the stack that reads images."""
    frontend = spec.frontend
    for name, each in frontend.inputs_read.items():
        if isinstance(each, Tower):
            tower = each.changed(stack=each.stack.changed(**sizes))
            return spec.changed(frontend=frontend.changed(inputs={**frontend.inputs_read, name: tower}))
    return spec.changed(**sizes) if spec.encoder is None else spec.changed(encoder=spec.encoder.changed(**sizes))


def has_processor(spec: Model) -> bool:
    """Return True if a model of ``spec``, or its encoder, reads images: its folder may contain an image processor."""
    frontend = _stack(spec).frontend
    return isinstance(frontend, SizedPatches) or (isinstance(frontend, Patches) and frontend.processor is Images)


def _kind(config: Config) -> _Kind:
    key = "image_processor_type" if config.has("image_processor_type") else "feature_extractor_type"
    named = config.word(key, "ViTImageProcessor")
    kinds = {name: kind for stem, kind in _KINDS.items() for name in _names([stem])}
    if named not in kinds:
        raise UserError(f"{config.source}: {key} is {quoted(named)}, which is unsupported; {nearest(named, kinds)}")
    return kinds[named]


def _names(stems: Iterable[str]) -> list[str]:
    """Return the class names of published processors by their stems."""
    return [f"{stem}{ending}" for stem in stems for ending in _ENDINGS]


def _tiles(config: Config, channels: int, height: int | None) -> ImageTiles:
    """Read a processor that cuts images into tiles. ``height``: size of the images that the tower was trained with."""
    config.asked |= _ASKED
    config.fixed("do_resize", True, "the size of the images")
    mean, deviation = _standard(config, _Kind({}, 1), channels)
    side, longest = config.table("max_image_size"), config.table("size")
    tile = side.integer("longest_edge", 364)
    if tile != height:
        raise UserError(
            f"{config.source}: max_image_size is {tile}, but the tower reads images of {height}; qkv supports one "
            "size, as positions of other sizes would be those of fractions of the sides"
        )
    tiles = ImageTiles.parse(
        {
            "height": tile,
            "width": tile,
            "channels": channels,
            "mean": mean,
            "deviation": deviation,
            "resample": _resample(config, 1),
            "longest": longest.integer("longest_edge", 4 * 364),
            "split": config.flag("do_image_splitting", True),
        },
        config.source,
    )
    config.leave_unread((*_IGNORED, "do_pad", "return_row_col_info"))
    return tiles


def _sized(config: Config, channels: int) -> SizedImages:
    """Read a processor whose images keep their aspect ratio."""
    config.asked |= _ASKED
    stem = "Qwen2VL"
    config.word("image_processor_type", f"{stem}ImageProcessor", dict.fromkeys(_names([stem])))
    config.fixed("do_resize", True, "the size of the images")
    config.fixed("temporal_patch_size", 2, "the frames of a patch")
    mean, deviation = _standard(config, _Kind({}, 3, None, *_CLIP), channels)
    size = config.table("size")
    limits = {
        name: config.integer(key, size.integer(key, size.integer(edge, default)))
        for name, (key, edge, default) in _LIMITS.items()
    }
    images = SizedImages.parse(
        {
            "channels": channels,
            "mean": mean,
            "deviation": deviation,
            "resample": _resample(config, 3),
            "patch": config.integer("patch_size", 14),
            "merge": config.integer("merge_size", 2),
            **limits,
        },
        config.source,
    )
    config.leave_unread(_IGNORED)
    return images


_LIMITS = {
    "least": ("min_pixels", "shortest_edge", 56 * 56),
    "most": ("max_pixels", "longest_edge", 28 * 28 * 1280),
}
"""Least and largest number of pixels: key, key in the table of sizes, default."""
_ASKED = {
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_center_crop",
    "rescale_factor",
    "image_mean",
    "image_std",
}


def _resample(config: Config, default: int) -> str:
    """Read the resampling filter of an image processor. Raises ``UserError`` for an unsupported filter."""
    filtered = config.integer("resample", default)
    if filtered not in _RESAMPLE:
        names = ", ".join(f"{number} ({name})" for number, name in _RESAMPLE.items())
        raise UserError(f"{config.source}: resample is {filtered}, which qkv does not support; allowed: {names}")
    return _RESAMPLE[filtered]


def _images(config: Config, kind: _Kind, channels: int) -> Images:
    config.asked |= _ASKED
    config.fixed("do_resize", True, "the size of the images")
    config.fixed("do_pad", kind.fits, "the size of the images")
    if kind.fits:
        config.fixed("do_thumbnail", True, "the size of the images")
        config.fixed("do_align_long_axis", False, "the direction of the images")
    config.fixed("pad_size", None, "the size of the images")
    mean, deviation = _standard(config, kind, channels)
    images = Images.parse(
        {
            **_sizes(config, kind),
            "channels": channels,
            "mean": mean,
            "deviation": deviation,
            "resample": _resample(config, kind.resample),
            "rounded": kind.rounded,
        },
        config.source,
    )
    config.leave_unread(_IGNORED)
    return images


def _standard(config: Config, kind: _Kind, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, standard deviation) of each channel for pixels from 0 to 1.

    A rescale factor in the config is multiplied into them.
    """
    factor = 255 * config.number("rescale_factor", 1 / 255) if config.flag("do_rescale", True) else 255.0
    mean, deviation = (0.0,) * channels, (1.0,) * channels
    if config.flag("do_normalize", True):
        mean, deviation = (
            _per_channel(config, key, default, channels)
            for key, default in (("image_mean", kind.mean), ("image_std", kind.deviation))
        )
    if abs(factor - 1) < 1e-12:
        return mean, deviation
    if factor <= 0:
        raise UserError(f"{config.source}: rescale_factor is {factor / 255:g}, but pixels have a factor above 0")
    return tuple(value / factor for value in mean), tuple(value / factor for value in deviation)


def _per_channel(config: Config, key: str, default: tuple[float, ...], channels: int) -> tuple[float, ...]:
    channel_value = config.values.get(key)
    if isinstance(channel_value, int | float) and not isinstance(channel_value, bool):
        return (config.number(key),) * channels
    values = config.items(key) if config.has(key) else list(default)
    if not all(isinstance(value, int | float) for value in values):
        raise UserError(f"{config.source}: {key} is {quoted(values)}, but it should be a list of numbers")
    return tuple(map(float, values))


def _sizes(config: Config, kind: _Kind) -> dict[str, Any]:
    """Return the fields of ``Images`` for the sizes in a config.

    Images are resized, then cropped around the centre if the config has a crop.
    """
    size = _size(config, "size", kind.size, kind.square)
    if kind.share is not None and (kind.whole or "crop_pct" not in config.nulls):
        return _sizes_of_share(config, kind, size)
    crops = config.flag("do_center_crop", kind.crop is not None)
    if kind.fits and not crops and "height" in size:
        return {**size, "resize": "fit"}
    crop = _size(config, "crop_size", {"height": kind.crop or 0, "width": kind.crop or 0}, True)
    if not crops:
        if "shortest_edge" in size:
            raise UserError(
                f"{config.source}: size sets the shorter side and do_center_crop is false, so images have "
                "several sizes, but a model of qkv reads one size; set a height and a width in size"
            )
        return size
    resized = size.get("shortest_edge") or size["height"]
    if "shortest_edge" in size:
        return {**crop, "resize": "crop", "resized": resized}
    if size["height"] != size["width"]:
        raise UserError(
            f"{config.source}: size is {size['height']} × {size['width']} before a crop, but qkv crops only images "
            "that were resized to a square or by their shorter side"
        )
    return {**crop, "resized": resized}


def _sizes_of_share(config: Config, kind: _Kind, size: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of ``Images`` for a crop that is a share of the resized image, ``crop_pct``."""
    side, share = size.get("shortest_edge") or size["height"], config.number("crop_pct", kind.share)
    crops = config.flag("do_center_crop", kind.crop is not None)
    if size.get("width", side) != side or crops != (kind.whole is None) or share <= 0:
        raise UserError(
            f"{config.source}: qkv supports crop_pct above 0 with one size, and with do_center_crop "
            f"{str(kind.whole is None).lower()} only"
        )
    crop = {"height": side, "width": side}
    if kind.whole is None:
        crop = _size(config, "crop_size", {"height": kind.crop or 0, "width": kind.crop or 0}, True)
    elif side >= kind.whole:
        return crop
    return {**crop, "resize": "crop", "resized": int(side / share)}


def _size(config: Config, key: str, default: dict[str, int], square: bool) -> dict[str, int]:
    """Read the size under a key: {"height", "width"} or {"shortest_edge"}, from a mapping or from one number."""
    size = config.values.get(key)
    config.asked.add(key)
    if size is None:
        return default
    if isinstance(size, int) and not isinstance(size, bool):
        return {"height": size, "width": size} if square else {"shortest_edge": size}
    sizes = config.table(key).values
    ints = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in sizes.values())
    if not ints or set(sizes) not in ({"height", "width"}, {"shortest_edge"}):
        raise UserError(
            f"{config.source}: {key} is {quoted(size)}, but qkv supports only one size, height and width, or "
            "shortest_edge, above 0"
        )
    return dict(sizes)


def written_processor(processor: Processor | None) -> dict[str, Any] | None:
    """Build the contents of preprocessor_config.json for a processor.

    Return None if the processor is not fitted or does not process images.
    """
    if not isinstance(processor, Images) or not processor.is_fitted:
        return None
    if isinstance(processor, ImageTiles):
        return _written_tiles(processor)
    if isinstance(processor, SizedImages):
        return _written_sizes(processor)
    numbers = {name: number for number, name in _RESAMPLE.items()}
    sides = {"height": processor.height, "width": processor.width}
    crops = processor.resize == "crop" or processor.resized is not None
    resized = processor.resized or max(processor.height or 0, processor.width or 0)
    size: Mapping[str, Any] = sides
    if crops:
        size = {"shortest_edge": resized} if processor.resize == "crop" else {"height": resized, "width": resized}
    kind = "Bit" if processor.resize == "crop" else "DeiT" if crops else "ViT"
    fits = processor.resize == "fit"
    if not processor.rounded or fits:
        kind = "Donut" if fits else "DINOv3ViT"
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": dict(size),
        "resample": numbers[processor.resample],
        "do_center_crop": crops,
        **({"do_thumbnail": True, "do_pad": True, "do_align_long_axis": False} if fits else {}),
        **({"crop_size": sides} if crops else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(processor.mean or ()),
        "image_std": list(processor.deviation or ()),
        **({"do_convert_rgb": True} if processor.channels == 3 else {}),
    }


def _written_sizes(processor: SizedImages) -> dict[str, Any]:
    """Build the contents of preprocessor_config.json for a processor whose images keep their aspect ratio."""
    names = ("channels", "mean", "deviation", "resample")
    plain = Images(height=1, width=1, **{name: getattr(processor, name) for name in names})
    keys = written_processor(plain) or {}
    return {
        **{key: value for key, value in keys.items() if key not in ("do_center_crop", "crop_size")},
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": processor.least, "longest_edge": processor.most},
        "min_pixels": processor.least,
        "max_pixels": processor.most,
        "patch_size": processor.patch,
        "temporal_patch_size": 2,
        "merge_size": processor.merge,
    }


def _written_tiles(processor: ImageTiles) -> dict[str, Any]:
    """Build the contents of preprocessor_config.json for a processor that cuts images into tiles."""
    plain = Images(**{name: getattr(processor, name) for name in Images.model_fields if name != "kind"})
    keys = written_processor(plain) or {}
    return {
        **{key: value for key, value in keys.items() if key not in ("do_center_crop", "crop_size")},
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": processor.longest},
        "max_image_size": {"longest_edge": processor.height},
        "do_image_splitting": processor.split,
        "do_pad": True,
    }


def sized_for(spec: Model, processor: Processor | None) -> Model:
    """Adapt ``spec`` to the image size of ``processor``.

    Learned positions of patches are resampled if the model was trained with another size.
    """
    if not isinstance(processor, Images):
        return spec
    return _at_size(spec, processor.height, processor.width)


def sized_as(spec: Model, other: Model) -> Model:
    """Adapt ``spec`` to the image size of the model ``other`` if both models read images."""
    frontend = _stack(other).frontend
    return _at_size(spec, frontend.height, frontend.width) if isinstance(frontend, Patches) else spec


def _at_size(spec: Model, height: int | None, width: int | None) -> Model:
    """Adapt ``spec`` to images of height × width pixels."""
    stack = _stack(spec)
    frontend = stack.frontend
    if not isinstance(frontend, Patches) or height is None or width is None:
        return spec
    if (height, width) == (frontend.height, frontend.width):
        return spec
    resized = frontend.resized(height, width)
    sizes = {"frontend": resized, "context_length": resized.num_positions or stack.context_length}
    return _with_stack(spec, sizes)
