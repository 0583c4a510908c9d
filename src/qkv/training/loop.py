"""Training loop: ``train`` runs or resumes a recipe in a folder, ``Trainer`` makes the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn.utils import clip_grads_with_norm_

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import VALIDATION
from qkv.data.reading import one_reading
from qkv.lens.health.gauge import Gauge
from qkv.lens.health.nonfinite import diagnose
from qkv.lens.health.spikes import SpikeDetector
from qkv.models.edit.adapt import rate_factors
from qkv.models.wide import num_parameters
from qkv.ops.linear.precision import autocast
from qkv.ops.selection.choices import ChoiceTable, table, using
from qkv.parallel.mesh import arrange
from qkv.parallel.shards import whole
from qkv.report.evaluation import ERRORS
from qkv.report.training import Status
from qkv.runs.metrics import TAKEN, is_planned
from qkv.runs.run import Run
from qkv.runs.storage.checkpoint import Checkpoint, save_weights, weights
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.runs.storage.folder import FAILURE, WEIGHTS, locked
from qkv.runs.storage.identity import MADE_WITH, made_with, recipe_digest
from qkv.runs.storage.load import load
from qkv.spec.recipe import Recipe
from qkv.spec.training import Training
from qkv.system.errors import UserError, nearest
from qkv.system.files import write_file
from qkv.system.world import ALONE, World
from qkv.training import clock, random_state
from qkv.training.budget import Budget
from qkv.training.final import best_weights, evaluate_best
from qkv.training.interrupt import Interrupted, StopNow, StopRequest
from qkv.training.optim.optimisers import build_optimizer
from qkv.training.optim.schedules import multiplier
from qkv.training.race import heats
from qkv.training.rehearsal import rehearse
from qkv.training.setup import Setup, prepare
from qkv.training.steps.divided import gradients_of, measured
from qkv.training.usage import counted
from qkv.training.watch.events import Ended, Event, Notice, OnEvent, Sampled, Saved, Started, Stepped, Validated
from qkv.training.watch.progress import RunProgress
from qkv.training.watch.record import Done, RunRecorder, open_recorder
from qkv.training.watch.show import Show
from qkv.training.watch.spikes import SpikeGuard

# Maximum share of the training time for checkpoints saved every ``checkpoints.seconds``, and for samples if
# ``sample_every`` is not set.
_OVERHEAD = 0.02


class Trainer:
    """Trainer of one run, from its checkpoint (if any) to its end.

    Each step is a pure function of the weights, the optimiser's state, the seed and the step number: its batches and
    dropout do not depend on earlier steps. An interrupted run therefore resumes bit for bit.
    """

    def __init__(
        self,
        setup: Setup,
        checkpoint: Checkpoint | None,
        tell: OnEvent,
        since: float | None = None,
        evaluates: bool = True,
    ):
        """``checkpoint``: state to resume from, None for a new run; ``tell``: handler of events; ``since``: time on
        ``qkv.training.clock`` at which this process began to prepare the run, None for now; ``evaluates``: False omits
        the final evaluation.
        """
        self.setup, self.world, self.tell, self.evaluates = setup, setup.world, tell, evaluates
        self.budget = Budget(setup, checkpoint.state.get("plan") if checkpoint else None)
        self.model = setup.model
        self.gradients = gradients_of(setup)
        trained = self.gradients.model
        trained.recompute_blocks(self.training.recompute)
        self.optimizer = build_optimizer(self.training.optimizer, trained)
        if self.training.rates:
            self.optimizer.scale_rates(
                rate_factors(self.training.rates, [name for name, _ in trained.named_parameters()])
            )
        self._parameters = list(self.optimizer.names)
        self.gauge = Gauge(self.model, setup.task, self.optimizer.names, self.training.precision)
        spikes = self.training.spikes
        self.guard = None if spikes == "report" else SpikeGuard(setup.folder, spikes, setup.world)
        self.loss = setup.task.summed_loss
        self.now = RunProgress(preparation=self.budget.plan.spent)
        if checkpoint:
            self._go_on(checkpoint)
        self._made_with = made_with(setup.recipe, setup.folder)
        self._facts: dict[str, Any] = {
            "recipe": recipe_digest(setup.recipe),
            "corpus": setup.dataset.digest(),
            MADE_WITH: self._made_with,
        }
        self._begun = self._saved_at = clock.seconds()
        self.now.preparation += 0.0 if since is None else self._begun - since
        self._saved = self.now.step
        self._save_seconds = 0.0
        self._before = self.now.seconds
        self._samples = True
        self.message = ""

    def _go_on(self, checkpoint: Checkpoint) -> None:
        self.optimizer.load_state_dict(checkpoint.tensors["optimizer"])
        random_state.restore(checkpoint.tensors["random"])
        names = {field.name for field in fields(RunProgress)}
        self.now = RunProgress(**{name: value for name, value in checkpoint.state["standing"].items() if name in names})

    @property
    def training(self) -> Training:
        """Training settings of the recipe, with the learning-rate schedule fitted to the planned number of steps."""
        return self.budget.training

    @property
    def steps(self) -> int:
        """Total number of steps of the run, according to the current plan."""
        return self.budget.stage(self.now.step).steps

    @property
    def finished(self) -> bool:
        """True if all steps are done, or the last ``patience`` validations brought no improvement (early stopping).

        A run with a time budget does not stop early while the model still improves on the training rows
        (``RunProgress.fitting``).
        """
        return self.now.step >= self.steps or self._impatient

    @property
    def _impatient(self) -> bool:
        patience = self.training.validation.patience
        goes_on = self.budget.limited and self.now.fitting
        return patience is not None and self.now.stale >= patience and not goes_on

    def train(self, stop: StopRequest, record: RunRecorder) -> None:
        """Train until finished or asked to stop; then save a checkpoint and write the report."""
        self.record = record
        self._set_out()
        self._start()
        if self.guard:
            self.guard.start(self.now.step, self.model, self.setup.task.wide, self.optimizer)
        if self.now.looked != self.now.step:
            self._look(stop)
        while not self.finished and not stop:
            self._update()
            if self.budget.check(self.now.step, self._spent()):
                self._tell(self.budget.announcement(self.now.step))
            self._look(stop)
            self.setup.environment.keep()
            if self._save_is_due():
                self.save()
        if self._saved != self.now.step:
            self.save()
        if self.finished:
            self._finish(stop)
        else:
            self._end(
                "stopped", f"stopped by {stop} after step {self.now.step} of {self.steps}; the same command resumes it"
            )

    def _set_out(self) -> None:
        """Compile the model and plan the number of steps, if the recipe requires them."""
        self.model.train()
        self.gradients.model.train()
        if self.training.compile:
            self._choose_paths()
            self.loss = torch.compile(self.setup.task.summed_loss)
        began = clock.seconds()
        self.budget.begin(lambda: rehearse(self), self._spent)
        passed = clock.seconds() - began
        self.now.preparation, self._begun = self.now.preparation + passed, self._begun + passed

    def _start(self) -> None:
        if self.now.step:
            self.record.row(step=self.now.step, event="resumed")
        parameters = num_parameters(self.model, self.setup.task.wide)
        tokens = self.training.batch_size * self.training.accumulate * self.setup.recipe.model.context_length
        self.tell(Started(self.now.step, self.steps, parameters, tokens, counted(self.setup.task)))
        if self.budget.limited:
            planned = is_planned(self.setup.folder)
            (self.tell if planned else self._tell)(self.budget.announcement(self.now.step))

    def _choose_paths(self) -> None:
        """Run one eager forward pass, in which ops measure and choose their implementations: the compiler cannot trace
        a measurement.
        """
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        with autocast(self.training.precision, self.setup.device):
            self.loss(self.model, self._batches(1)[0])
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)

    def why_finished(self) -> str:
        """Return the reason why the run is finished, as a clause: all steps are done, or early stopping."""
        if self._impatient and self.now.step < self.steps:
            return (
                f"early stopping after step {self.now.step}: the last {self.now.stale} validations brought no better "
                f"{self.training.validation.best} than step {self.now.best_step}{self._and_loss}"
            )
        return f"all {self.steps} steps are done"

    @property
    def _and_loss(self) -> str:
        return "" if self.training.validation.best == "loss" else ", and no lower loss"

    def _update(self) -> None:
        """Make one update, add it to the counters and send the event ``Stepped``."""
        began, step = clock.seconds(), self.now.step + 1
        if self.world.first and self.gradients.model is self.model:  # in shards, gradients are in several processes
            self.gauge.begin(step, self.steps, self._seconds())
        steps, loss, size, rate, batches = self.steps, *self.descend(step, self._accepts)
        count = sum(batch.num_targets for batch in batches)
        self.now.count(self.setup.model, batches)
        self.now.saw(loss)
        self.now.step, self.now.tokens, self.now.seconds = step, self.now.tokens + count, self._seconds()
        speed = count / (clock.seconds() - began)
        self._tell(
            Stepped(
                step, steps, loss, size, self.training.optimizer.lr * rate, self.now.tokens, speed, self.now.seconds
            )
        )
        if self.guard:
            self.guard.passed(step, self.model, self.setup.task.wide, self.optimizer)
        with using(table().aside()):  # the first process alone looks inside the model
            record = self.gauge.end(batches)
        if record:
            self.record.health(step, record)
        self.budget.saw(step, clock.seconds() - began)

    def _accepts(self, step: int, loss: float) -> bool:
        """Return True if the update of ``step`` is made; otherwise skip it or roll it back, as the recipe says."""
        if self.guard is None:
            return True
        detector = SpikeDetector(self.now.recent, self.now.spike_length)
        decision = self.guard.decide(step, loss, detector)
        self.now.recent, self.now.spike_length = detector.recent, detector.length
        if decision is None:
            return True
        self.tell(Notice(decision.sentence))
        self.guard.carry_out(decision, self.model, self.setup.task.wide, self.optimizer)
        return False

    def descend(
        self, step: int, accepts: Callable[[int, float], bool] = lambda step, loss: True
    ) -> tuple[float, float, float, list[Batch]]:
        """Make update number ``step``: compute gradients over its batches, clip them, and step the optimiser, if
        ``accepts`` its step and loss. Returns (loss, gradient norm, multiplier of the learning rate, batches).
        """
        training, batches = self.training, self._batches(step)
        count = sum(batch.num_targets for batch in batches)
        nats = self.gradients.compute(self.loss, batches, autocast(training.precision, self.setup.device))
        norm = self.gradients.norm()
        loss, size = self.world.agree(torch.stack((nats / max(1, count), whole(norm))).tolist())
        rate = multiplier(training.schedule, step, self.budget.stage(step - 1).steps, self.setup.recipe.model.width)
        self.gauge.gradients()
        if not accepts(step, loss if math.isfinite(size) else size):
            self.optimizer.zero_grad()
            return loss, size, rate, batches
        if not (math.isfinite(loss) and math.isfinite(size)):
            self._fail(step, loss, size, batches)
        if training.clip_norm is not None and size > training.clip_norm:
            clip_grads_with_norm_(self._parameters, training.clip_norm, norm)
        with self.gauge.updating():
            self.optimizer.step(rate)
        self.gradients.model.after_step()
        self.optimizer.zero_grad()
        return loss, size, rate, batches

    @property
    def done(self) -> Done:
        """Amounts of training so far: targets, rows and positions."""
        return Done(self.now.tokens, self.now.rows, self.now.positions, self.now.sources)

    def _batches(self, step: int) -> list[Batch]:
        """Return the batches of update number ``step``, and seed torch's generators for this update."""
        random_state.seed_step(self.training.seed, step, self.setup.device)
        many = self.training.accumulate
        return [self.setup.dataset.batch((step - 1) * many + i).to(self.setup.device) for i in range(many)]

    def _seconds(self) -> float:
        """Return the seconds of training so far, including those before the run was resumed."""
        return self._before + clock.seconds() - self._begun

    def _spent(self) -> float:
        """Return the seconds since the run began, including preparation such as opening data."""
        return self.now.preparation + self._seconds()

    def _tell(self, event: Event) -> None:
        self.record.add(event)
        self.tell(event)

    def _look(self, stop: StopRequest) -> None:
        """Validate and generate a sample, if they are due after this step. A validation interrupted by ``stop`` is
        repeated when the run resumes.
        """
        step = self.now.step
        validates = step % self.budget.stage(step).validate == 0 or step == self.steps
        if validates and not self._validate(stop):
            return
        if self._sample_is_due(validates):
            self._sample(stop)
        self.now.looked = step
        if validates:
            self.record.report_now_and_then(self.done)

    def _validate(self, stop: StopRequest) -> bool:
        self.gradients.gather()
        batches = self.setup.dataset.rows(VALIDATION, self.training.validation.batches)
        totals = measured(self.setup, batches, lambda: bool(stop))
        if totals is None:
            return False
        figures = self.world.agree(self.setup.task.figures(totals, self.setup.dataset.scale()))
        best, learning = self._better(figures), self.now.learns(figures["loss"])
        self.now.compare(figures["loss"], best)
        if best:
            self.now.best_step = self.now.step
            self.save_best()
        self.now.stale = 0 if best or learning else self.now.stale + 1
        self._tell(
            Validated(self.now.step, figures["loss"], best, self._seconds(), figures, self.training.validation.best)
        )
        return True

    def _better(self, figures: Mapping[str, float]) -> bool:
        """Return True if the metric that selects the best weights has a new best value in ``figures``; also record that
        value. Between equal values the loss decides: a metric can stay at its worst value while the model learns.
        """
        name, before = self.training.validation.best, self.now.best_figure
        if name not in figures:
            raise UserError(
                f"training.validation.best: {name!r} is not measured in this task; {nearest(name, figures)}"
            )
        figure, lower = figures[name], name in ERRORS
        better = math.isfinite(figure) and (before is None or (figure < before if lower else figure > before))
        loss, equal = self.now.best_loss, figure == before
        better = better or (equal and loss is not None and figures["loss"] < loss)
        if better:
            self.now.best_figure, self.now.best_loss = figure, figures["loss"]
        return better

    def save_best(self) -> None:
        """Write the current weights to the run folder as the best weights."""
        figure = {f"val_{self.training.validation.best}": self.now.best_figure}
        metadata = {"step": self.now.step, **figure, MADE_WITH: self._made_with}
        wide = self.setup.task.wide
        self.world.lead(lambda: save_weights(self.setup.folder / WEIGHTS, self.model, metadata, wide))

    def _sample_is_due(self, validates: bool) -> bool:
        every, step = self.training.sample_every, self.now.step
        if not self._samples or step == self.steps:
            return self._samples
        if every is not None:
            return step % every == 0
        return validates and self.world.agree(self.now.sampling_seconds <= _OVERHEAD * self._seconds())

    def _sample(self, stop: StopRequest) -> None:
        began = clock.seconds()
        self.gradients.gather()
        try:
            with stop.at_once():
                text = self.setup.task.sample(self.model, self.setup.dataset, self.setup.recipe)
        except StopNow:
            return
        except UserError as error:
            self.tell(Notice(f"training continues without samples: {error}"))
            text = None
        if text is None:
            self._samples = False
            return
        self.now.sampling_seconds += clock.seconds() - began
        self._tell(Sampled(self.now.step, text))

    def _save_is_due(self) -> bool:
        if self.now.step % self.budget.stage(self.now.step).save == 0:
            return True
        seconds = self.training.checkpoints.seconds
        if seconds is None:
            return False
        waited = clock.seconds() - self._saved_at
        return self.world.agree(waited >= max(seconds, self._save_seconds / _OVERHEAD))

    def save(self) -> None:
        """Write a checkpoint from which the run can resume, after flushing the metrics to disk."""
        began = clock.seconds()
        self.record.flush()
        self.gradients.gather()
        tensors = {
            "weights": weights(self.model, self.setup.task.wide),
            "optimizer": self.optimizer.state_dict(),
            "random": random_state.capture(),
        }
        plan = {"plan": self.budget.plan.to_dict()} if self.budget.limited else {}
        state = {"standing": asdict(self.now), **self._facts, **plan}
        self.setup.checkpoints.save(Checkpoint(self.now.step, tensors, state))
        self._saved, self._saved_at = self.now.step, clock.seconds()
        self._save_seconds = self._saved_at - began
        self.tell(Saved(self.now.step))

    def _fail(self, step: int, loss: float, size: float, batches: list[Batch]) -> NoReturn:
        """Find the part of the model where a non-finite loss or gradient norm ``size`` arises, report it, and raise
        UserError. The checkpoints are kept.
        """
        self.gradients.gather()
        self._batches(step)  # restore the step's random state, so that dropout is the same
        ill = diagnose(self.model, self.setup.task, batches, self.training.precision)
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {size}"
        newest = self.setup.checkpoints.paths()
        recovery = (
            f"the checkpoint of step {self._saved} is in {newest[0]}" if newest else "no checkpoint was saved before"
        )
        message = f"step {step}: {what}; {ill.where} {ill.what}; {ill.remedy}; {recovery}"
        self.record.row(step=step, event=what)
        self._end("failed", message)
        raise UserError(message)

    @property
    def owes_evaluation(self) -> bool:
        """True if the task has a final evaluation, and no result for the best weights is stored yet."""
        folder = self.setup.folder
        return self.world.lead(
            lambda: (
                self.evaluates
                and self.setup.task.evaluates
                and (folder / WEIGHTS).exists()
                and read_evaluation(folder, best_weights(folder)[1]) is None
            )
        )

    def evaluate(self, stop: StopRequest, record: RunRecorder) -> None:
        """Evaluate a finished run that lacks its final evaluation because of a kill or an error, and rewrite the
        report.
        """
        self.record = record
        self._finish(stop)

    def _finish(self, stop: StopRequest) -> None:
        """Save the best weights, evaluate them, and end the run. If a signal stops the evaluation, it runs when
        training resumes.
        """
        if not self.world.lead((self.setup.folder / WEIGHTS).exists):
            self.gradients.gather()
            self.save_best()  # no held-out loss was finite
        if self.owes_evaluation and not evaluate_best(self.setup, self.tell, stop):
            self._end("stopped", f"stopped by {stop} during the final evaluation; the same command resumes it")
        else:
            self._end("finished", self.why_finished() if self._impatient else "")

    def _end(self, status: Status, message: str) -> None:
        """Write the final report and send the event ``Ended``."""
        if self.budget.limited and status == "finished":
            self.record.row(step=self.now.step, **{TAKEN: self._spent()})
        self.record.report(status, message, self.done)
        self.message = message
        self.tell(Ended(status, self.now.step, message))


