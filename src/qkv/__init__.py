"""qkv: every Transformer from one set of parts.

    import qkv

    run = qkv.train("my.txt")
    print(qkv.generate(run, "Once upon a time"))

Describe a model with the parts in ``qkv.spec``, then ``build``, ``train``, ``load``, ``generate`` and ``evaluate``, or
estimate its ``cost`` before anything is built. Importing this package is fast: each name imports its module on first
use, torch included.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv import spec as spec
    from qkv.api.functions import ask as ask
    from qkv.api.functions import compare as compare
    from qkv.api.functions import cost as cost
    from qkv.api.functions import embed as embed
    from qkv.api.functions import evaluate as evaluate
    from qkv.api.functions import evaluate_choices as evaluate_choices
    from qkv.api.functions import explain as explain
    from qkv.api.functions import export as export
    from qkv.api.functions import generate as generate
    from qkv.api.functions import generate_images as generate_images
    from qkv.api.functions import health as health
    from qkv.api.functions import inspect as inspect
    from qkv.api.functions import load as load
    from qkv.api.functions import predict as predict
    from qkv.api.functions import quantize as quantize
    from qkv.api.functions import show as show
    from qkv.api.functions import swap as swap
    from qkv.api.functions import train as train
    from qkv.api.functions import write_fixtures as write_fixtures
    from qkv.api.recipes import find_recipe as find_recipe
    from qkv.layers.signal import Signal as Signal
    from qkv.models.build import build as build
    from qkv.runs.chats.chat import chat as chat
    from qkv.runs.inference.rerank import rerank as rerank
    from qkv.runs.inference.search import search as search
    from qkv.runs.run import Run as Run
    from qkv.runs.sound.compression import compress as compress
    from qkv.runs.sound.compression import decompress as decompress
    from qkv.runs.sound.speech import say as say
    from qkv.runs.storage.save import save as save
    from qkv.runs.transcription.transcribe import transcribe as transcribe
    from qkv.spec.errors import SpecError as SpecError
    from qkv.spec.files.overrides import override as override
    from qkv.spec.files.yaml_io import read_model as read_model
    from qkv.spec.files.yaml_io import read_recipe as read_recipe
    from qkv.spec.files.yaml_io import write_spec as write_spec
    from qkv.spec.generation import Generation as Generation
    from qkv.spec.model import Block as Block
    from qkv.spec.model import Model as Model
    from qkv.spec.recipe import Recipe as Recipe
    from qkv.spec.training import Training as Training
    from qkv.system.errors import UserError as UserError
    from qkv.training.compare import compare_runs as compare_runs

# Torch reads this at its first allocation: tensors of 2 MB and more then request huge pages, if the system allows.
# Decoding reads all weights once per token and gains 3 to 10 %; training has half as many page faults.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

_HOMES = {
    "Block": "qkv.spec.model",
    "Generation": "qkv.spec.generation",
    "Model": "qkv.spec.model",
    "Recipe": "qkv.spec.recipe",
    "Run": "qkv.runs.run",
    "Signal": "qkv.layers.signal",
    "SpecError": "qkv.spec.errors",
    "Training": "qkv.spec.training",
    "UserError": "qkv.system.errors",
    "ask": "qkv.api.functions",
    "build": "qkv.models.build",
    "chat": "qkv.runs.chats.chat",
    "compare": "qkv.api.functions",
    "compare_runs": "qkv.training.compare",
    "compress": "qkv.runs.sound.compression",
    "cost": "qkv.api.functions",
    "decompress": "qkv.runs.sound.compression",
    "embed": "qkv.api.functions",
    "evaluate": "qkv.api.functions",
    "evaluate_choices": "qkv.api.functions",
    "explain": "qkv.api.functions",
    "export": "qkv.api.functions",
    "find_recipe": "qkv.api.recipes",
    "generate": "qkv.api.functions",
    "generate_images": "qkv.api.functions",
    "health": "qkv.api.functions",
    "inspect": "qkv.api.functions",
    "load": "qkv.api.functions",
    "override": "qkv.spec.files.overrides",
    "predict": "qkv.api.functions",
    "quantize": "qkv.api.functions",
    "read_model": "qkv.spec.files.yaml_io",
    "read_recipe": "qkv.spec.files.yaml_io",
    "save": "qkv.runs.storage.save",
    "say": "qkv.runs.sound.speech",
    "rerank": "qkv.runs.inference.rerank",
    "search": "qkv.runs.inference.search",
    "show": "qkv.api.functions",
    "swap": "qkv.api.functions",
    "train": "qkv.api.functions",
    "transcribe": "qkv.runs.transcription.transcribe",
    "write_fixtures": "qkv.api.functions",
    "write_spec": "qkv.spec.files.yaml_io",
}
"""Module that defines each public name. The imports above repeat this table for type checkers, which cannot read it; a
test compares both.
"""

__all__ = sorted((*_HOMES, "spec"))  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "spec":
        import_module("qkv.spec.files.yaml_io")  # imports all spec modules
        return import_module("qkv.spec")
    if name == "__version__":
        return import_module("importlib.metadata").version("qkv")
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
