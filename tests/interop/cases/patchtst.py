"""PatchTST: three channels, steps that fill no patch, both norms, both orders, both positions, each head."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import PatchTSTConfig, PatchTSTForPrediction, PatchTSTModel


def patchtst(**changed: Any) -> PatchTSTConfig:
    sizes = {"num_input_channels": 3, "context_length": 21, "patch_length": 4, "patch_stride": 3}
    body = {"d_model": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 20, "prediction_length": 5}
    return PatchTSTConfig(**{**sizes, **body, **changed})


POST = {"pre_norm": False, "norm_eps": 1e-2, "positional_encoding_type": "random", "activation_function": "relu"}
CASES = (
    Case("patchtst-joined", PatchTSTForPrediction, patchtst(pooling_type=None, path_dropout=0.2, head_dropout=0.1)),
    Case("patchtst-mean", PatchTSTForPrediction, patchtst(norm_type="layernorm", bias=False, **POST)),
    Case("patchtst-body", PatchTSTModel, patchtst(context_length=22, scaling=None, **POST)),
)
