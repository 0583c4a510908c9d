"""Steps on fixed memory against the same model part by part; recordings that repeat operators stand for CUDA graphs."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.models.recorder import Operators, Recording, StandIn
from torch import Tensor

import qkv
from qkv.generation.decode.sample import Sampling, generate
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.fast import replayed_step
from qkv.models.fast.replayed_step import RECORDERS, CudaGraph, StepInputs, fixed_step
from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.state.tree import join, rows, tensors

VOCABULARY, LIMIT = 50, 160
ROPE = "attention(4, num_kv_heads=2, bias=false, relative=rope)"
FORMS: dict[str, dict[str, Any]] = {
    "gpt2": {"branches": ["attention(4)", "feed_forward(activation=gelu_tanh)"]},
    "llama": {"branches": [ROPE, "gated_feed_forward(bias=false)"], "norm": "rms_norm"},
    "post-norm": {"branches": ["attention(4)", "feed_forward"], "order": "post"},
    "parallel, one key head": {"branches": ["attention(4, num_kv_heads=1)", "feed_forward"], "order": "parallel"},
    "sandwich, scaled": {"branches": [ROPE, "feed_forward"], "order": "sandwich", "residual": "scaled"},
    "sink": {"branches": ["attention(4, qk_norm=rms_norm, learned_sink=true)", "feed_forward"]},
    "soft cap": {"branches": ["attention(4, num_kv_heads=2, softcap=5.0)", "feed_forward"]},
    "shaped": {"branches": ["attention(4, shaped=true, relative=rope(fraction=0.5))", "feed_forward"]},
    "scaled rotations": {"branches": ["attention(2, relative=rope(scaling=linear(factor=2)))", "feed_forward"]},
}

pytestmark = pytest.mark.usefixtures("nothing_turned_off")


def built(form: dict[str, Any], width: int = 32, **more: Any) -> Transformer:
    """Model in float64, whose products all go through torch's operators."""
    sizes = {"width": width, "num_layers": 2, "context_length": LIMIT, "frontend": f"text(vocab_size={VOCABULARY})"}
    torch.manual_seed(0)
    model = qkv.build(Model.parse({**sizes, "blocks": [form], **more})).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens(count: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (count, length), generator=torch.Generator().manual_seed(count))


def begun(model: Transformer, ids: Tensor, lengths: list[int] | None = None) -> State:
    """State after ``ids``, of which ``lengths`` are not padding."""
    signal = Signal(ids, None if lengths is None else torch.tensor(lengths))
    state = model(signal, model.init_state(len(ids)))[1]
    assert state is not None
    return state


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def same_read(found: State, expected: State) -> None:
    """Equal counts, and equal keys and values at all positions that were read."""
    assert found.positions == expected.positions
    assert found.limit == expected.limit
    for a, b in zip(tensors(found.blocks), tensors(expected.blocks), strict=True):
        assert a.shape == b.shape
        for row, length in enumerate(found.positions):
            same(a[row, :, :length], b[row, :, :length])


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """Recordings made on the processor, as on a GPU."""
    monkeypatch.setitem(RECORDERS, "cpu", Recording)
    monkeypatch.setattr(Recording, "made", [])
    return Recording.made


class Fixed:
    """Steps of ``model`` on fixed memory, without a recording, from a state that has room for them."""

    def __init__(self, model: Transformer, state: State):
        self.model, self.state = model, state
        self.inputs = StepInputs(model.frontend.table.new_empty(len(state.positions), 1, model.spec.width))
        self.run = fixed_step(model, self.inputs, state.blocks)

    def place(self, ids: Tensor, positions: list[int]) -> None:
        at = torch.tensor(positions)[:, None]
        x = self.model.frontend.table[ids]
        places = self.model.frontend.positions
        self.inputs.set(x if places is None else x + places(at, x.dtype), at)


def logits(model: Transformer, ids: Tensor, state: State) -> tuple[Tensor, State]:
    found, after = model(ids, state)
    assert after is not None
    return found[:, 0], after


