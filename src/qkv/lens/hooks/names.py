"""Names of TransformerLens for points of a model, where both compute the same value at the same point.

A model of TransformerLens equals one of qkv with the same weights in its compatibility mode without processing
(``enable_compatibility_mode(no_processing=True)``). With processing, the stream lacks its mean, logits theirs, and
values their bias; queries, keys, scores, weights, neurons and differences of logits are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.lens.views.heads import through_heads
from qkv.models.block import Slot
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


@dataclass(frozen=True)
class NamedValue:
    """Value of a point under another name and in another shape.

    point: path of the point.   beside: path of an earlier point; ``shown`` reads its value instead. None: ``shown``
    reads the value of ``point``.   shown: function from the value to the tensor with this name.   replaced: function
    (new tensor, value at ``point``) -> value to put there.
    """

    name: str
    point: str
    shown: Callable[[Tensor], Tensor] = lambda value: value
    replaced: Callable[[Tensor, Tensor], Tensor] = lambda new, value: new
    beside: str | None = None


class Layer(NamedTuple):
    """Block ``i`` of a model, as the names of TransformerLens see it: attention, then a feed-forward network."""

    model: Transformer
    i: int

    @property
    def slots(self) -> list[Slot]:
        """Branches of the block."""
        return list(self.model.blocks[self.i].branches)  # type: ignore[arg-type]

    @property
    def order(self) -> str:
        """Order of norms and branches."""
        return self.model.spec.sized_layers[self.i].order

    def attention(self) -> Slot:
        """Return the self-attention of the block; raise ``UserError`` if it mixes positions in another way."""
        mixers = [slot for slot in self.slots if slot.body.spec.mixes]
        if len(mixers) != 1 or mixers[0].body.spec.kind != "attention":
            kinds = ", ".join(repr(slot.body.spec.kind) for slot in mixers) or "nothing"
            raise UserError(f"it is a point of attention, and block {self.i} mixes positions by {kinds}")
        return mixers[0]

    def network(self) -> Slot:
        """Return the feed-forward network of the block; raise ``UserError`` if it has another one, or none."""
        networks = [slot for slot in self.slots if not slot.body.spec.mixes]
        if len(networks) != 1 or networks[0].body.spec.kind not in ("feed_forward", "gated_feed_forward"):
            kinds = ", ".join(repr(slot.body.spec.kind) for slot in networks) or "nothing"
            raise UserError(f"it is a point of a feed-forward network, and block {self.i} has {kinds}")
        return networks[0]

    def added(self, slot: Slot) -> Slot:
        """Return ``slot`` if its output is what the stream adds; raise ``UserError`` otherwise."""
        if slot.norms_output or hasattr(slot, "norm_after"):
            raise UserError("TransformerLens reads it after the norm of the branch's output, qkv before; read 'output'")
        if not _adds(slot):
            raise UserError("the stream adds a multiple of the branch's output; read 'output'")
        return slot


def find_view(model: Transformer, name: str) -> NamedValue:
    """Return the point of ``model`` with the name ``name`` of TransformerLens, such as "blocks.0.attn.hook_pattern".

    Raises ``UserError`` with the difference where its value is computed at another point, and for other names.
    """
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    table: Mapping[str, Callable[[Any], NamedValue]] = _OF_LAYERS if match else _OF_MODELS
    key = match[2] if match else name
    if key not in table:
        raise UserError(
            f"{name!r} is no name of a point that qkv knows; these are "
            f"{', '.join(_OF_MODELS)} and, after blocks.0., {', '.join(_OF_LAYERS)}"
        )
    if match and int(match[1]) >= len(model.blocks):
        raise UserError(f"{name!r}: the model has {len(model.blocks)} blocks, numbered from 0")
    try:
        _check(model)
        view = table[key](Layer(model, int(match[1])) if match else model)
    except UserError as error:
        raise UserError(f"{name!r} is refused: {error}") from None
    return NamedValue(name, view.point, view.shown, view.replaced, view.beside)


def list_names(model: Transformer) -> list[str]:
    """Return the names of TransformerLens that ``model`` accepts, in the order of computation."""
    layers = [f"blocks.{i}.{key}" for i in range(len(model.blocks)) for key in _OF_LAYERS]
    first, last = list(_OF_MODELS)[:2], list(_OF_MODELS)[2:]
    return [name for name in (*first, *layers, *last) if _accepted(model, name)]


def _accepted(model: Transformer, name: str) -> bool:
    try:
        find_view(model, name)
    except UserError:
        return False
    return True


def _check(model: Transformer) -> None:
    """Raise ``UserError`` for a model whose blocks TransformerLens has no names for."""
    reasons = {
        "an encoder": model.encoder is not None,
        "latents": model.latents is not None,
        "segments": model.segmentation is not None,
        "repeated blocks": list(model.walk) != list(range(len(model.blocks))),
        "reversible blocks": model.reversible,
        "averages over depth": model.depth_average is not None,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is not None:
        raise UserError(f"the names stand for a single stack of blocks in sequence, and the model has {reason}")


def _adds(slot: Slot) -> bool:
    """Return True if the stream adds the output of the branch itself."""
    y = torch.arange(1.0, 1.0 + slot.body.width).to(slot.body.like())[None, None]
    return torch.equal(slot.residual.joined(torch.zeros_like(y), y), y)


def _plain(point: str) -> NamedValue:
    return NamedValue("", point)


def _by_head(point: str) -> NamedValue:
    """Return the view (B, N, H, ·) of a value (B, H, N, ·)."""
    return NamedValue("", point, lambda value: value.transpose(1, 2), lambda new, value: new.transpose(1, 2))


def _stream_before(layer: Layer) -> NamedValue:
    return _plain(f"{layer.slots[0].name}.residual_before")


def _stream_between(layer: Layer) -> NamedValue:
    attention, network = layer.attention(), layer.network()
    if layer.order == "parallel" or layer.slots != [attention, network]:
        raise UserError("attention and feed-forward network of the block do not follow each other")
    if layer.order == "post":
        raise UserError("TransformerLens reads it before the norm, qkv after; read 'residual_after'")
    return _plain(f"{network.name}.residual_before")


def _stream_after(layer: Layer) -> NamedValue:
    if layer.order == "post":
        raise UserError("TransformerLens reads it before the norm, qkv after; read 'residual_after'")
    return _plain(f"{layer.slots[-1].name}.residual_after")


def _projected(name: str) -> Callable[[Layer], NamedValue]:
    def view(layer: Layer) -> NamedValue:
        slot = layer.attention()
        part: Any = slot.body.spec
        if part.norms_heads and name in ("q", "k"):
            raise UserError("TransformerLens reads it before the norm of queries and keys, qkv after; read 'q' or 'k'")
        if part.clip is not None:
            raise UserError("TransformerLens reads it before it is clipped, qkv after; read 'q', 'k' or 'v'")
        return _by_head(f"{slot.name}.{name}")

    return view


def _rotated(layer: Layer) -> NamedValue:
    raise UserError("it is read after the rotation, and qkv reads queries and keys before it (hook_q, hook_k)")


def _scores(name: str) -> Callable[[Layer], NamedValue]:
    return lambda layer: _plain(f"{layer.attention().name}.{name}")


def _head_outputs(layer: Layer) -> NamedValue:
    slot = layer.attention()
    part: Any = slot.body.spec
    if not part.output_gate.identity or part.shaped or part.value_convolution:
        raise UserError("TransformerLens reads weights times values, qkv what the output projection reads")
    return _by_head(f"{slot.name}.head_outputs")


def _results(layer: Layer) -> NamedValue:
    slot = layer.attention()
    part: Any = slot.body.spec
    if not part.maps_output or not part.output_norm.identity or slot.factor != 1:
        raise UserError("the output of the attention is not the sum of what its heads project")
    ending: Any = slot.body.ending()

    def shown(z: Tensor) -> Tensor:
        return torch.stack(through_heads(ending, z)[:-1], 2)

    def replaced(new: Tensor, output: Tensor) -> Tensor:
        return new.sum(2) if ending.bias is None else new.sum(2) + ending.bias

    return NamedValue("", f"{slot.name}.output", shown, replaced, f"{slot.name}.head_outputs")


def _output(of: Callable[[Layer], Slot]) -> Callable[[Layer], NamedValue]:
    return lambda layer: _plain(f"{layer.added(of(layer)).name}.output")


def _neurons(plain: str | None, gated: str) -> Callable[[Layer], NamedValue]:
    def view(layer: Layer) -> NamedValue:
        slot = layer.network()
        part: Any = slot.body.spec
        if part.kind == "feed_forward":
            if plain is None:
                raise UserError(f"the feed-forward network of block {layer.i} has no gate")
            return _plain(f"{slot.name}.{plain}")
        if part.gate_factor != 1 or not part.norm.identity or part.limit is not None or part.shift:
            raise UserError("the product of the gated network has a factor, a bound, a shift or a norm; read 'gate'")
        return _plain(f"{slot.name}.{gated}")

    return view


def _norm_of(layer: Layer, slot: Slot) -> Any:
    """Return the norm before a branch, which parallel branches may share."""
    return getattr(slot, "norm", None) or layer.model.blocks[layer.i].norm


def _check_norm(norm: nn.Module, point: str) -> None:
    """Raise ``UserError`` for a norm with weights: the other library reads its vectors before they are applied."""
    if next(norm.parameters(recurse=False), None) is not None:
        raise UserError(f"TransformerLens reads it before the norm's weight and bias, qkv after; read {point!r}")


def _last_normed(model: Transformer) -> NamedValue:
    _check_norm(model.norm, "norm.output")
    return _plain("norm.output")


def _normed(of: Callable[[Layer], Slot]) -> Callable[[Layer], NamedValue]:
    def view(layer: Layer) -> NamedValue:
        if layer.order not in ("pre", "parallel", "sandwich"):
            raise UserError("the norm of the block follows the branch")
        slot = of(layer)
        _check_norm(_norm_of(layer, slot), "input")
        return _plain(f"{slot.name}.input")

    return view


def _scale(of: Callable[[Layer], Slot]) -> Callable[[Layer], NamedValue]:
    def view(layer: Layer) -> NamedValue:
        norm = _norm_of(layer, of(layer))
        if layer.order not in ("pre", "parallel", "sandwich") or "scale" not in norm.points():
            raise UserError("the block has no norm with a scale there")
        return _plain(f"{norm.name}.scale")

    return view


def _embedding(model: Transformer) -> NamedValue:
    _check_embedding(model)
    return NamedValue(
        "",
        "frontend.output",
        lambda value: value - _places(model, value),
        lambda new, value: new + _places(model, value),
    )


def _position_embedding(model: Transformer) -> NamedValue:
    _check_embedding(model)
    if model.frontend.positions is None:
        raise UserError("the model adds no position vectors to its embeddings")

    def replaced(new: Tensor, value: Tensor) -> Tensor:
        return value - _places(model, value) + new

    return NamedValue("", "frontend.output", lambda value: _places(model, value).expand_as(value), replaced)


def _check_embedding(model: Transformer) -> None:
    """Raise ``UserError`` if the front end is not a table, with or without positions added to its vectors."""
    part: Any = model.spec.frontend
    if part.kind != "text":
        raise UserError(f"it is an embedding of tokens, and the front end is {part.kind!r}; read 'frontend.output'")
    plain = part.join == "add" and part.norm.identity and not part.types and part.embedding_width is None
    if not plain or part.scale or part.multiplier != 1 or part.mask_token is not None:
        raise UserError("the front end scales, normalises or projects the vectors; read 'frontend.output'")


def _places(model: Transformer, value: Tensor) -> Tensor:
    """Return the position vectors (1, N, D) of whole rows."""
    positions: Any = model.frontend.positions
    if positions is None:
        return value.new_zeros(())
    return positions.vectors(Context(torch.arange(value.shape[1], device=value.device)[None]), value.dtype)


def _last_scale(model: Transformer) -> NamedValue:
    if "scale" not in model.norm.points():
        raise UserError("the final norm has no scale")
    return _plain("norm.scale")


_OF_MODELS: Mapping[str, Callable[[Transformer], NamedValue]] = {
    "hook_embed": _embedding,
    "hook_pos_embed": _position_embedding,
    "ln_final.hook_scale": _last_scale,
    "ln_final.hook_normalized": _last_normed,
}

_OF_LAYERS: Mapping[str, Callable[[Layer], NamedValue]] = {
    "hook_resid_pre": _stream_before,
    "ln1.hook_scale": _scale(Layer.attention),
    "ln1.hook_normalized": _normed(Layer.attention),
    "attn.hook_q": _projected("q"),
    "attn.hook_k": _projected("k"),
    "attn.hook_v": _projected("v"),
    "attn.hook_rot_q": _rotated,
    "attn.hook_rot_k": _rotated,
    "attn.hook_attn_scores": _scores("scores"),
    "attn.hook_pattern": _scores("weights"),
    "attn.hook_z": _head_outputs,
    "attn.hook_result": _results,
    "hook_attn_out": _output(Layer.attention),
    "hook_resid_mid": _stream_between,
    "ln2.hook_scale": _scale(Layer.network),
    "ln2.hook_normalized": _normed(Layer.network),
    "mlp.hook_pre": _neurons("pre_activation", "gate"),
    "mlp.hook_pre_linear": _neurons(None, "up"),
    "mlp.hook_post": _neurons("activation", "activation"),
    "hook_mlp_out": _output(Layer.network),
    "hook_resid_post": _stream_after,
}
