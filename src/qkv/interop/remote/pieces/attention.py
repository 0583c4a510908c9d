"""Attention of a self-contained model: grouped K/V heads, position masks, RoPE or ALiBi."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.interop.remote.pieces.common import PARTS, Part, Place, at_least_single, make


def visible(mask: Part, query: Tensor, key: Tensor) -> Tensor:
    """Boolean attention mask (B, N, M), True where a key may be seen, by position; query (B, N, 1), key (B, 1, M)."""
    kind = mask["kind"]
    if kind in ("all_of", "any_of"):
        seen = torch.stack(torch.broadcast_tensors(*(visible(inner, query, key) for inner in mask["masks"])))
        return seen.all(0) if kind == "all_of" else seen.any(0)
    if kind == "window":
        return ((query - key).abs() < mask["size"]) | (key < mask["sinks"])
    if kind == "strided":
        return (query - key) % mask["stride"] == 0
    if kind == "fixed":
        stride = mask["stride"]
        return (query // stride == key // stride) | (key % stride >= stride - mask["summary"])
    if kind == "blocks":
        back = query // mask["size"] - key // mask["size"]
        return (back <= mask["back"]) & (back >= -mask["ahead"])
    return key <= query if kind == "causal" else torch.ones_like(key <= query)


def rotated(x: Tensor, positions: Tensor, rope: Part) -> Tensor:
    """RoPE: x (B, H, N, D) with the pairs (i, i + Dr/2) of its first Dr features rotated by position (Su et al.
    2021).
    """
    frequencies = torch.tensor(rope["frequencies"], dtype=at_least_single(x.dtype), device=x.device)
    angles = positions[:, None, :, None] * frequencies
    cos, sin = (rope["magnitude"] * f(angles).to(x.dtype) for f in (torch.cos, torch.sin))
    half = len(rope["frequencies"])
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class Attention(nn.Module):
    """Multi-head attention concat_h(softmax(Q_h K_g^T scale + bias, masked) V_g) W_o (Vaswani et al. 2017; shared
    heads: Ainslie et al. 2023).
    """

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.part, self.widths = part, (part["head_dim"], part["head_dim"], part["value_dim"])
        self.sizes = [
            heads * each
            for heads, each in zip((part["heads"], part["kv_heads"], part["kv_heads"]), self.widths, strict=True)
        ]
        self.qkv = nn.Linear(width, sum(self.sizes), bias=part["bias"])
        self.output = nn.Linear(part["heads"] * part["value_dim"], width, bias=part["output_bias"])
        if part["qk_norm"]["kind"] != "none":
            self.query_norm, self.key_norm = (make("norm", part["qk_norm"], part["head_dim"]) for _ in range(2))

    def forward(self, x: Tensor, place: Place) -> Tensor:
        part, split = self.part, self.qkv(x).split(self.sizes, -1)
        q, k, v = (t.unflatten(-1, (-1, each)).transpose(1, 2) for t, each in zip(split, self.widths, strict=True))
        if part["qk_norm"]["kind"] != "none":
            q, k = self.query_norm(q), self.key_norm(k)
        if part["rope"]:
            q, k = rotated(q, place.positions, part["rope"]), rotated(k, place.positions, part["rope"])
        k, v = (t.repeat_interleave(part["heads"] // part["kv_heads"], 1) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)).to(at_least_single(q.dtype)) * part["scale"]
        if part["softcap"]:
            scores = part["softcap"] * torch.tanh(scores / part["softcap"])
        weights = self._hidden(scores, place).softmax(-1).to(v.dtype)
        return self.output((weights @ v).transpose(1, 2).flatten(2))

    def _hidden(self, scores: Tensor, place: Place) -> Tensor:
        """Scores with position biases, and the lowest value of their dtype at masked keys."""
        query, key = place.positions[:, :, None], place.positions[:, None, :]
        if self.part["slopes"]:
            slopes = torch.tensor(self.part["slopes"], dtype=scores.dtype, device=scores.device)
            scores = scores - slopes[:, None, None] * (query - key)[:, None]
        seen = visible(self.part["mask"], query, key)
        if place.valid is not None:
            seen = seen & place.valid[:, None, :]
        return scores.masked_fill(~seen[:, None], torch.finfo(scores.dtype).min)


PARTS["branch.attention"] = Attention