@pytest.mark.parametrize("name", FORMS)
def test_a_step_on_fixed_memory_is_the_step_of_the_parts(name: str) -> None:
    """In rows of several lengths, with what earlier texts left in the slots after them."""
    model, lengths = built(FORMS[name]), [3, 9, 6]
    assert all(branch.replayable for branch in model.branches)
    parts, ids = begun(model, tokens(3, 9), lengths), tokens(4, 3)[:, :3]
    fixed = Fixed(model, copy.deepcopy(parts))
    for t in tensors(fixed.state.blocks):
        t[0, :, 3:], t[2, :, 6:] = 1e3, -1e3
    for i in range(4):
        expected, parts = logits(model, ids[i][:, None], parts)
        fixed.place(ids[i][:, None], [length + i for length in lengths])
        same(model.head(fixed.run())[:, 0], expected)
        same(model.head(fixed.run())[:, 0], expected)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_other_precisions(name: str, dtype: torch.dtype, most: float) -> None:
    model, ids = built(FORMS[name]).to(dtype), tokens(2, 12)
    fixed = Fixed(model, begun(model, ids[:, :9]))
    for i in range(9, 12):
        fixed.place(ids[:, i, None], [i, i])
        found = model.head(fixed.run())[:, 0]
    expected = model.double()(ids)[0][:, -1]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=most)


@pytest.mark.parametrize("name", FORMS)
def test_kernels_are_the_same_at_all_positions_and_need_nothing_of_the_host(name: str) -> None:
    """What a replay relies on: operators, numbers, shapes and addresses."""
    model = built(FORMS[name])
    fixed, found = Fixed(model, begun(model, tokens(2, 9))), list[Operators]()
    for i, place in enumerate(([9, 9], [9, 9], [40, 12])):
        fixed.place(tokens(2, 3)[:, i, None], place)
        with Operators() as operators:
            fixed.run()
        found.append(operators)
    _, second, third = found  # the first run may copy constants
    assert second.described() == third.described()
    assert len(second.calls) > 20
    assert not second.on_the_host


@pytest.mark.parametrize("name", [name for name in FORMS if name != "soft cap"])
def test_kernels_read_one_device(name: str) -> None:
    """On the meta device nothing can be read, and a tensor of the host is on another one.

    Autocast, which attention with a soft cap turns off, does not exist there.
    """
    model = built(FORMS[name]).to("meta")
    inputs = StepInputs(torch.empty(2, 1, model.spec.width, dtype=torch.float64, device="meta"))
    run = fixed_step(model, inputs, model.init_state(2).blocks)
    run()
    with Operators() as operators:
        run()
    assert operators.devices == {"meta"}


def test_layers_share_mask_and_rotations() -> None:
    fixed = Fixed(model := built(FORMS["llama"]), begun(model, tokens(2, 9)))
    with Operators() as operators:
        fixed.run()
    names = [str(func) for func, *_ in operators.calls]
    assert [names.count(f"aten.{name}") for name in ("le.Tensor", "cos.default", "index_put_.default")] == [1, 1, 4]


@pytest.mark.parametrize("lengths", [None, [3, 9]])
def test_a_step_part_by_part_passes_none_of_these_tests(lengths: list[int] | None) -> None:
    model = built(FORMS["llama"])
    state, found = begun(model, tokens(2, 9), lengths), list[Operators]()
    for i in range(2):
        with Operators() as operators:
            _, state = logits(model, tokens(2, 3)[:, i, None], state)
        found.append(operators)
    assert found[0].described() != found[1].described()
    assert bool(found[0].on_the_host) == (lengths is not None)
    state = begun(model.to("meta"), tokens(2, 9).to("meta"))
    with Operators() as operators:
        logits(model, tokens(2, 1).to("meta"), state)
    assert operators.devices == {"cpu", "meta"}


@pytest.mark.parametrize("name", FORMS)
def test_replays_are_steps_and_leave_an_ordinary_state(name: str, recorded: list[Recording]) -> None:
    """Rows of several lengths whose stores grow; afterwards several positions at once, a rewind, and other rows."""
    model, ids, lengths = built(FORMS[name]), tokens(3, 80), [58, 50, 31]
    plain = copy.deepcopy(model)
    found, expected = begun(model, ids[:, :58], lengths), begun(plain, ids[:, :58], lengths)
    for i in range(12):
        step = ids[:, 60 + i, None]
        got, found = logits(model, step, found)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QKV_WITHOUT", "graphs")
            wanted, expected = logits(plain, step, expected)
        same(got, wanted)
    same_read(found, expected)
    assert [recording.replays for recording in recorded] == [5, 5]
    several = Signal(ids[:, 72:77], torch.tensor([5, 0, 2]))
    (got, a), (wanted, b) = model(several, found), plain(several, expected)
    assert a is not None
    assert b is not None
    same(got[0], wanted[0])
    back = torch.tensor([60, 61, 40])
    a, b = (join(rows(m.rewind(s, back), [2, 0]), rows(m.rewind(s, back), [1])) for m, s in ((model, a), (plain, b)))
    for i in range(4):
        (got, a), (wanted, b) = logits(model, ids[:, 77 - i, None], a), logits(plain, ids[:, 77 - i, None], b)
        same(got, wanted)
    same_read(a, b)


