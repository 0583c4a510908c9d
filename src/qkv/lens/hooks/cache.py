"""Values of a run by the names of TransformerLens, and divisions of the residual stream computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.tap import Recorder
from qkv.lens.hooks.names import Layer, find_view, list_names
from qkv.lens.views.heads import linear_part
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

_ROOMS = {
    **dict.fromkeys(("q", "k", "v", "z", "pattern", "attn_scores", "result"), "attn"),
    **dict.fromkeys(("pre", "pre_linear", "post"), "mlp"),
}
"""Part of a block that a short name belongs to."""


class ActivationCache(Mapping[str, Tensor]):
    """Values by name, such as cache["blocks.0.attn.hook_q"] or cache["q", 0], (B, N, H, Dk); layers count from the end
    if negative.
    """

    def __init__(self, values: Mapping[str, Tensor], model: Transformer):
        self.values_by_name, self.model = dict(values), model

    def __getitem__(self, key: str | tuple[Any, ...]) -> Tensor:
        name = key if isinstance(key, str) and key in self.values_by_name else self._full(key)
        if name not in self.values_by_name:
            find_view(self.model, name)
            raise UserError(f"the cache lacks {name!r}; include it in names_filter")
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __contains__(self, key: object) -> bool:
        return key in self.values_by_name

    def _full(self, key: str | tuple[Any, ...]) -> str:
        """Return the full name of ("q", 3), ("scale", 3, "ln1") or "embed"."""
        if isinstance(key, str):
            return key if "." in key or key.startswith("hook_") else f"hook_{key}"
        name, layer, *kind = key
        room = kind[0] if kind else _ROOMS.get(name, "")
        return f"blocks.{layer % len(self.model.blocks)}.{f'{room}.' if room else ''}hook_{name}"

    def _end(self, layer: int | None) -> int:
        """Return the number of blocks before ``layer``; None or -1: all."""
        return len(self.model.blocks) if layer is None or layer == -1 else layer

    def accumulated_resid(
        self, layer: int | None = None, incl_mid: bool = False, return_labels: bool = False
    ) -> Tensor | tuple[Tensor, list[str]]:
        """Return the residual stream before each block up to ``layer``, (L, B, N, D); None or -1: and the last one.

        incl_mid: also between attention and feed-forward network.
        """
        count, end = len(self.model.blocks), self._end(layer)
        parts: dict[str, Tensor] = {}
        for i in range(min(end, count - 1) + 1):
            parts[f"{i}_pre"] = self["resid_pre", i]
            if incl_mid and i < end:
                parts[f"{i}_mid"] = self["resid_mid", i]
        if end == count:
            parts["final_post"] = self["resid_post", -1]
        return _stacked(parts, return_labels)

    def decompose_resid(
        self, layer: int | None = None, mode: str = "all", incl_embeds: bool = True, return_labels: bool = False
    ) -> Tensor | tuple[Tensor, list[str]]:
        """Return the terms whose sum is the stream before block ``layer``, (C, B, N, D); None or -1: the last stream.

        Terms are the embeddings of tokens and positions, and the outputs of attention and feed-forward network of each
        block; mode "attn" or "mlp": only those.
        """
        if mode not in ("all", "attn", "mlp"):
            raise UserError(f"mode is 'all', 'attn' or 'mlp'; {mode!r} is none of them")
        parts: dict[str, Tensor] = {}
        names = list_names(self.model)
        if incl_embeds:
            embeds = [name for name in ("hook_embed", "hook_pos_embed") if name in names]
            parts |= {name.removeprefix("hook_"): self[name] for name in embeds} or {"embed": self["resid_pre", 0]}
        for i in range(self._end(layer)):
            mixes = [slot.body.spec.mixes for slot in Layer(self.model, i).slots]
            for kind in ("attn", "mlp"):
                if mode in ("all", kind) and (kind == "attn") in mixes:
                    parts[f"{i}_{kind}_out"] = self[f"blocks.{i}.hook_{kind}_out"]
        return _stacked(parts, return_labels)

    def stack_head_results(
        self, layer: int | None = None, incl_remainder: bool = False, return_labels: bool = False
    ) -> Tensor | tuple[Tensor, list[str]]:
        """Return what each head of the blocks before ``layer`` adds to the stream, (heads, B, N, D); None or -1: all.

        incl_remainder: also the rest of the stream there, as the last entry.
        """
        count, end = len(self.model.blocks), self._end(layer)
        parts: dict[str, Tensor] = {}
        for i in range(end):
            result = self["result", i]
            parts |= {f"L{i}H{head}": result[:, :, head] for head in range(result.shape[2])}
        if incl_remainder:
            whole = self["resid_post", -1] if end == count else self["resid_pre", end]
            parts["remainder"] = whole - sum(parts.values())
        return _stacked(parts, return_labels)

    def apply_ln_to_stack(self, residual_stack: Tensor) -> Tensor:
        """Return the share of the final norm's output of each vector of a stack (C, B, N, D): the norm with the scale
        of the full stream, without its bias.
        """
        recorder = Recorder("norm.scale")
        final = self["resid_post", -1]
        scale = None
        if "scale" in self.model.norm.points():
            self.model.norm(final, Context(torch.arange(final.shape[1])[None], tap=recorder))
            scale = recorder["norm.scale"]
        return torch.stack(linear_part(self.model.norm, list(residual_stack), scale))

    def logit_attrs(self, residual_stack: Tensor, tokens: Tensor, incorrect_tokens: Tensor | None = None) -> Tensor:
        """Return the direct effect of each vector of a stack on the logits of ``tokens``, (C, B, N).

        residual_stack (C, B, N, D).   tokens: ids (B), or (B, N) with one for each position.   incorrect_tokens:
            ids whose logits are subtracted.

        Attributions of all terms of the stream add up to the logit less the biases of final norm and head. Differences
        equal those of TransformerLens with its processing, without which it leaves out the weight of the norm.
        Raises ``UserError`` for a head that is no linear map of the final vectors.
        """
        head: Any = self.model.head
        if self.model.spec.head.kind != "language_model" or head.transform is not None:
            raise UserError(f"the head {self.model.spec.head.kind!r} is no linear map; attributions are not defined")
        if not isinstance(head.weight, Tensor):
            raise UserError("the head's weights are quantised; load the model with narrow=False")
        normed = self.apply_ln_to_stack(residual_stack) * head.scale
        directions = self._directions(tokens, normed)
        if incorrect_tokens is not None:
            directions = directions - self._directions(incorrect_tokens, normed)
        return (normed * directions).sum(-1)

    def _directions(self, tokens: Tensor, normed: Tensor) -> Tensor:
        """Return the rows of the output matrix of ``tokens``, (B, N or 1, D)."""
        ids = torch.as_tensor(tokens, device=normed.device)
        if ids.shape not in ((), normed.shape[1:2], normed.shape[1:3]):
            raise UserError(
                f"tokens have the shape {list(ids.shape)}; give an id for each of {normed.shape[1]} rows, or for "
                f"each of their {normed.shape[2]} positions"
            )
        weight = self.model.head.weight[ids]  # type: ignore[index]
        return weight if ids.dim() == 2 else weight.view(-1, 1, weight.shape[-1])


def _stacked(parts: Mapping[str, Tensor], return_labels: bool) -> Tensor | tuple[Tensor, list[str]]:
    stack = torch.stack(list(parts.values()))
    return (stack, list(parts)) if return_labels else stack
