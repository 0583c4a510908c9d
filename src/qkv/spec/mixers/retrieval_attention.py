"""Spec of attention with a memory of past keys and values that is searched."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qkv.spec.branches import DotProduct
from qkv.spec.masks import Causal, Mask
from qkv.spec.models.growth import STORED, Growth


class RetrievalAttention(DotProduct, kind="retrieval_attention"):
    """Local attention joined by a gate with attention to retrieved keys (Memorizing Transformers, Wu et al. 2022).

        local_i = Σ_j softmax(q_i · k_j / (τ √Dk)) v_j       over the last W positions, i - W < j <= i
        far_i   = the same over the k keys j <= i - W with the largest q_i · k_j
        O_i = g far_i + (1 - g) local_i,  g = σ(b) for each head;  O_i = local_i where nothing is older

    Two differences from the paper: the memory holds only keys and values of the same row, and gradients pass to
    retrieved keys and values that the same call has computed; those in a decoding state have no gradient. ``qk_norm``
    is recommended, so that the inner products of old and new keys are comparable.
    """

    window: int = Field(default=512, gt=0, description="positions that are attended to locally, W")
    num_retrieved: int = Field(default=32, gt=0, description="keys retrieved by each head of each query, k")
    search: Literal["exact", "faiss"] = Field(
        default="exact", description="faiss: search of large memories in decoding by the library faiss"
    )

    @property
    def growth(self) -> Growth:
        return STORED

    @property
    def mask(self) -> Mask:
        """Mask of the keys that a query attends to or retrieves."""
        return Causal()