def test_vectors_of_a_step_outlast_the_next(recorded: list[Recording]) -> None:
    model, ids = built(FORMS["gpt2"]), tokens(2, 9)
    state, found = begun(model, ids), list[Tensor]()
    for i in range(5):
        vectors, after = model.features(ids[:, i, None], state)
        assert after is not None
        found.append(vectors)
        state = after
    assert recorded[0].replays == 4
    expected, _ = model.features(torch.cat((ids, ids[:, :5]), 1))
    same(torch.cat(found, 1), expected[:, 9:])


def test_a_step_is_recorded_again_where_rows_capacity_or_the_model_change(recorded: list[Recording]) -> None:
    model, ids = built(FORMS["gpt2"]), tokens(3, 90)
    layer: Any = model.branches[3]

    def steps(state: State, columns: range) -> State:
        """Steps that equal those of a copy of the model that is never recorded."""
        other, expected = copy.deepcopy(model), copy.deepcopy(state)
        for i in columns:
            got, state = logits(model, ids[: len(state.positions), i, None], state)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("QKV_WITHOUT", "graphs")
                wanted, expected = logits(other, ids[: len(state.positions), i, None], expected)
            same(got, wanted)
        return state

    state = steps(begun(model, ids[:, :5]), range(5, 10))
    assert [recording.replays for recording in recorded] == [4]
    state = steps(rows(state, [2, 0]), range(10, 13))
    assert [recording.replays for recording in recorded] == [4, 2]
    for change in (
        lambda: setattr(layer.down, "weight", torch.nn.Parameter(layer.down.weight.detach() * 1.5)),
        lambda: setattr(layer, "up", copy.deepcopy(layer.up)),
        lambda: setattr(model, "norm", copy.deepcopy(model.norm)),
        lambda: model.blocks[1].branches[0].body.register_parameter("more", torch.nn.Parameter(torch.zeros(1))),
    ):
        count = len(recorded)
        change()
        state = steps(state, range(13, 16))
        assert len(recorded) == count + 1
    layer.down.weight.mul_(2)  # at the same address, where the recording reads it
    count = len(recorded)
    state = steps(state, range(16, 19))
    assert len(recorded) == count
    steps(state, range(19, 70))
    assert len(recorded) == count + 1


def test_observed_calls_run_part_by_part(recorded: list[Recording]) -> None:
    """Hooks, taps, gradients, training and other stores."""
    model, ids, seen = built(FORMS["gpt2"]), tokens(2, 40), list[str]()

    def steps(state: State, **more: Any) -> State:
        before = sum(recording.replays for recording in recorded)
        for i in range(3):
            after = model(ids[:, i, None], state, **more)[1]
            assert after is not None
            state = after
        counts.append(sum(recording.replays for recording in recorded) - before)
        return state

    counts, tap = list[int](), Recorder("output")
    state = steps(begun(model, ids))
    steps(state, tap=tap)
    handle = model.branches[0].register_forward_hook(lambda *given: seen.append("hook"))
    state = steps(begun(model, ids))
    handle.remove()
    with torch.enable_grad():
        steps(begun(model, ids))
    steps(begun(model.train(), ids))
    state = begun(model.eval(), ids)
    with torch.inference_mode():
        state = steps(state)
    steps(state)
    assert counts == [2, 0, 0, 0, 0, 2, 3]
    assert seen.count("hook") > 3


@pytest.mark.parametrize(
    "branch",
    [
        "attention(2, mask=causal & window(4))",
        "attention(2, mask=causal & strided(2))",
        "attention(2, relative=alibi)",
        "attention(2, top_k=3)",
        "gru",
    ],
)
def test_other_stacks_run_part_by_part(branch: str, recorded: list[Recording]) -> None:
    model, ids = built({"branches": [branch, "feed_forward"]}), tokens(2, 9)
    state = begun(model, ids)
    for i in range(4):
        _, state = logits(model, ids[:, i, None], state)
    assert not recorded