def train(
    recipe: Recipe,
    out: str | Path,
    resume: bool = True,
    on_event: OnEvent | None = None,
    since: float | None = None,
    world: World = ALONE,
) -> Run:
    """Train ``recipe`` in the run folder ``out``, or resume the run in that folder; return the run with its best
    weights.

    An interrupted run resumes from its newest checkpoint, bit for bit as if it had never stopped; a finished run is
    only loaded. Ctrl-C and SIGTERM finish the current step, save a checkpoint, and raise Interrupted, a
    KeyboardInterrupt; a second Ctrl-C aborts at once.

    resume: False raises ``UserError`` if ``out`` already holds a run.   on_event: called with each event of
    ``qkv.training.watch.events``; None shows a progress line on standard error, in the first process.   since: time on
    ``qkv.training.clock`` from which a budget of minutes counts; None for now.   world: the processes that train the
    run; each of them calls this function. They divide the rows of each batch, and make the same steps and decisions;
    only the first writes into the folder, which all must be able to read.

    Raises UserError if recipe, text, folder or checkpoint is unusable, the disk is full, or a loss is not finite.
    """
    if on_event is None:
        with Show() as show:
            return train(recipe, out, resume, show if world.first else _ignore, since, world)
    folder, began = Path(out), clock.seconds() if since is None else since
    arrange(world, recipe.parallel)

    def train_heat(recipe: Recipe, place: Path, tell: OnEvent) -> Run:
        with locked(place, world):
            return _train(recipe, place, True, tell, clock.seconds(), world, evaluates=False)

    with one_reading(), locked(folder, world):
        if recipe.candidates and not resume and world.lead((folder / heats.FOLDER).exists):
            raise UserError(f"{folder} already holds heats; name another folder, or resume it")
        before = clock.seconds()
        recipe, spent = heats.choose(recipe, folder, on_event, train_heat, world)
        earlier = max(0.0, spent - (clock.seconds() - before))  # seconds of heats that ran before the run was resumed
        return _train(recipe, folder, resume, on_event, began - earlier, world)


