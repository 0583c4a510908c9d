"""Comparisons of small models: equal budgets, results, resuming after a kill, failed rows, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.checks import read_page

import qkv
from qkv.comparison.budget import filled, parameters
from qkv.comparison.compare import compare
from qkv.comparison.executors import Processes
from qkv.comparison.outcome import Outcome, Report, carry_out, read_outcome
from qkv.comparison.plan import PlannedRun, plan_of, scaled
from qkv.comparison.statistics import paired_p
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison
from qkv.spec.training import AdamW, Muon
from qkv.system.errors import UserError

BASE = Recipe.parse(
    {
        "name": "small",
        "task": "sorting(length=4, high=8, longer=[])",
        "model": {
            "width": 16,
            "context_length": 16,
            "num_layers": 2,
            "head": "tokens",
            "blocks": [{"branches": ["attention(2, mask=full)", "feed_forward(24)"]}],
        },
        "training": {
            "steps": 4,
            "batch_size": 4,
            "schedule": "constant",
            "validation": {"every": 2, "batches": 1},
            "checkpoints": {"every": 2, "seconds": None},
        },
    }
)
ENTRIES = {"attention": [], "gru": ["blocks.*.mixer=gru(direction=both)"]}


class Quiet:
    """Watcher that keeps what it receives."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Report]] = []
        self.outcomes: list[tuple[str, Outcome]] = []

    def report(self, run: PlannedRun, report: Report) -> None:
        self.reports.append((run.title, report))

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        self.outcomes.append((run.title, outcome))


class Killed(BaseException):
    """End of the process, as by a kill."""


class Kills(Quiet):
    """Watcher that ends the process after a number of reports, or of finished runs."""

    def __init__(self, reports: int = 10**9, runs: int = 10**9) -> None:
        super().__init__()
        self.most_reports, self.most_runs = reports, runs

    def report(self, run: PlannedRun, report: Report) -> None:
        super().report(run, report)
        if len(self.reports) == self.most_reports:
            raise Killed

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        super().ended(run, outcome)
        if len(self.outcomes) == self.most_runs:
            raise Killed


def comparison(**changes: Any) -> Comparison:
    given = {"recipe": "small", "entries": ENTRIES, "seeds": [1, 2], "rates": [1.0, 3.0], **changes}
    return Comparison.parse(given)


def figures(folder: Path) -> dict[str, dict[str, float]]:
    """Metrics of every run below a folder, without times."""
    found = {str(path.parent.relative_to(folder)): read_outcome(path.parent) for path in folder.rglob("outcome.json")}
    return {
        name: {key: value for key, value in outcome.figures.items() if "second" not in key}
        for name, outcome in found.items()
        if outcome
    }


def weights(folder: Path) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in qkv.load(folder).model.state_dict().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a comparison that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    compare(comparison(), folder, base=BASE, watcher=Quiet())
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        ["blocks.*.mixer=gru(direction=both)"],
        ["blocks=[{branches: [convolution(3), feed_forward(9)]}]", "num_layers=1"],
        ["blocks=[{branches: [gmlp(hidden=24)]}]"],
    ],
)
def test_entries_have_equal_parameters_within_one_percent(changes: list[str], tmp_path: Path) -> None:
    large = override(BASE, ["model.width=64", "model.blocks.feed_forward.hidden=256"])
    plan = plan_of(comparison(entries={"base": [], "other": changes}), tmp_path, large)
    counts = [parameters(filled(entry.recipe).model) for entry in plan.entries.values()]
    assert counts == [entry.parameters for entry in plan.entries.values()]
    assert abs(counts[1] / counts[0] - 1) <= 0.01
    assert plan.entries["other"].change
    real = qkv.build(filled(plan.entries["other"].recipe).model)
    assert sum(parameter.numel() for parameter in real.parameters()) == counts[1]


def test_a_stated_knob_resizes_and_nothing_else(tmp_path: Path) -> None:
    compared = comparison(entries={"base": [], "gru": ENTRIES["gru"]}, knobs={"gru": "model.blocks.gru.hidden"})
    large = override(BASE, ["model.width=64", "model.blocks.feed_forward.hidden=256"])
    entry = plan_of(compared, tmp_path, large).entries["gru"]
    assert entry.change.startswith("model.blocks.gru.hidden=")
    assert [block.branches[1].hidden for block in entry.recipe.model.layers] == [256, 256]  # type: ignore[attr-defined]


