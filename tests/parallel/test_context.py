"""Rows that ranks share give the outputs, gradients and losses of whole rows; four processes make all checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contracts.samples import BIDIRECTIONAL, SAMPLES
from tests.parallel.context_attention import CASES, EVERYWHERE
from tests.parallel.context_mixers import built as built_branch
from tests.parallel.context_models import MODELS, batch, model
from tests.parallel.context_models import built as built_model
from tests.parallel.context_process import SIZE

from qkv.layers.signal import Signal
from qkv.parallel.context.layout import RankLayout
from qkv.parallel.context.ways import way_of
from qkv.spec.branches import RNN, Attention, Branch, Convolution, FeedForward
from qkv.spec.masks import Causal, Full
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.parts import NoPositions
from qkv.system.errors import UserError
from qkv.training.shared_rows import check

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process measured."""
    folder = tmp_path_factory.mktemp("context")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.parallel.context_process", str(rank), str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        said = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(said)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


def together(measured: list[dict[str, Any]], check: str) -> dict[str, float]:
    """The largest difference in any process by label."""
    largest = dict[str, float]()
    for each in measured:
        for label, value in each[check].items():
            largest[label] = max(value, largest.get(label, 0.0))
    return largest


def test_attention_over_ranks_equals_the_reference(measured: list[dict[str, Any]]) -> None:
    of_two, of_four = (together(measured, f"attention of {ranks}") for ranks in (2, 4))
    assert {label.partition("float64, ")[2] for label in (*of_two, *of_four)} - {""} == CASES.keys()
    for ways in (of_two, of_four):
        for name in EVERYWHERE:
            assert {f"RingAttention, folded, float64, {name}", f"HeadExchange, folded, float64, {name}"} <= ways.keys()
        wrong = {label: e for label, e in ways.items() if not e <= (1e-10 if "float64" in label else 2e-6)}
        assert not wrong


def test_every_branch_that_claims_it_gives_the_results_of_whole_rows(measured: list[dict[str, Any]]) -> None:
    found = together(measured, "mixers of 2")
    claimed = {kind for kind, parts in SAMPLES.items() if way_of(built_branch(parts[0])).name}
    assert claimed <= {label.partition(",")[0] for label in found}
    assert len(claimed) > 30
    wrong = {label: error for label, error in found.items() if not error <= 1e-10}
    assert not wrong


def test_whole_models_have_the_loss_and_the_gradients_of_whole_rows(measured: list[dict[str, Any]]) -> None:
    found = together(measured, "models of 2") | {
        f"{label}, 4 ranks": e for label, e in together(measured, "model of 4").items()
    }
    assert {label.partition(",")[0] for label in found} == MODELS.keys()
    assert any("4 ranks" in label for label in found)
    wrong = {label: error for label, error in found.items() if not error <= 1e-10}
    assert not wrong


def test_keys_travel_no_farther_than_a_query_sees_and_the_work_is_balanced(measured: list[dict[str, Any]]) -> None:
    steps = {name: [each["steps"][name][0] for each in measured] for name in measured[0]["steps"]}
    pairs = {name: [each["steps"][name][1] for each in measured] for name in measured[0]["steps"]}
    assert steps["window, in order"] == [1] * SIZE
    assert steps["causal, folded"] == steps["full, in order"] == [SIZE - 1] * SIZE
    assert len(set(pairs["causal, folded"])) == 1
    # Chunks of 16 positions, in blocks of 5, 5, 5 and 1: all pairs with earlier chunks, and blocks up to the diagonal.
    assert pairs["causal, in order"] == [256 * rank + 6 * 25 + 3 * 5 + 1 for rank in range(SIZE)]
    assert sum(pairs["window, in order"]) < sum(pairs["causal, in order"]) < sum(pairs["full, in order"])


def test_each_position_is_on_one_rank() -> None:
    for size in (1, 2, 3, 4):
        for folded in (True, False):
            layout = RankLayout(size, folded)
            count = 4 * len(layout.of_rank(0))
            held = torch.cat([layout.positions(rank, count) for rank in range(size)])
            assert held.sort().values.tolist() == list(range(count * size))
            assert held[layout.order(count)].tolist() == list(range(count * size))
            assert all(rank == layout.rank_of(chunk) for rank in range(size) for chunk in layout.of_rank(rank))


def test_rows_that_cannot_be_cut_are_refused() -> None:
    ids = torch.zeros(1, 7, dtype=torch.long)
    with pytest.raises(UserError, match="rows of 7 positions cannot be cut into 4 equal chunks for 2 ranks; pad them"):
        RankLayout(2).part(ids, 0)
    with pytest.raises(UserError, match=r"a row with a prefix \(prefix\) cannot be cut over ranks"):
        RankLayout(1).part_of_signal(Signal(ids[:, :4], prefix=torch.ones(1, dtype=torch.long)), 0)


@pytest.mark.parametrize("branch", [Convolution(), RNN(direction="both"), LSHAttention(mask=Causal())])
def test_a_model_that_needs_whole_rows_is_refused(branch: Branch) -> None:
    check(built_model(model(NoPositions(), Attention(mask=Full()), FeedForward())))
    with pytest.raises(UserError, match=rf"model.blocks.0.*: '{branch.kind}' .*; set parallel.context=1"):
        check(built_model(model(NoPositions(), branch, FeedForward())))


def test_recomputed_blocks_with_a_travelling_state_are_refused() -> None:
    recurrent = built_model(MODELS["recurrent"])
    check(recurrent)
    recurrent.recompute_blocks(True)
    with pytest.raises(UserError, match="the state of 'gru' goes from rank to rank once"):
        check(recurrent)


def test_two_way_parts_pass_no_state_on() -> None:
    ways = {(part.kind, way_of(built_branch(part)).name) for part in BIDIRECTIONAL}
    assert "state" not in {way for _, way in ways}
    assert {("attention", "keys"), ("attention", ""), ("convolution", "")} <= ways


def test_the_rows_of_the_checks_differ() -> None:
    assert len({batch(form).input.values.shape for form in ("plain", "odd")}) == 2
