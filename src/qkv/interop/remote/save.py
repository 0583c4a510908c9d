"""Export a language model that no published family covers, with its own model file.

The transformers library opens it with ``trust_remote_code=True``: ``modeling_qkv.py`` contains the model's modules in
plain torch, independent of qkv.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.interop.places import CONFIG, GENERATION, TOKENIZER_CONFIG, WEIGHTS
from qkv.interop.remote.description import description
from qkv.interop.save import about, tokenizer_config, write_json, write_tensors
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

CONFIGURATION_FILE, MODEL_FILE = "configuration_qkv.py", "modeling_qkv.py"
_HERE = Path(__file__).parent
_ALWAYS = ("common", "norms", "residuals")
_LAST = ("stack",)
_PIECES = {
    "attention": "attention",
    "linear_attention": "linear_attention",
    "token_shift": "token_shift",
    "causal_convolution": "causal_convolution",
    "rnn": "recurrent",
    "gru": "recurrent",
    "lstm": "recurrent",
    "feed_forward": "feed_forward",
    "gated_feed_forward": "feed_forward",
}
"""File in ``pieces`` with the module of each kind of branch."""
_HEADER = '''\
"""Language model exported by qkv, with all modules in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_qkv import QkvConfig
'''


def save_remote(model: Transformer, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a language model as a self-contained checkpoint folder: config.json, model.safetensors, two Python files
    and, given a tokenizer, its files.

    Raises ``UserError`` if a part is not supported, or the folder cannot be written.
    """
    said = description(model.spec)
    config = {
        "model_type": "qkv",
        "architectures": ["QkvForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_qkv.QkvConfig",
            "AutoModelForCausalLM": "modeling_qkv.QkvForCausalLM",
        },
        "vocab_size": said["frontend"]["vocab_size"],
        "hidden_size": model.spec.width,
        "num_hidden_layers": len(said["blocks"]),
        "max_position_embeddings": model.spec.context_length,
        "tie_word_embeddings": False,
        "use_cache": False,
        "description": said,
        **about(model, tokenizer, ()),
    }
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, _tensors(model))
        write_file(folder / CONFIGURATION_FILE, (_HERE / "configuration_qkv.template").read_bytes())
        write_file(folder / MODEL_FILE, model_source(said).encode())
        write_json(folder / GENERATION, {**ids, "use_cache": False})
        if tokenizer is not None:
            tokenizer.save(folder / FILE_NAME)
            write_json(folder / TOKENIZER_CONFIG, tokenizer_config(tokenizer, model.spec))
        write_json(folder / CONFIG, config)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None


def model_source(said: dict[str, Any]) -> str:
    """Python source of the self-contained model file, with only the modules that the description ``said`` needs."""
    kinds = [branch["kind"] for block in said["blocks"] for branch in block["branches"]]
    names = dict.fromkeys((*_ALWAYS, *(_PIECES[kind] for kind in kinds), *_LAST))
    bodies = [_body((_HERE / "pieces" / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return "\n\n".join([_HEADER, *bodies, (_HERE / "modeling_qkv.template").read_text(encoding="utf-8")])


def _body(source: str) -> str:
    """Python source of a module without its docstring and imports."""
    first = next(
        node for node in ast.parse(source).body if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Expr))
    )
    return "\n".join(source.splitlines()[first.lineno - 1 :]) + "\n"


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """Tensors of the model by name; a shared tensor appears once, under its first name, and the matrix of a tied head
    under the token table's.
    """
    seen, found = set[int](), dict[str, torch.Tensor]()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found
