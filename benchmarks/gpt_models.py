"""The same GPT built with each library.

Equal sizes, pre-norm, GELU, tied table, learned positions, no dropout, fused attention kernels.

Each function returns a module and a function from ids (B, N) to logits (B, N, V). Biases are kept where a library
cannot omit them; they are below one percent of the weights.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import qkv

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Size:
    """Sizes of a model and its batch."""

    name: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    vocab: int = 65

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.context


def qkv_gpt(size: Size) -> tuple[nn.Module, Forward]:
    """qkv's model, as in a recipe."""
    block = {
        "branches": [f"attention({size.heads}, bias=false)", "feed_forward(bias=false)"],
        "norm": "layer_norm(bias=false)",
    }
    frontend = {"kind": "text", "vocab_size": size.vocab}
    sizes = {"width": size.width, "num_layers": size.layers, "context_length": size.context}
    model = qkv.build(
        qkv.Model.parse({**sizes, "frontend": frontend, "blocks": [block], "norm": "layer_norm(bias=false)"})
    )
    return model, lambda ids: model(ids)[0]


def nanogpt(folder: Path, size: Size) -> tuple[nn.Module, Forward]:
    """The model class of a nanoGPT checkout."""
    module = nanogpt_module(folder)
    config = module.GPTConfig(size.context, size.vocab, size.layers, size.heads, size.width, dropout=0.0, bias=False)
    with contextlib.redirect_stdout(io.StringIO()):
        model = module.GPT(config)

    # Its own forward gives all logits only together with the loss.
    def forward(ids: Tensor) -> Tensor:
        parts = model.transformer
        x = parts.drop(parts.wte(ids) + parts.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in parts.h:
            x = block(x)
        return model.lm_head(parts.ln_f(x))

    return model, forward


def nanogpt_module(folder: Path) -> ModuleType:
    """``model.py`` of a nanoGPT checkout. Exits with a sentence if it is not there."""
    path = folder / "model.py"
    if not path.is_file():
        raise SystemExit(f"--nanogpt: {folder} has no model.py; give the folder of a nanoGPT checkout")
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def transformers_gpt(size: Size) -> tuple[nn.Module, Forward]:
    """GPT-2 of transformers; exact GELU, because its tanh form in plain operators is slower."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_layer": size.layers,
        "n_head": size.heads,
        "n_embd": size.width,
        "n_positions": size.context,
        "vocab_size": size.vocab,
    }
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, **dropouts, **tokens, activation_function="gelu", attn_implementation="sdpa")
    )
    return model, lambda ids: model(input_ids=ids, use_cache=False).logits


def x_transformers_gpt(size: Size) -> tuple[nn.Module, Forward]:
    """A decoder of x-transformers with its fused attention."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=size.width,
        depth=size.layers,
        heads=size.heads,
        attn_dim_head=size.width // size.heads,
        attn_flash=True,
        ff_no_bias=True,
    )
    model = TransformerWrapper(num_tokens=size.vocab, max_seq_len=size.context, attn_layers=layers, tie_embedding=True)
    return model, model


def torch_gpt(size: Size) -> tuple[nn.Module, Forward]:
    """torch.nn.TransformerEncoder with a causal mask."""
    model = TorchGPT(size)
    return model, model


class TorchGPT(nn.Module):
    """Token and position tables, torch's encoder, the token table again."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens = nn.Embedding(size.vocab, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True, "bias": False}
        layer = nn.TransformerEncoderLayer(size.width, size.heads, 4 * size.width, **options)
        norm = nn.LayerNorm(size.width, bias=False)
        self.encoder = nn.TransformerEncoder(layer, size.layers, norm=norm, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.context), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return self.encoder(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T