def _ignore(event: Event) -> None:
    """Handle an event by doing nothing."""


@contextmanager
def _telling_failure(folder: Path, world: World) -> Iterator[None]:
    """Return a context manager that writes an exception raised in the first process into the run folder; the run can
    then not be loaded.
    """
    world.lead(lambda: (folder / FAILURE).unlink(missing_ok=True))
    try:
        yield
    except Exception as error:
        if not world.first:
            raise
        with suppress(UserError, OSError):  # for example a full disk, which the error itself reports
            write_file(folder / FAILURE, f"{str(error) or type(error).__name__}\n".encode())
        raise


def _train(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    on_event: OnEvent,
    began: float,
    world: World,
    evaluates: bool = True,
) -> Run:
    """Train one recipe without candidates in ``folder``, which the first process has locked; see ``train``."""
    with random_state.seeded(recipe.training.seed), using(ChoiceTable(world)):
        # Not bound to a name: the checkpoint's tensors are copied, and a name would keep both copies in memory.
        trainer = Trainer(*prepare(recipe, folder, resume, on_event, world), on_event, began, evaluates)
        if trainer.finished:
            on_event(Notice(f"the run in {folder} is finished: {trainer.why_finished()}"))
        if not trainer.finished or trainer.owes_evaluation:
            with StopRequest(world) as stop, open_recorder(trainer.setup, trainer.now.step) as record:
                go_on = trainer.evaluate if trainer.finished else trainer.train
                with _telling_failure(folder, world):
                    go_on(stop, record)
            if stop.signal:
                raise Interrupted(stop.signal, trainer.message or f"stopped by {stop}; the run in {folder} is finished")
    return load(folder)