def test_equal_flops_are_steps(tmp_path: Path) -> None:
    steps = BASE.changed(training=BASE.training.changed(steps=1000))
    compared = comparison(entries={"base": [], "deep": ["model.num_layers=4"]}, equal="flops")
    base, deep = plan_of(compared, tmp_path, steps).entries.values()
    assert base.step_flops is not None
    assert deep.step_flops is not None
    assert deep.recipe.training.steps < 1000
    ratio = deep.recipe.training.steps * deep.step_flops / (1000 * base.step_flops)
    assert ratio == pytest.approx(1, abs=1e-3)


def test_equal_steps_leave_sizes_as_they_are(tmp_path: Path) -> None:
    entries = {"base": [], "wide": ["model.width=32"]}
    compared = comparison(entries=entries, equal="steps", seeds=[1], rates=[1.0])
    found = compare(compared, tmp_path, base=BASE, watcher=Quiet())
    base, wide = found.plan.entries.values()
    assert wide.parameters > 2 * base.parameters
    assert (wide.recipe.training.steps, wide.change) == (BASE.training.steps, "")
    assert "equal training steps" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "base", "sentence"),
    [
        ({"entries": {"a": [], "b": ["model.width=4096"]}}, [], r"entry 'b' has .* cannot be resized to .* within 1%"),
        ({"knobs": {"gru": "model.blocks.gru.hiden"}}, [], "there is no 'hiden'"),
        ({"equal": "time"}, [], "entry 'attention': equal time needs training.minutes"),
        ({"equal": "flops"}, ["training.minutes=1"], "with training.minutes, runs may end"),
        ({"equal": "steps"}, ["training.minutes=1"], "runs may end before their steps are equal"),
        (
            {"equal": "steps", "entries": {"a": [], "b": ["training.steps=9"]}},
            [],
            "entry 'b' has training.steps=9, but the baseline 4; give all entries the same number",
        ),
        (
            {"entries": {"a": [], "b": ["training.minutes=2"]}},
            [],
            "the baseline None; give all the same number",
        ),
        ({"entries": {"a": [], "b": ["blocks.*.mixer=gruu"]}}, [], "entry 'b'.* did you mean 'gru'"),
        ({"metric": "accuracyy", "rates": [1.0]}, [], "'accuracyy' is not measured in this task"),
    ],
)
def test_refusals_before_or_after_the_first_run(
    changes: dict[str, Any], base: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        compare(comparison(**changes), tmp_path / "out", base=override(BASE, base), watcher=Quiet())


def test_results_are_those_of_the_runs(whole: Path) -> None:
    watcher = Quiet()
    ranking = compare(comparison(), whole, base=BASE, watcher=watcher)
    assert watcher.reports == []  # all runs are over
    assert len(watcher.outcomes) == 6
    assert ranking.plan.metric == "loss"
    values = figures(whole)
    for row in ranking.rows:
        tried = {rate: values[f"{row.name}/rate-{rate:g}/seed-1"]["validation.loss"] for rate in (1.0, 3.0)}
        assert row.rate == min(tried, key=lambda rate: tried[rate])
        assert ranking.trials[row.name] == tried
        at = f"{row.name}/rate-{row.rate:g}/seed-"
        own = {seed: values[f"{at}{seed}"][f"{ranking.split}.loss"] for seed in (1, 2)}
        assert dict(row.values) == own
        assert row.flops is not None
        assert row.mean is not None
        assert row.mean.mean == pytest.approx(sum(own.values()) / 2)
    base, other = ranking.rows
    assert (base.p, base.difference) == (None, None)
    assert other.p == paired_p([other.values[seed] - base.values[seed] for seed in (1, 2)])
    assert other.corrected == other.p


def test_runs_are_ordinary_runs_of_scaled_rates(whole: Path) -> None:
    run = qkv.load(whole / "gru" / "rate-3" / "seed-1")
    assert run.recipe.training.optimizer.lr == pytest.approx(3 * BASE.training.optimizer.lr)
    assert (run.recipe.training.seed, run.recipe.name) == (1, "gru")
    assert (whole / "gru" / "rate-3" / "seed-1" / "report.html").is_file()


def test_the_page_stands_alone_and_holds_the_results(whole: Path) -> None:
    page = read_page((whole / "report.html").read_text())
    content = json.loads((whole / "results.json").read_text())
    embedded = next(json.loads(script) for script in page.scripts if script.startswith("{"))
    assert embedded["comparison"] == content
    assert [entry["name"] for entry in content["entries"]] == ["attention", "gru"]
    assert page.count("svg") >= 3
    assert "blocks.0.branches.0" in page.text


@pytest.mark.parametrize("kill", [Kills(reports=4), Kills(runs=1), Kills(reports=14)])
def test_a_killed_comparison_goes_on_to_equal_results(kill: Kills, whole: Path, tmp_path: Path) -> None:
    one = comparison(entries={"attention": []})
    with pytest.raises(Killed):
        compare(one, tmp_path, base=BASE, watcher=kill)
    compare(one, tmp_path, base=BASE, watcher=Quiet())
    assert figures(tmp_path) == {name: found for name, found in figures(whole).items() if "attention" in name}
    name = "attention/rate-1/seed-1"
    before, after = weights(whole / name), weights(tmp_path / name)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_more_seeds_extend_a_comparison_and_another_recipe_is_refused(tmp_path: Path) -> None:
    one = comparison(entries={"attention": []}, seeds=[1], rates=[1.0])
    compare(one, tmp_path, base=BASE, watcher=Quiet())
    watcher = Quiet()
    compare(one.changed(seeds=(1, 2)), tmp_path, base=BASE, watcher=watcher)
    assert {title for title, _ in watcher.reports} == {"attention, rate × 1, seed 2"}
    with pytest.raises(UserError, match=r"holds runs of another 'attention': .*batch_size is 4 there and 5 here"):
        compare(one, tmp_path, base=override(BASE, ["training.batch_size=5"]), watcher=Quiet())


def test_entries_that_fail_are_rows_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.training import loop

    train = loop.train

    def short_of_memory(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        if recipe.name == "large":
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 byte")
        return train(recipe, *args, **kwargs)

    monkeypatch.setattr(loop, "train", short_of_memory)
    entries = {"base": [], "wild": ["training.optimizer.lr=1e30", "training.clip_norm=null"], "large": []}
    ranking = compare(comparison(entries=entries, rates=[1.0]), tmp_path, base=BASE, watcher=Quiet())
    base, wild, large = ranking.rows
    assert base.mean is not None
    assert "diverged: step " in wild.failed
    assert large.failed == "at every learning rate; out of memory"
    assert (wild.mean, wild.p, large.corrected) == (None, None, None)
    assert ranking.table().rows[1][5] == "failed"
    assert any(sentence.startswith("wild failed: ") for sentence in ranking.conclusions())
    assert read_page(ranking.report()).count("svg") >= 2


def test_a_failed_baseline_leaves_nothing_to_test(tmp_path: Path) -> None:
    wild = ["training.optimizer.lr=1e30", "training.clip_norm=null"]
    compared = comparison(entries={"wild": wild, "base": []}, rates=[1.0], seeds=[1, 2])
    ranking = compare(compared, tmp_path, base=BASE, watcher=Quiet())
    assert ranking.rows[1].p is None
    assert "The baseline failed, so no differences are tested." in ranking.conclusions()


def test_the_folder_of_a_run_is_refused(whole: Path) -> None:
    with pytest.raises(UserError, match="holds a run; name another folder"):
        compare(comparison(), whole / "gru" / "rate-1" / "seed-1", base=BASE, watcher=Quiet())


def test_errors_of_the_disk_are_no_failed_rows(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the way")
    with pytest.raises(UserError, match="a file exists where a folder is needed"):
        carry_out(BASE, tmp_path / "run", lambda _: None)


def test_every_learning_rate_is_scaled() -> None:
    found = scaled(Muon(lr=0.5, others=AdamW(lr=0.1)), 3.0)
    assert (found.lr, found.others.lr) == (1.5, pytest.approx(0.3))


@pytest.mark.slow
def test_a_run_in_a_process_gives_the_same_results(whole: Path, tmp_path: Path) -> None:
    watcher = Quiet()
    one = comparison(entries={"attention": []}, rates=[1.0], seeds=[1])
    compare(one, tmp_path, Processes(1), base=BASE, watcher=watcher)
    assert [watcher.reports[i][1].step for i in (0, -1)] == [0, 4]
    found, before = figures(tmp_path), figures(whole)
    assert found.keys() == {"attention/rate-1/seed-1"}
    for name, values in found.items():
        assert all(math.isclose(value, before[name][key], rel_tol=1e-5) for key, value in values.items())


def test_the_public_function_takes_recipes_and_files(whole: Path, tmp_path: Path) -> None:
    given = {"seeds": [1, 2], "rates": [1.0, 3.0]}
    found = qkv.compare(BASE, ENTRIES, whole, **given)
    assert "Best mean loss" in found.conclusions()[0]
    with pytest.raises(UserError, match="a recipe is given without entries"):
        qkv.compare(BASE)
    with pytest.raises(UserError, match="jobs: 0 given"):
        qkv.compare(BASE, ENTRIES, tmp_path, 0)
