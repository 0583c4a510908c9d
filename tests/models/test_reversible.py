"""Reversible blocks: gradients of plain autograd without what it keeps."""

from __future__ import annotations

import weakref
from threading import Thread
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from qkv.costs.cost import cost
from qkv.costs.measuring.measure import count_flops
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import ChoiceTable, table, using
from qkv.spec.branches import GRU, Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Reversible, Sinusoidal, T5Buckets
from qkv.spec.training import Training

IDS = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))
TEXT = Text(vocab_size=11)


def spec(*blocks: Block, **fields: Any) -> Model:
    blocks = blocks or (Block(residual=Reversible()),)
    return Model(
        **{
            "width": 16,
            "context_length": 16,
            "frontend": TEXT,
            "blocks": blocks,
            "head": LanguageModelHead(tied=False),
            **fields,
        }
    )


def gradients(model: Transformer, plain: bool, bf16: bool = False) -> dict[str, Tensor]:
    """The logits and every gradient, with the same random numbers; ``plain``: by autograd, as with any tap."""
    torch.manual_seed(3)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        memory = model.encode(IDS[:, :5]) if model.encoder else None
        logits = model(Signal(IDS, lengths=torch.tensor([7, 4])), tap=Tap() if plain else None, memory=memory)[0]
        logits.float().pow(2).mean().backward()  # inside, where weights that were rounded may be remembered
    return {
        "logits": logits.detach(),
        **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
    }


FORMS = {
    "attention and feed-forward": spec(num_layers=3),
    "an odd number of branches, sandwich": spec(
        Block(branches=(Attention(), GRU(), FeedForward()), order="sandwich", residual=Reversible()), num_layers=2
    ),
    "one table for all layers": spec(
        Block(branches=(Attention(relative=T5Buckets(shared=True)), FeedForward()), residual=Reversible()), num_layers=3
    ),
    "reads an encoder's layers": spec(
        Block(branches=(Attention(), CrossAttention(), FeedForward()), residual=Reversible()),
        num_layers=2,
        encoder=Encoder(num_layers=2, frontend=TEXT, memory="layers", context_length=8),
    ),
}


@pytest.mark.parametrize("dropped", [False, True], ids=["all", "dropout"])
@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_those_of_autograd(name: str, dropped: bool) -> None:
    """Also where parts are dropped: the numbers drawn the second time are those of the first."""
    form = FORMS[name]
    if dropped:
        inner = [
            b.changed(dropout=0.3) if isinstance(b, Attention | CrossAttention | FeedForward) else b
            for b in form.blocks[0].branches
        ]
        form = form.changed(blocks=(form.blocks[0].changed(branches=tuple(inner), dropout=0.2, drop_path=0.3),))
    model = build(form.changed(init_std=0.3)).double().train()
    expected, seen = gradients(model, plain=True), gradients(model, plain=False)
    assert seen.keys() == expected.keys() == {"logits", *dict(model.named_parameters())}
    for part, value in expected.items():
        assert float((seen[part] - value).abs().max()) <= 1e-12 * float(value.abs().max()), part


def test_random_numbers_go_on_as_if_nothing_had_been_computed_again() -> None:
    model = build(spec(Block(dropout=0.5, residual=Reversible()), num_layers=2)).train()
    after = []
    for plain in (True, False):
        gradients(model, plain)
        after.append(torch.rand(3))
    assert torch.equal(*after)


def test_rounded_products_are_rounded_again() -> None:
    """Under bf16 the same gradients but for rounding, and one for every weight."""
    model = build(spec(num_layers=3, init_std=0.3)).train()
    expected, seen = gradients(model, plain=True, bf16=True), gradients(model, plain=False, bf16=True)
    assert seen.keys() == expected.keys()
    for part, value in expected.items():
        assert float((seen[part] - value).abs().max()) <= 0.05 * float(value.abs().max()), part


class Saved:
    """A tensor that a graph holds, for as long as it does."""

    held: ClassVar[weakref.WeakSet[Saved]] = weakref.WeakSet()

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()  # with its graph it would hold itself
        Saved.held.add(self)


