"""Plain-data description of a language model for self-contained model files: all defaults and sizes written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from qkv.layers.positions import rope_frequencies
from qkv.ops.positions import alibi_slopes
from qkv.spec import branches, parts
from qkv.spec.errors import UserError
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import AllOf, AnyOf, Blocks, Causal, Fixed, Full, Mask, Strided, Window
from qkv.spec.mixers.linear_attention import Elu, LinearAttention
from qkv.spec.model import Block, Model, Text

_RESIDUALS = (parts.Add, parts.Scaled, parts.Gated, parts.NoResidual)
_MASKS = (AllOf, AnyOf, Blocks, Causal, Fixed, Full, Strided, Window)


def description(spec: Model) -> dict[str, Any]:
    """Describe ``spec`` as plain data, for the config of a self-contained model file. Raises ``UserError`` that names
    the first unsupported part.
    """
    if spec.encoder is not None or not spec.causal or not isinstance(spec.head, LanguageModelHead):
        raise UserError(
            "self-contained model files are supported only for causal language models, and this model is not one"
        )
    if spec.depth_average is not None:
        raise UserError("model.depth_average: self-contained model files do not support averages over depth")
    if spec.segmentation is not None:
        raise _refused("model.segmentation", spec.segmentation.kind, ["none"])
    blocks = [_block(block, spec.width, f"model.blocks.{i}") for i, block in enumerate(spec.layers)]
    return {
        "width": spec.width,
        "frontend": _frontend(spec),
        "blocks": blocks,
        "norm": _plain(spec.norm),
        "head": {**_plain(spec.head), "norm": _plain(spec.head.norm)},
    }


def _plain(part: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", part.to_dict())


def _refused(path: str, kind: str, known: list[str]) -> UserError:
    return UserError(
        f"{path}: self-contained model files do not support {kind!r}; supported: {', '.join(sorted(known))}"
    )


def _frontend(spec: Model) -> dict[str, Any]:
    frontend = spec.frontend
    known = isinstance(frontend, Text) and not frontend.types and not frontend.query and frontend.vocab_size is not None
    if not isinstance(frontend, Text) or not known:
        raise UserError(
            "model.frontend: self-contained model files support only text without token types and query vectors"
        )
    positions = frontend.positions
    if not isinstance(positions, (parts.Learned, parts.Sinusoidal, parts.NoPositions)):
        raise _refused("model.frontend.positions", positions.kind, ["learned", "sinusoidal", "none"])
    rows = {"rows": spec.context_length + positions.offset} if isinstance(positions, parts.Learned) else {}
    return {
        "vocab_size": frontend.vocab_size,
        "join": frontend.join,
        "scale": spec.width**0.5 if frontend.scale else 1.0,
        "norm": _plain(frontend.norm),
        "positions": {**_plain(positions), **rows},
    }


def _block(block: Block, width: int, path: str) -> dict[str, Any]:
    if not isinstance(block.residual, _RESIDUALS):
        raise _refused(f"{path}.residual", block.residual.kind, [part.kind for part in _RESIDUALS])
    if block.order == "parallel" and not block.residual.keeps_input and len(block.branches) > 1:
        raise UserError(f"{path}.residual: self-contained model files do not support parallel branches without one")
    return {
        "order": block.order,
        "residual": _plain(block.residual),
        "norms": [_plain(block.norm_of(j)) for j in range(len(block.branches))],
        "own_norms": bool(block.norms),
        "branches": [_branch(branch, width, f"{path}.branches.{j}") for j, branch in enumerate(block.branches)],
    }


def _branch(branch: branches.Branch, width: int, path: str) -> dict[str, Any]:
    describe = DESCRIBED.get(type(branch))
    if describe is None:
        raise _refused(path, branch.kind, [part.kind for part in DESCRIBED])
    return {"kind": branch.kind, **describe(branch, width, path)}


def _attention(part: branches.Attention, width: int, path: str) -> dict[str, Any]:
    relative, (head_dim, value_dim) = part.relative, part.dims(width)
    if not isinstance(relative, (parts.Rope, parts.Alibi, parts.NoRelative)):
        raise _refused(f"{path}.relative", relative.kind, ["rope", "alibi", "none"])
    if isinstance(relative, parts.Alibi) and relative.rounded:
        raise UserError(
            f"{path}.relative.rounded: self-contained model files do not support slopes in {relative.rounded}"
        )
    if part.learned_sink:
        raise UserError(f"{path}.learned_sink: self-contained model files do not support learned sinks")
    if part.shaped or not part.maps_values or not part.maps_output:
        raise UserError(f"{path}: self-contained model files support only projected, plain attention")
    if part.top_k is not None:
        raise UserError(f"{path}.top_k: self-contained model files do not support top-k attention")
    _check_mask(part.mask, f"{path}.mask")
    rope, scale = None, 1.0 / (part.temperature * head_dim**0.5)
    if isinstance(relative, parts.Rope):
        frequencies, magnitude = rope_frequencies(relative, relative.rotated(head_dim))
        rope = {"frequencies": frequencies.tolist(), "magnitude": magnitude}
    return {
        "heads": part.num_heads,
        "kv_heads": part.kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
        "scale": scale,
        "bias": part.bias,
        "output_bias": part.ends_with_bias,
        "softcap": part.softcap,
        "qk_norm": _plain(part.qk_norm),
        "mask": _plain(part.mask),
        "rope": rope,
        "slopes": _slopes(relative, part.num_heads, scale) if isinstance(relative, parts.Alibi) else None,
    }


def _slopes(relative: parts.Alibi, num_heads: int, scale: float) -> list[float]:
    return (alibi_slopes(num_heads) * (scale if relative.scaled else 1.0)).tolist()


def _check_mask(mask: Mask, path: str) -> None:
    if not isinstance(mask, _MASKS):
        raise _refused(path, mask.kind, [kind.kind for kind in _MASKS])
    for inner in mask.masks if isinstance(mask, (AllOf, AnyOf)) else ():
        _check_mask(inner, path)


def _fields(part: Any, width: int, path: str) -> dict[str, Any]:
    return _plain(part)


def _hidden(part: Any, width: int, path: str) -> dict[str, Any]:
    return {**_plain(part), "hidden": part.hidden_at(width)}


def _recurrent(part: branches.Recurrent, width: int, path: str) -> dict[str, Any]:
    return {"hidden": part.hidden or width}


def _linear(part: LinearAttention, width: int, path: str) -> dict[str, Any]:
    if not isinstance(part.features, Elu):
        raise _refused(f"{path}.features", part.features.kind, [Elu.kind])
    if not part.causal:
        raise _refused(f"{path}.mask", part.mask, ["causal"])
    return {"heads": part.num_heads, "bias": part.bias}


DESCRIBED: dict[type[branches.Branch], Callable[[Any, int, str], dict[str, Any]]] = {
    branches.Attention: _attention,
    LinearAttention: _linear,
    branches.TokenShift: _fields,
    branches.CausalConvolution: _fields,
    branches.RNN: _recurrent,
    branches.GRU: _recurrent,
    branches.LSTM: _recurrent,
    branches.FeedForward: _hidden,
    branches.GatedFeedForward: _hidden,
}
"""Function that describes each kind of branch that self-contained model files support."""
