"""Small checkpoints of families of images beside texts: sizes, arguments, and the outputs to compare.

``FAMILIES``: keys of a config, as in ``family_sizes``. Pairs are compared in the vectors of both towers and in their
scores; models that read images among the tokens, or behind a decoder, in logits of whole rows, of rows of two lengths,
in one step after a prefill, and in a greedy caption.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv

Keys = dict[str, Any]
Form = tuple[str, Tensor, Tensor]
SIDE, PATCH = 32, 8
"""Pixels of a side of an image, and of a patch."""
LENGTH, SHORT, WRITTEN = 10, 7, 6
"""Tokens of a text beside an image, of a short one, and of a caption that is written."""
END, IMAGE = 159, 150
"""End of a text, at which towers of text are pooled, and placeholder of an image."""
TEXT_OF_IMAGES = "text without images"
"""Form of models that read images, of which qkv opens the model of text."""
PAIRS = ("aimv2", "clap", "clvp", "flava", "groupvit", "owlv2", "owlvit", "vision-text-dual-encoder", "xclip")
"""Model types with two towers beside those that transformers registers for labels of images without training."""
_PATCHES = {"image_size": SIDE, "patch_size": PATCH}
_ENDS = {"eos_token_id": END, "bos_token_id": 1, "pad_token_id": 0}
FAMILIES: dict[str, Keys] = {
    **dict.fromkeys(("clip_text_model", "metaclip_2_text_model", "clipseg_text_model"), _ENDS),
    "siglip_text_model": {"max_position_embeddings": LENGTH, "projection_size": 64},
    "siglip_vision_model": _PATCHES,
    "vision-text-dual-encoder": {"vision_config": {"model_type": "vit"}, "text_config": {"model_type": "bert"}},
    "clap_audio_model": {
        "patch_embeds_hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [2, 2],
        "hidden_size": 32,
        "window_size": 4,
        "spec_size": 64,
        "num_mel_bins": 16,
        "num_hidden_layers": 2,
    },
    "llava": {"vision_config": {"model_type": "clip_vision_model"}, "text_config": {"model_type": "llama"}},
    "paligemma": {
        "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False},
        "text_config": {"model_type": "gemma"},
        "projection_dim": 64,
    },
    "idefics3": {"scale_factor": 2, "text_config": {"model_type": "llama"}},
    "smolvlm": {"scale_factor": 2, "text_config": {"model_type": "llama"}},
    "qwen2_vl": {"vision_config": {"embed_dim": 64, "hidden_size": 64, "depth": 2, "num_heads": 4}},
    "blip": {"text_config": {"bos_token_id": 1, "sep_token_id": 2, "pad_token_id": 0}},
    "vision-encoder-decoder": {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
}


def pair_arguments(names: Container[str], generator: torch.Generator, side: int) -> list[Keys]:
    """Usual arguments of models with two towers: texts that end with ``END``, and images or sounds."""
    ids = torch.randint(4, 140, (2, LENGTH), generator=generator)
    ids[:, -1] = END
    images = torch.randn(2, 3, side, side, generator=generator)
    frames = torch.randn(2, 8, 3, side, side, generator=generator)
    grid = {"spatial_shapes": torch.full((2, 2), 4), "pixel_attention_mask": torch.ones(2, 16)}
    return [
        {"input_ids": ids, "pixel_values": images},
        {"input_ids": ids, "pixel_values": torch.randn(2, 16, 192, generator=generator), **grid},
        {"input_ids": ids, "pixel_values": frames},
        {"input_ids": ids, "input_features": torch.randn(2, 1, 64, 64, generator=generator)},
    ]


def pair_forms(reference: Any, model: Any, consistent: object = None) -> Iterator[Form]:
    """Compare the vectors of texts and images, their scores, and the vector of a short text."""
    arguments, theirs = reference.arguments, reference.model
    ids, images = arguments["input_ids"], arguments["pixel_values"]
    output = theirs(**arguments)
    memory = model.encode(qkv.Signal(images))
    texts, encoded = model(qkv.Signal(ids), memory=memory)[0].unbind(1)
    yield "texts", F.normalize(output.text_embeds, dim=-1), texts
    yield "images", F.normalize(output.image_embeds, dim=-1), encoded
    yield "scores", output.logits_per_image, model.head.scores(encoded, texts)
    short = ids[1:, :SHORT].clone()
    short[:, -1] = END
    fill = model.spec.frontend.fill
    padded = short if fill is None else F.pad(short, (0, ids.shape[1] - SHORT), value=fill)
    expected = theirs(input_ids=padded, pixel_values=images).text_embeds
    both = torch.stack((ids[0], F.pad(short[0], (0, LENGTH - SHORT))))
    lengths = torch.tensor([LENGTH, SHORT])
    yield "two lengths", F.normalize(expected, dim=-1), model(qkv.Signal(both, lengths=lengths))[0][1:, 0]


def images(side: int) -> Tensor:
    """Two random images (2, 3, side, side)."""
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))


def text_arguments(names: Container[str], generator: torch.Generator, side: int) -> list[Keys]:
    """Usual arguments of models that write a text about an image: behind an encoder, or among the tokens."""
    pixels, text = images(side), torch.randint(4, 140, (2, LENGTH), generator=generator)
    if "decoder_input_ids" in names:
        return [{"pixel_values": pixels, "decoder_input_ids": text}]
    grid = {"image_grid_thw": torch.full((2, 3), SIDE // PATCH) * torch.tensor([0, 1, 1]) + torch.tensor([1, 0, 0])}
    rows = [torch.cat((text[:, :1], torch.full((2, count), IMAGE), text[:, 1:]), 1) for count in (16, 4, 64, 1)]
    return [
        {**_marks(ids, names), **seen}
        for ids in rows
        for seen in ({"pixel_values": pixels}, {"pixel_values": pixels[:, None]}, {"pixel_values": _patches(), **grid})
        if seen.keys() <= {"pixel_values"} or "image_grid_thw" in names
    ]


def _marks(ids: Tensor, names: Container[str]) -> Keys:
    """Ids, with what some families are told of each position: whether it is seen by all before it, or of an image."""
    steps = torch.arange(ids.shape[1]).expand_as(ids)
    told = {"token_type_ids": (steps >= _prefix(ids)).long(), "mm_token_type_ids": (ids == IMAGE).int()}
    return {"input_ids": ids, **{name: each for name, each in told.items() if name in names}}


def _prefix(ids: Tensor) -> int:
    """Positions of a row before its answer, in families whose prompt is seen by all of its positions."""
    return ids.shape[1] - 4


def _patches() -> Tensor:
    """Patches of the two images, in the order of Qwen2-VL."""
    from transformers import Qwen2VLImageProcessorPil

    cut = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2).patchify
    return torch.cat([torch.as_tensor(cut(each.numpy(), PATCH, 2, 2)[0]) for each in images(SIDE)])


def text_forms(reference: Any, model: Any, consistent: Callable[..., Tensor | None]) -> Iterator[Form]:
    """Compare models that write about images: whole rows, rows of two lengths, one step, and a greedy caption.

    consistent: second of two outputs of transformers, if it does not contradict the first.
    """
    arguments = reference.arguments
    if model.encoder is not None:
        yield from _behind_encoder(reference, model)
    elif model.spec.frontend.inputs_read:
        yield from _among_tokens(reference, model, consistent)
    else:
        ids = arguments["input_ids"].clone()
        ids[ids == IMAGE] = 5
        yield TEXT_OF_IMAGES, reference.model(input_ids=ids).logits, model(qkv.Signal(ids))[0]


def _behind_encoder(reference: Any, model: Any) -> Iterator[Form]:
    arguments = reference.arguments
    name = "decoder_input_ids" if "decoder_input_ids" in arguments else "input_ids"
    pixels, ids = arguments["pixel_values"], arguments[name]
    memory = model.encode(qkv.Signal(pixels))
    yield "whole rows", reference.logits, model(qkv.Signal(ids), memory=memory)[0]
    _, state = model(qkv.Signal(ids[:, :-1]), model.init_state(len(ids), memory=memory))
    yield "one step", reference.logits[:, -1], model(qkv.Signal(ids[:, -1:]), state)[0][:, -1]
    written = ids
    for _ in range(WRITTEN):
        logits = reference.model(**{**arguments, name: written}).logits
        written = torch.cat((written, logits[:, -1:].argmax(-1)), 1)
    yield "caption", written[:, -WRITTEN:].float(), _greedy(model, qkv.Signal(ids), memory=memory)


def _among_tokens(reference: Any, model: Any, consistent: Callable[..., Tensor | None]) -> Iterator[Form]:
    arguments, theirs = reference.arguments, reference.model
    ids = arguments["input_ids"]
    pixels = images(SIDE if "image_grid_thw" in arguments else arguments["pixel_values"].shape[-1])
    length = ids.shape[1]

    def signal(rows: Tensor, seen: Tensor | None, **facts: Tensor) -> qkv.Signal:
        inputs = {} if seen is None else {"image": qkv.Signal(seen)}
        before = {"prefix": torch.full((len(rows),), _prefix(ids))} if model.spec.reads_prefix else {}
        return qkv.Signal(rows.masked_fill(rows == IMAGE, -1), inputs=inputs, **{**before, **facts})

    whole = reference.logits[:, -length:]
    yield "whole rows", whole, model(signal(ids, pixels))[0]

    short = length - 2
    lengths = torch.tensor([length, short])
    mask = torch.arange(length) < lengths[:, None]
    padded = {**arguments, "input_ids": ids.where(mask, 0), "attention_mask": mask.long()}
    alone = {**_second(arguments, short), "attention_mask": torch.ones(1, short, dtype=torch.long)}
    expected = consistent(reference, "padding", lambda: (theirs(**alone).logits[0], theirs(**padded).logits[1, :short]))
    if expected is not None:
        yield "two lengths", expected, model(signal(ids.where(mask, 0), pixels, lengths=lengths))[0][1, :short]

    _, state = model(signal(ids[:, :-1], pixels), model.init_state(len(ids)))
    yield "one step", whole[:, -1], model(qkv.Signal(ids[:, -1:]), state)[0][:, -1]

    prompt = {**_second(arguments, length), "attention_mask": torch.ones(1, length, dtype=torch.long)}
    if "token_type_ids" in prompt:
        prompt["token_type_ids"] = torch.zeros_like(ids[1:])
    facts = {"prefix": torch.tensor([length])} if model.spec.reads_prefix else {}
    yield "caption", _written(theirs, prompt), _greedy(model, signal(ids[1:], pixels[1:], **facts))


def _second(arguments: Keys, length: int) -> Keys:
    """Arguments of the second row, with its first ``length`` positions."""
    of_tokens = ("input_ids", "token_type_ids", "mm_token_type_ids")
    return {name: each[1:, :length] if name in of_tokens else each.chunk(2)[1] for name, each in arguments.items()}


def _written(model: Any, arguments: Keys) -> Tensor:
    """Greedy caption of transformers behind a prompt, as numbers of their own size."""
    from transformers import GenerationConfig

    settings = GenerationConfig(max_new_tokens=WRITTEN, do_sample=False, pad_token_id=0, eos_token_id=None)
    return model.generate(**arguments, generation_config=settings)[:, -WRITTEN:].float()


def _greedy(model: Any, prompt: qkv.Signal, **memory: Any) -> Tensor:
    """Greedy caption of qkv behind a prompt."""
    output, state = model(prompt, model.init_state(len(prompt.values), **memory))
    written = [output[:, -1].argmax(-1)]
    while len(written) < WRITTEN:
        output, state = model(qkv.Signal(written[-1][:, None]), state)
        written.append(output[:, -1].argmax(-1))
    return torch.stack(written, 1).float()