def test_a_step_that_cannot_be_recorded_runs_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Callable[[], Tensor]]()

    def refused(run: Callable[[], Tensor], device: torch.device) -> Any:
        tried.append(run)
        raise RuntimeError("not while recording")

    model, ids = built(FORMS["llama"]), tokens(2, 14)
    expected, state = model(ids)[0], begun(model, ids[:, :9])
    monkeypatch.setitem(RECORDERS, "cpu", refused)
    for i in range(9, 14):
        with pytest.warns(UserWarning, match="part by part") if i == 10 else nullcontext():
            got, state = logits(model, ids[:, i, None], state)
        same(got, expected[:, i])
    assert len(tried) == 1


def test_recordings_keep_neither_models_nor_states(recorded: list[Recording]) -> None:
    model, ids = built(FORMS["gpt2"]), tokens(2, 9)
    state = begun(model, ids)
    for i in range(3):
        _, state = logits(model, ids[:, i, None], state)
    held = [weakref.ref(model), *map(weakref.ref, tensors(state.blocks))]
    step = replayed_step._made.steps[model]
    assert step is not None
    assert len(recorded) == 1
    recorded[0].run = recorded[0].operators = None  # type: ignore[assignment]
    del state
    assert [ref() for ref in held[1:]] == [None] * 4
    del model
    gc.collect()
    assert held[0]() is None


def test_each_thread_records_for_itself(recorded: list[Recording]) -> None:
    """Two threads that step the same model in turns, each at its own positions."""
    model, ids = built(FORMS["llama"]), tokens(2, 40)
    plain, turns = copy.deepcopy(model), threading.Barrier(2, timeout=30)

    def stepped(begin: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            state, found = begun(model, ids[:, :begin]), list[Tensor]()
            for i in range(8):
                turns.wait()
                got, state = logits(model, ids[:, begin + i, None], state)
                found.append(got)
            return torch.stack(found, 1), plain(ids[:, : begin + 8])[0][:, begin:]

    with ThreadPoolExecutor(2) as threads:
        for got, wanted in threads.map(stepped, (5, 20)):
            same(got, wanted)
    assert [recording.replays for recording in recorded] == [7, 7]


def test_a_cuda_graph_is_recorded_aside_after_a_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = StandIn(monkeypatch)

    def run() -> Tensor:
        cuda.done.append(f"run on {cuda.current}")
        return torch.tensor(cuda.done.count("run on aside"))

    graph = CudaGraph(run, torch.device("cuda", 0))
    assert int(graph.replay()) == 2
    assert cuda.done == ["aside waits for now", "run on aside", "record, thread_local", "run on aside", "replay"]


def test_a_failure_to_record_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = StandIn(monkeypatch)

    def refused() -> Tensor:
        if "record, thread_local" in cuda.done:
            raise RuntimeError("not while recording")
        return torch.zeros(())

    with pytest.raises(RuntimeError, match="not while recording"):
        CudaGraph(refused, torch.device("cuda", 0))
    assert cuda.current == "now"


def test_torch_records_graphs_with_these_arguments() -> None:
    assert {"stream", "capture_error_mode"} <= inspect.signature(torch.cuda.graph.__init__).parameters.keys()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_rows_that_leave_and_join(name: str, recorded: list[Recording]) -> None:
    model = built(FORMS[name])
    texts = [tokens(1, length)[0].tolist() for length in (3, 50, 21)]
    settings = Generation(max_new_tokens=30, temperature=0.0)
    plain = copy.deepcopy(model)

    def written(model: Transformer) -> list[list[int]]:
        sampling = Sampling(model, texts, settings)
        for _ in range(5):
            sampling.step()
        sampling.admit([texts[0]], Generation(max_new_tokens=9, temperature=0.0))
        while sampling.running:
            sampling.step()
        return list(sampling.texts.values())

    found, whole = written(model), generate(model, texts, settings)
    assert len(recorded) >= 4
    assert sum(recording.replays for recording in recorded) > 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_WITHOUT", "graphs")
        assert found == written(plain)
        assert whole == generate(plain, texts, settings)
