"""Export of a language model that no published family covers, with a Python model file that loads it through qkv.

The transformers library opens the folder with ``trust_remote_code=True`` if qkv is installed: ``modeling_qkv.py``
builds the model from the spec in ``config.json``.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from qkv.interop.files.places import CONFIG, GENERATION, TOKENIZER_CONFIG, WEIGHTS
from qkv.interop.save import about, tokenizer_config, write_json, write_tensors
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.tokenizers.tokenizer import FILE_NAME, Tokenizer

MODEL_FILE = "modeling_qkv.py"
_SOURCE = Path(__file__).with_name("modeling_qkv.template")


def save_with_code(model: Transformer, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Write a causal language model as a folder: config.json with its spec, model.safetensors and the Python model
    file.

    A tokenizer's files are added if there is one. Raises ``UserError`` for other models, or if the folder cannot be
    written.
    """
    spec = model.spec
    if spec.encoder is not None or not spec.causal or not spec.head.predicts_tokens or spec.frontend.inputs_read:
        raise UserError("a Python model file can be written for causal language models only, and this model is not one")
    kind = MODEL_FILE.removesuffix(".py")
    config = {
        "model_type": "qkv",
        "architectures": ["QkvForCausalLM"],
        "auto_map": {"AutoConfig": f"{kind}.QkvConfig", "AutoModelForCausalLM": f"{kind}.QkvForCausalLM"},
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "max_position_embeddings": spec.context_length,
        "tie_word_embeddings": False,
        "use_cache": False,
        "spec": spec.to_dict(),
        **about(model, tokenizer, ()),
    }
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    folder = Path(folder).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, _tensors(model))
        write_file(folder / MODEL_FILE, _SOURCE.read_bytes())
        write_json(folder / GENERATION, {**ids, "use_cache": False})
        if tokenizer is not None:
            tokenizer.save(folder / FILE_NAME)
            write_json(folder / TOKENIZER_CONFIG, tokenizer_config(tokenizer, spec))
        write_json(folder / CONFIG, config)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be written: {error.strerror or error}") from None


def _tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the tensors of the model by their names in the model file.

    A shared tensor appears once, under its first name.
    """
    seen, tensors = set[int](), dict[str, Tensor]()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[f"model.{name}"] = tensor.detach()
    return tensors
