"""Forecasting of time series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TRAIN
from qkv.data.series.read import Panel, ahead, read_panel
from qkv.data.series.seasons import guess_period
from qkv.data.series.windows import borders, cut, filled, fitted, scaled
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.signals.series import Series
from qkv.spec.tasks import Forecasting
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT, OTHER, Dataset
from qkv.tasks.series.forecast_errors import COVERAGES, Errors, errors_of
from qkv.tasks.series.forecast_rows import columns_of, forecast_rows, in_units_of, places_of
from qkv.tasks.series.forecast_sections import by_channel, by_step, forecast_charts, spread
from qkv.tasks.series.series_baselines import baseline_errors
from qkv.tasks.series.series_dataset import SeriesDataset, signals, steps_read, with_windows
from qkv.tasks.task import Evaluation, Observed, Scale, TablePrediction, Task, Totals

_AT_ONCE = 64


@implements(Forecasting)
class ForecastingTask(Task):
    """Forecasting of the next values of a series; the form of the head decides the loss, on standardised values."""

    spec: Forecasting
    loss_unit = "a value"
    evaluates = True
    metric = "mse"
    predicts_tables = True

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> SeriesDataset:
        processor = None if vocabulary is None else _processor(vocabulary)
        self._check_data(recipe)
        panel = read_panel(recipe.data, processor)
        parts, notes = borders(panel, self.spec.parts), list(panel.notes)
        end = parts[TRAIN][1]
        if processor is None:
            past = [each.values[: max(0, end - each.first)] for each in panel.series]
            period = guess_period([filled(values) for values in past], panel.step)
            settings = recipe.data.processor
            assert isinstance(settings, Series)
            processor = fitted(panel, settings, end, settings.period or period)
            season = f"the season has {processor.period} steps" if processor.period else "there is no clear season"
            notes.append(season)
        recipe = with_windows(recipe, processor)
        recipe = recipe.changed(data=recipe.data.changed(decimal=recipe.data.decimal or panel.decimal))
        return SeriesDataset(recipe, panel, processor, parts, tuple(notes))

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        processor = _processor(vocabulary)
        data = recipe.data.changed(source=source, columns=columns_of(processor))
        panel = read_panel(data, processor, "--data")
        whole = min(each.first for each in panel.series), max(each.first + each.length for each in panel.series)
        return SeriesDataset(recipe, panel, processor, {OTHER: whole}, panel.notes)

    def _check_data(self, recipe: Recipe) -> None:
        split = next((name for name in ("validation", "test") if getattr(recipe.data, name) is not None), None)
        if split:
            raise UserError(
                f"data.{split}: series are split by time, so no separate file is read; leave it out, or set task.parts"
            )

    def restored(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Run the model; return outputs (B, C, H, Q) as standardised values, without the normalisation per window."""
        memory = None if batch.source is None else model.encode(batch.source, tap)
        return self.levelled(model, batch, self.outputs(model, batch.input, tap, memory))

    def levelled(self, model: Transformer, batch: Batch, out: Tensor) -> Tensor:
        """Undo the normalisation of each window in the outputs ``out`` of the model."""
        reader: Any = model.frontend if model.encoder is None else model.encoder.frontend
        shift, scale = reader.level(batch.input if batch.source is None else batch.source)
        head: Any = model.head
        return head.restored(out[:, : shift.shape[1]], shift, scale)

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.summed(self.restored(model, batch, tap), batch.targets)  # type: ignore[operator]

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return self.observed(model, self.restored(model, batch), batch)

    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        """Compute the loss of a batch with outputs of ``restored``, and its data for metrics."""
        head: Any = model.head
        loss = head.summed(outputs, batch.targets)
        channels = batch.targets.shape[1] if batch.targets.shape[1] > 1 else self._channels(model, batch)
        shape = (-1, channels, batch.targets.shape[2])
        errors = errors_of(head.form, outputs.reshape(*shape, outputs.shape[-1]), batch.targets.reshape(shape))
        return Observed(loss, batch.num_targets, [errors])

    def _channels(self, model: Transformer, batch: Batch) -> int:
        """Return the number of channels of a window; if each row is one channel, they are consecutive rows."""
        reader = (model.spec.encoder or model.spec).frontend
        return getattr(reader, "features", None) or 1

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        total = summed(seen.outcomes)
        return {"loss": seen.loss / seen.count if seen.count else math.nan, **figures_of(total)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, SeriesDataset)
        total, baselines = summed(seen.outcomes), baseline_errors(dataset, split)
        figures = self.figures(seen, dataset.scale(split)) | in_units(total, dataset.processor)
        for name, each in baselines.items():
            figures |= {f"mse_of_{name}": each.mean("squared"), f"mae_of_{name}": each.mean("absolute")}
        charts = self.charts(model, dataset, split)
        return Evaluation(figures, [*charts, by_step(total, baselines), *by_channel(total, dataset.processor)])

    def charts(self, model: Transformer, dataset: SeriesDataset, split: str) -> list[dict[str, Any]]:
        """Build charts of some forecasts of a split."""
        numbers = spread(len(dataset.cutters[split])).numpy()
        windows = dataset.windows(split, numbers, HELD_OUT)
        with torch.inference_mode(), evaluating(model):
            outputs = self.restored(model, dataset.collated(windows).to(model.device))
        form: Any = model.head.form
        outputs = outputs.reshape(len(numbers), -1, self.spec.horizon, outputs.shape[-1]).cpu()
        values = torch.cat((form.point(outputs)[..., None], form.quantiles(outputs)), -1)
        past, future = (torch.from_numpy(each.swapaxes(1, 2).copy()) for each in (windows.past, windows.future))
        past, future, values = (in_units_of(each, dataset.processor) for each in (past, future, values))
        return forecast_charts(past, future, values, form, dataset.processor, self.spec.horizon)

    def predict_table(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, source: str, columns: Mapping[str, str]
    ) -> TablePrediction:
        """Forecast the steps after the last value of each series in the file ``source``."""
        processor = _processor(vocabulary)
        data = recipe.data.changed(source=source, columns={**columns_of(processor), **columns}, format=None)
        panel = read_panel(data, processor, "--data")
        context, horizon = self.spec.context, self.spec.horizon
        notes = [note for note in panel.notes if "guessed" not in note]
        long = [each for each in panel.series if each.length >= context]
        if len(long) < len(panel.series):
            short = next(each for each in panel.series if each.length < context)
            name = f"the series {short.name!r}" if short.name else panel.name
            sentence = f"{name} has {short.length:,} steps up to its last value, but the model reads {context}"
            if not long:
                raise UserError(f"{sentence}; give more")
            notes.append(f"{len(panel.series) - len(long)} series have no forecast: {sentence}")
        if any(len(each.stamps) < each.length + horizon for each in long) and processor.known:
            notes.append(
                f"{', '.join(processor.known)}: future values are missing; the last known value is used instead"
            )
        long = [ahead(each, panel.step, horizon) for each in long]
        groups = (panel._replace(series=tuple(long[i : i + _AT_ONCE])) for i in range(0, len(long), _AT_ONCE))
        rows = [row for group in groups for row in self._rows(model, group, processor)]
        return TablePrediction(rows, tuple(places_of(processor).values()), notes)

    def _rows(self, model: Transformer, panel: Panel, processor: Series) -> list[dict[str, Any]]:
        """Forecast the series of a panel; return one row per series, step and channel."""
        context, horizon = self.spec.context, self.spec.horizon
        reader: Any = (model.spec.encoder or model.spec).frontend
        places = [(i, each.length - context) for i, each in enumerate(panel.series)]
        steps, timed = steps_read(context, self.spec.dropped), getattr(reader, "frequencies", 0) > 0
        windows = cut(scaled(panel, processor), places, (context, horizon), steps, random(0, 0), timed)
        signal, future = signals(windows, model.spec, reader, processor)
        nothing = torch.zeros(0)
        batch = Batch.of(signal, nothing) if future is None else Batch.of(future, nothing, signal)
        with torch.inference_mode(), evaluating(model):
            outputs = self.restored(model, batch.to(model.device))
        form: Any = model.head.form
        outputs = outputs.reshape(len(places), len(processor.channels), horizon, -1).double().cpu()
        values = torch.cat((form.point(outputs)[..., None], form.quantiles(outputs)), -1)
        return forecast_rows(panel, processor, in_units_of(values, processor).tolist(), form.levels)

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        raise UserError("a forecast needs a whole series; give its table (--data FILE)")