def kept(model: Transformer, tap: Any = None) -> int:
    """Bytes that autograd still keeps after a forward pass, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        logits = model(IDS, tap=tap)[0]
    found = [saved.tensor for saved in Saved.held if saved.tensor.untyped_storage().data_ptr() not in weights]
    assert logits.requires_grad
    return sum(t.numel() * t.element_size() for t in found)


def test_what_is_kept_does_not_grow_with_depth() -> None:
    shallow, deep = (build(spec(num_layers=n)) for n in (2, 12))
    assert kept(shallow) == kept(deep)
    assert kept(deep, Tap()) > 20 * kept(deep), "plain autograd keeps every layer"


def test_a_frozen_stack_still_passes_gradients_on() -> None:
    model = build(spec(num_layers=2))
    model.blocks.requires_grad_(False)
    seen = gradients(model, plain=False)
    expected = gradients(model, plain=True)
    assert "blocks.0.branches.0.norm.weight" not in seen
    torch.testing.assert_close(seen["frontend.table"], expected["frontend.table"])


def test_gradients_of_gradients_are_refused() -> None:
    model = build(spec())
    (first,) = torch.autograd.grad(model(IDS)[0].sum(), [model.frontend.table], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_what_is_counted() -> None:
    """Parameters, FLOPs with every branch once more, and no more memory for more layers but their weights'."""
    shallow, deep = (spec(num_layers=n, frontend=Text(vocab_size=11, positions=Sinusoidal())) for n in (2, 12))
    counted = cost(deep, 2)
    assert counted.parameters == sum(p.numel() for p in build(deep).parameters())
    assert counted.forward_flops == count_flops(counted)[0]
    assert counted.train_flops == count_flops(counted)[1]
    # For each branch the state of the random generator is saved, and nothing else.
    more = sum(len(block.branches) for block in deep.layers) - sum(len(block.branches) for block in shallow.layers)
    states = more * torch.get_rng_state().nbytes
    assert counted.memory.activations - cost(shallow, 2).memory.activations <= states
    assert cost(deep, 2, training=Training(recompute=True)).memory.activations == counted.memory.activations


REFUSED = [
    ({"order": "post"}, {}, r"blocks\.0\.order: .*'pre' or 'sandwich', not 'post'"),
    ({"order": "parallel"}, {}, "'pre' or 'sandwich', not 'parallel'"),
    ({"norm": "batch_norm"}, {}, "batch_norm would count each batch twice"),
    ({}, {"head": "language_model"}, "twice as wide as token embeddings"),
]


@pytest.mark.parametrize(("block", "model", "sentence"), REFUSED)
def test_what_does_not_go_together(block: dict[str, Any], model: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Model.parse({**spec().to_dict(), "blocks": [{"residual": "reversible", **block}], **model})


def test_one_stream_and_two_do_not_mix() -> None:
    plain = spec().to_dict()
    with pytest.raises(SpecError, match=r"blocks\.1\.residual: .*make all of them reversible, or none"):
        Model.parse({**plain, "blocks": [{"residual": "reversible"}, {"residual": "add"}]})
    reads = [{"branches": ["cross_attention", "feed_forward"]}]
    with pytest.raises(SpecError, match="a reversible encoder has two streams"):
        Model.parse({**plain, "blocks": reads, "encoder": {"blocks": [{"residual": "reversible"}]}})


@pytest.mark.parametrize("reversible", [True, False], ids=["reversible", "checkpointed"])
def test_a_backward_pass_in_another_thread_computes_again_by_the_table_of_the_run(reversible: bool) -> None:
    """As on a GPU, where torch has a thread of its own for it; a thread inherits no table."""
    model = build(spec() if reversible else spec(Block()))
    model.recompute_blocks(not reversible)
    tables: list[ChoiceTable] = []
    mixer = next(module for module in model.modules() if type(module).__name__ == "Attention")
    mixer.register_forward_pre_hook(lambda module, inputs: tables.append(table()))
    with using(ChoiceTable()) as own:
        loss = model(IDS)[0].sum()
    thread = Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert tables == [own, own]
    assert all(p.grad is not None for p in model.parameters())
