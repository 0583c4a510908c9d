"""Runs in notebooks."""

from __future__ import annotations

from qkv.report.fragment import run_fragment
from qkv.report.training import TrainingRun
from qkv.runs.run import Run, task_of


def run_html(run: Run) -> str:
    """Render a run as HTML: key figures, loss, evaluation, and the location of its report."""
    figures = {"parameters": float(sum(p.numel() for p in run.model.parameters()))}
    report = (run.folder / "report.html").is_file()
    return run_fragment(
        TrainingRun(
            name=f"{run.folder}, step {run.step:,}",
            description=run.recipe.description,
            metrics=run.metrics,
            folder=str(run.folder) if report else "",
            figures=figures,
            loss_unit=task_of(run).loss_unit,
            best=run.recipe.training.validation.best,
            evaluation=run.evaluation,
        )
    )