def summed(outcomes: Sequence[Errors]) -> Errors:
    """Sum the errors of all batches."""
    total = outcomes[0]
    for each in outcomes[1:]:
        total = total + each
    return total


def figures_of(total: Errors) -> dict[str, float]:
    """Compute the metrics of standardised values, with CRPS and interval coverage if quantiles are predicted."""
    metrics = {"mse": total.mean("squared"), "mae": total.mean("absolute")}
    if np.isfinite(total.crps).all():
        metrics["crps"] = total.mean("crps")
    for share, inside in zip(COVERAGES, total.inside, strict=True):
        if np.isfinite(inside).all():
            metrics[f"coverage_{round(100 * share)}"] = float(inside.sum() / max(1, total.count.sum()))
    return metrics


def in_units(total: Errors, processor: Series) -> dict[str, float]:
    """Compute RMSE and MAE in the units of the data, as means over the values of all channels."""
    deviation = np.array(processor.deviation[: len(processor.channels)])
    return {
        "rmse_in_units": total.mean("squared", deviation**2) ** 0.5,
        "mae_in_units": total.mean("absolute", deviation),
    }


def _processor(vocabulary: Vocabulary) -> Series:
    processor = vocabulary.processor
    if processor is None or processor.kind != Series.kind:
        raise UserError("the run has no processor of series; its processors.json belongs to another run")
    assert isinstance(processor, Series)
    return processor
