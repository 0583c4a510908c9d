"""Every way in which a user generates text decodes a token in one native call, and compares the model's parts once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serving.conftest import serving
from tests.serving.models import characters

import qkv
from qkv.cli.main import main
from qkv.interop.save import save_published
from qkv.models.fast.fingerprint import Fingerprint
from qkv.models.fast.frozen_weights import promised
from qkv.models.fast.native_token import NativeToken
from qkv.ops.native import library
from qkv.runs.run import Run
from qkv.spec.model import Model
from qkv.tokenizers.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not library.available(), reason="needs the native library, which needs a compiler")
BRANCHES = ["attention(2, num_kv_heads=1, relative=rope, bias=false)", "gated_feed_forward(hidden=64, bias=false)"]
LLAMA = {
    "width": 32,
    "num_layers": 2,
    "context_length": 64,
    "norm": "rms_norm",
    "blocks": [{"norm": "rms_norm", "branches": BRANCHES}],
    "head": "language_model(tied=false)",
}
NEW = 7
"""Tokens of a text, of which the pass over the prompt gives the first."""
PROMPT = "the quick"
GREEDY = {"max_new_tokens": NEW, "temperature": 0.0}


class Counts:
    """Numbers of native calls of a token, and of comparisons of a model's parts that were not spared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.tokens = self.comparisons = 0
        call, current = NativeToken.__call__, Fingerprint.current

        def counted(step: NativeToken, *args: Any) -> Any:
            self.tokens += 1
            return call(step, *args)

        def compared(contents: Fingerprint) -> bool:
            self.comparisons += promised() is None or promised() is not contents._compared
            return current(contents)

        monkeypatch.setattr(NativeToken, "__call__", counted)
        monkeypatch.setattr(Fingerprint, "current", compared)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of two layers, as published folders, a GGUF file and quantised runs."""
    folder = tmp_path_factory.mktemp("doors")
    tokenizer: Tokenizer = characters()
    frontend = {"kind": "text", "vocab_size": tokenizer.vocab_size, "positions": "none"}
    spec = Model.parse({**LLAMA, "frontend": frontend})
    save_published(qkv.build(spec, seed=1).eval(), folder / "fp32", tokenizer)
    for dtype in ("bf16", "fp16"):
        assert main(["export", str(folder / "fp32"), "--out", str(folder / dtype), "--dtype", dtype, "--no-check"]) == 0
    for dtype in ("fp32", "q8_0"):
        file = folder / f"{dtype}.gguf"
        words = ["--format", "gguf", "--dtype", dtype, "--no-check"]
        assert main(["export", str(folder / "fp32"), "--out", str(file), *words]) == 0
    for bits in (16, 8, 4):
        qkv.quantize(folder / "fp32", folder / f"run{bits}", bits=bits)
    names = ("fp32", "bf16", "fp16", "fp32.gguf", "q8_0.gguf", "run16", "run8", "run4")
    return {name: folder / name for name in names}


def function(place: Path) -> None:
    qkv.generate(place, PROMPT, **GREEDY)


def loaded(place: Path) -> None:
    qkv.generate(qkv.load(place), PROMPT, **GREEDY)


def copied(place: Path) -> None:
    qkv.generate(qkv.load(place, copy=True), PROMPT, **GREEDY)


def ids(place: Path) -> None:
    qkv.generate(place, ids=[1, 2, 3], **GREEDY)


def command(place: Path) -> None:
    assert main(["generate", str(place), PROMPT, "--max-new-tokens", str(NEW), "--temperature", "0"]) == 0


def without_stream(place: Path) -> None:
    words = ["--max-new-tokens", str(NEW), "--temperature", "0", "--no-stream"]
    assert main(["generate", str(place), PROMPT, *words]) == 0


DOORS: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (function, loaded, copied, ids, command, without_stream)
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "fp32.gguf", "q8_0.gguf", "run16", "run8", "run4"])
def test_a_token_is_one_native_call(door: str, name: str, places: dict[str, Path], counts: Counts) -> None:
    DOORS[door](places[name])
    assert counts.tokens == NEW - 1
    assert counts.comparisons <= 2  # once, and again when the weights have been laid out


@pytest.fixture
def served(places: dict[str, Path]) -> Iterator[Callable[[str], Any]]:
    """Function (name of a place) -> completion by a server of it."""
    with serving({name: _run(place) for name, place in places.items()}) as running:
        client = running.client()
        asked = {"prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "extra_body": {"ignore_eos": True}}
        yield lambda name: client.completions.create(model=name, **asked)


def _run(place: Path) -> Run:
    return qkv.load(place)


def test_a_server_decodes_by_native_calls(
    places: dict[str, Path], served: Callable[[str], Any], counts: Counts
) -> None:
    for name in places:
        before = counts.tokens
        assert served(name).usage.completion_tokens == NEW
        assert counts.tokens - before == NEW - 1, name


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_folder_in_half_precision_computes_in_fp32(name: str, places: dict[str, Path]) -> None:
    """Its logits are those of its weights in fp32, which other libraries round to half precision."""
    row, narrow = torch.arange(1, 12)[None], qkv.load(places[name])
    with torch.no_grad():
        expected = qkv.load(places[name], dtype="fp32").model(row)[0]
        found = narrow.model(row)[0]
    assert found.dtype == torch.float32
    bound = 2e-2 if library.rounds_to_bf16() else 1e-5  # some processors multiply in bf16
    torch.testing.assert_close(found, expected, rtol=0, atol=bound * float(expected.abs().max()))


def test_bench_and_why_name_the_path_of_a_text(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--batch", "1", "--prompt", "4", "--new", "3", "--repeats", "1", "--out", str(tmp_path / "out")]
    assert main(["bench", str(places["bf16"]), *words, "--precision", "fp32,int4"]) == 0
    assert capsys.readouterr().out.count("one native call a token") == 2
    assert main(["why", str(places["q8_0.gguf"])]) == 0
    assert "a text is decoded by one native call a token" in capsys.readouterr().out
    words = ["model.frontend.vocab_size=30", 'model.blocks.0.branches=["attention(2, mask=causal & window(4))"]']
    assert main(["why", "char_shakespeare_cpu", "model.context_length=16", *words]) == 0
    assert "part by part: the native library lacks attention with mask 'all_of'" in capsys.readouterr().out
