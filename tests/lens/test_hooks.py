"""Names and habits of TransformerLens, against forward hooks on the transformers library with the same weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.inventory import assert_lists
from tests.lens.capture.models import IDS, built
from torch import Tensor

from qkv.interop.load import load_published
from qkv.lens.hooks import names
from qkv.lens.hooks.names import list_names
from qkv.lens.hooks.run import HookPoint, run_with_cache, run_with_hooks
from qkv.lens.record import record
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


def gpt2(folder: Path) -> tuple[Any, Transformer]:
    """A random GPT-2 of two layers in the transformers library, and the same model here, in float64."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=4, use_cache=False)
    config._attn_implementation = "eager"
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(folder)
    return theirs.double(), load_published(folder).model.double()


def of_heads(block: Any, name: str, values: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Values of attention by name, from the outputs of ``c_attn`` and inputs of ``c_proj``, which leave ``values``."""
    q, k, v = values.pop(f"{name}.qkv").unflatten(-1, (3, 4, 4)).unbind(-3)
    z = values.pop(f"{name}.z").unflatten(-1, (4, 4))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / 2
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    matrix = block.attn.c_proj.weight.view(4, 4, 16)
    by_name = {"q": q, "k": k, "v": v, "z": z, "pattern": weights}
    by_name["attn_scores"] = scores.masked_fill(hidden, -torch.inf)
    by_name["result"] = torch.einsum("bnhd,hdm->bnhm", z, matrix)
    return {f"{name}.attn.hook_{key}": value for key, value in by_name.items()}


def read_by_hooks(theirs: Any) -> dict[str, Tensor]:
    """Values by name from forward hooks of torch on the modules of the transformers library."""
    values: dict[str, Tensor] = {}

    def of_output(name: str) -> Any:
        return lambda module, inputs, output: values.update({name: output[0] if isinstance(output, tuple) else output})

    def of_input(name: str) -> Any:
        return lambda module, inputs, output: values.update({name: inputs[0]})

    body = theirs.transformer
    places = [(body.wte, of_output("hook_embed")), (body.wpe, of_output("hook_pos_embed"))]
    for i, block in enumerate(body.h):
        at = {
            "hook_resid_pre": (block, of_input),
            "qkv": (block.attn.c_attn, of_output),
            "z": (block.attn.c_proj, of_input),
            "hook_attn_out": (block.attn, of_output),
            "hook_resid_mid": (block.ln_2, of_input),
            "mlp.hook_pre": (block.mlp.c_fc, of_output),
            "mlp.hook_post": (block.mlp.c_proj, of_input),
            "hook_mlp_out": (block.mlp, of_output),
            "hook_resid_post": (block, of_output),
        }
        places += [(module, how(f"blocks.{i}.{name}")) for name, (module, how) in at.items()]
    handles = [module.register_forward_hook(hook) for module, hook in places]
    attentions = theirs(IDS, output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    for i, weights in enumerate(attentions):
        values |= of_heads(theirs.transformer.h[i], f"blocks.{i}", values, weights)
    values["hook_pos_embed"] = values["hook_pos_embed"].expand(3, -1, -1)
    return values


@torch.no_grad()
def test_every_name_stands_for_the_value_of_the_other_library(tmp_path: Path) -> None:
    theirs, ours = gpt2(tmp_path)
    logits, cache = run_with_cache(ours, IDS)
    torch.testing.assert_close(logits, theirs(IDS).logits)
    expected = read_by_hooks(theirs)
    scales = {name for name in cache if name.endswith("hook_scale")}
    assert len(scales) == 5
    assert set(cache) - scales == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(cache[name], value, msg=name)
    x = cache["resid_mid", 1]
    deviation = ((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(cache["scale", 1, "ln2"], deviation)


@torch.no_grad()
def test_a_replacement_under_a_name_is_that_of_a_hook_of_torch(tmp_path: Path) -> None:
    theirs, ours = gpt2(tmp_path)

    def without_head(value: Tensor, *, hook: HookPoint) -> Tensor:
        assert hook.name.endswith(("hook_z", "hook_result"))
        assert hook.layer() == 1
        value = value.clone()
        value[:, :, 2] = 0
        return value

    def in_theirs(module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
        z = inputs[0].clone()
        z[..., 8:12] = 0
        return (z,)

    handle = theirs.transformer.h[1].attn.c_proj.register_forward_pre_hook(in_theirs)
    expected = theirs(IDS).logits
    handle.remove()
    for name in ("hook_z", "hook_result"):
        torch.testing.assert_close(run_with_hooks(ours, IDS, [(f"blocks.1.attn.{name}", without_head)]), expected)
    every = run_with_hooks(ours, IDS, [(lambda name: name.endswith("1.attn.hook_z"), without_head)])
    torch.testing.assert_close(every, expected)

    def moved(value: Tensor, *, hook: HookPoint) -> Tensor:
        return value.roll(1, 0)

    embed = [("hook_embed", moved)]
    torch.testing.assert_close(run_with_hooks(ours, IDS, embed), ours(IDS.roll(1, 0))[0])
    torch.testing.assert_close(run_with_hooks(ours, IDS), ours(IDS)[0])


@pytest.mark.parametrize("rope", [False, True])
@torch.no_grad()
def test_the_stream_is_the_sum_of_its_terms_and_the_logits_of_their_attributions(rope: bool, tmp_path: Path) -> None:
    ours = built() if rope else gpt2(tmp_path)[1]
    logits, cache = run_with_cache(ours, IDS)
    terms, labels = cache.decompose_resid(return_labels=True)
    outputs = ["0_attn_out", "0_mlp_out", "1_attn_out", "1_mlp_out"]
    assert labels == ["embed", "pos_embed", *outputs]
    torch.testing.assert_close(terms.sum(0), cache["resid_post", -1])
    accumulated, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels == ["0_pre", "0_mid", "1_pre", "1_mid", "final_post"]
    torch.testing.assert_close(accumulated[2], terms[: len(terms) - 2].sum(0))
    heads, labels = cache.stack_head_results(incl_remainder=True, return_labels=True)
    assert labels == [f"L{i}H{h}" for i in range(2) for h in range(4)] + ["remainder"]
    torch.testing.assert_close(heads.sum(0), cache["resid_post", -1])
    norm_bias = ours.norm.bias @ ours.head.weight.T  # type: ignore[operator, union-attr]
    for stack in (terms, heads):
        total = cache.logit_attrs(stack, IDS).sum(0)
        torch.testing.assert_close(total + norm_bias[IDS], logits.gather(-1, IDS[..., None])[..., 0])
    right, wrong = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
    difference = cache.logit_attrs(terms, right, wrong).sum(0) + (norm_bias[right] - norm_bias[wrong])[:, None]
    rows = torch.arange(3)
    torch.testing.assert_close(difference, logits[rows, :, right] - logits[rows, :, wrong])


MAMBA = {"branches": ["mamba2", "feed_forward(24)"]}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "block 0 mixes positions by 'mamba2'": ("blocks.0.attn.hook_q", {"blocks": [MAMBA]}),
    "before the norm of queries and keys": (
        "blocks.0.attn.hook_k",
        {"blocks": [{"branches": ["attention(2, qk_norm=rms_norm)", "feed_forward(24)"]}]},
    ),
    "after the rotation": ("blocks.1.attn.hook_rot_q", {}),
    "after the norm of the branch's output": (
        "blocks.0.hook_mlp_out",
        {"blocks": [{"branches": ["attention(2)", "feed_forward(24)"], "order": "sandwich"}]},
    ),
    "before the norm, qkv after": (
        "blocks.0.hook_resid_post",
        {"blocks": [{"branches": ["attention(2)", "feed_forward(24)"], "order": "post"}]},
    ),
    "do not follow each other": (
        "blocks.0.hook_resid_mid",
        {"blocks": [{"branches": ["attention(2)", "feed_forward(24)"], "order": "parallel"}]},
    ),
    "before the norm's weight and bias, qkv after; read 'input'": ("blocks.0.ln1.hook_normalized", {}),
    "read 'norm.output'": ("ln_final.hook_normalized", {}),
    "has no gate": ("blocks.0.mlp.hook_pre_linear", {}),
    "scales, normalises or projects": ("hook_embed", {"frontend": {"kind": "text", "vocab_size": 11, "scale": True}}),
    "numbered from 0": ("blocks.2.hook_resid_pre", {}),
    "is no name of a point": ("blocks.0.attn.hook_nothing", {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_name_whose_value_differs_is_refused_with_the_difference(message: str) -> None:
    name, fields = REFUSED[message]
    model = built(**fields)
    with pytest.raises(UserError, match=message) as refusal:
        run_with_cache(model, IDS, name)
    assert "\n" not in str(refusal.value)
    assert name not in list_names(model)


@torch.no_grad()
def test_gated_networks_and_parallel_blocks_have_names_too() -> None:
    branches = ["attention(4, num_kv_heads=2, relative=rope)", "gated_feed_forward(24)"]
    model = built(blocks=[{"branches": branches, "order": "parallel"}], norm="rms_norm")
    _, cache = run_with_cache(model, IDS, lambda name: "mlp" in name or "resid" in name or "out" in name)
    pre, linear, post = (cache[name, 0] for name in ("pre", "pre_linear", "post"))
    torch.testing.assert_close(torch.nn.functional.silu(pre) * linear, post)
    stream = cache["resid_pre", 0] + cache["blocks.0.hook_attn_out"] + cache["blocks.0.hook_mlp_out"]
    torch.testing.assert_close(stream, cache["resid_post", 0])
    plain = built(blocks=[{"branches": branches, "norm": "rms_norm(weight=false)"}], norm="rms_norm(weight=false)")
    _, cache = run_with_cache(plain, IDS)
    for name, x in (("ln1", cache["resid_pre", 1]), ("ln2", cache["resid_mid", 1])):
        torch.testing.assert_close(cache["normalized", 1, name], x / cache["scale", 1, name])
    torch.testing.assert_close(cache["ln_final.hook_normalized"], record(plain, IDS, "norm.output")["norm.output"])
    _, cache = run_with_cache(model, IDS, ["blocks.0.attn.hook_k"])
    assert cache["k", 0].shape == (3, 6, 2, 4)
    with pytest.raises(UserError, match="the cache lacks 'blocks"):
        cache["q", 0]


def test_gradients_flow_through_hooks() -> None:
    model = built()
    logits, cache = run_with_cache(model, IDS, "blocks.0.hook_resid_post")
    (gradient,) = torch.autograd.grad(logits[..., 1].sum(), cache["resid_post", 0])
    assert gradient.abs().sum() > 0


def test_the_page_lists_every_name_of_the_tables() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "inside.md").read_text(encoding="utf-8")
    section = page.split("## Names of TransformerLens")[1].split("\n## ")[0]
    listed = set[str]()
    for cell in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE):
        prefix = ""
        for name in re.findall(r"`([\w.]+)`", cell):
            before, _, last = name.rpartition(".")
            prefix = before or prefix  # `attn.hook_q`, `hook_k`
            listed.add(f"{prefix}.{last}" if prefix else last)
    refused = {"attn.hook_rot_q", "attn.hook_rot_k"}  # always
    assert_lists("docs/inside.md, names of TransformerLens", listed | refused, {*names._OF_MODELS, *names._OF_LAYERS})
