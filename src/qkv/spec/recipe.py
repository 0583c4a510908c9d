"""Spec of a recipe: model, data, task, training, and recorded results."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from qkv.spec.base import Seq, Spec
from qkv.spec.data import NO_DATA, Data
from qkv.spec.errors import Problem
from qkv.spec.files.formats import FORMAT
from qkv.spec.frontends import Frontend
from qkv.spec.generation import Generation
from qkv.spec.heads import LanguageModelHead
from qkv.spec.model import Model
from qkv.spec.models.quantization import Quantization
from qkv.spec.models.start import RandomStart, Start
from qkv.spec.models.wide import WidePath
from qkv.spec.processors import Processor
from qkv.spec.recipes.parallel import Parallel
from qkv.spec.recipes.results import Published, Reached, Result, Typed, reached
from qkv.spec.tasks import NextToken, Reads, Task
from qkv.spec.training import Training
from qkv.system.errors import nearest

_NAME = re.compile(r"[\w+-]+")


def _start_of(value: Any) -> Any:
    """Return ``value``, or the default start if it is null, as in runs of earlier versions."""
    return RandomStart() if value is None else value


class Recipe(Spec):
    """Complete description of a training run. ``quick``: dotted overrides for a short version of it."""

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT, description="version of this file's format")
    name: str = ""
    description: str = ""
    data: Data = NO_DATA
    model: Model = Model()
    wide: WidePath | None = Field(
        default=None, description="linear path from features of the whole row, beside the model; default: none"
    )
    start: Annotated[Start, BeforeValidator(_start_of)] = Field(
        default=RandomStart(),
        description="where the first weights come from; a checkpoint, such as bert-base-uncased or a run folder, also "
        "provides the tokenizer, and the model if the recipe gives none",
    )
    task: Task = NextToken()
    training: Training = Training()
    parallel: Parallel = Field(
        default=Parallel(), description="how the processes of 'qkv train --nproc N', or of torchrun, share the work"
    )
    sample: Generation = Generation(max_new_tokens=200, temperature=0.8, seed=1)
    quantized: Quantization | None = Field(
        default=None,
        description="quantisation of the weights, by 'qkv quantize', or of those that stay frozen beside adapters "
        "(training.adapt=lora); other runs with quantised weights are not trained",
    )
    quick: dict[str, Any] = {}
    candidates: dict[str, dict[str, Any]] = Field(
        default={},
        description="models that compete in short heats, by name: dotted overrides of this recipe; the one of lowest "
        "validation loss is trained to the end",
    )
    shown: Seq[str] = Field(
        default=(), description="metrics that tables of recipes show, such as test.accuracy, the main one first"
    )
    result: Result | None = Field(default=None, description="results of this recipe's runs, written by 'qkv record'")
    published: Seq[Published] = Field(default=(), description="published results to compare with")
    typed: Seq[Typed] = Field(
        default=(), description="results entered by hand: of variants, or from before 'qkv record'"
    )

    @property
    def reads(self) -> Reads:
        """Form of the data: ``examples`` if the task reads text and a processor converts inputs, else the task's."""
        return "examples" if self.task.reads == "text" and self.data.processors else self.task.reads

    @property
    def reached(self) -> Reached | None:
        """Values of the metrics ``shown``, recorded or entered by hand; None without any."""
        return reached(self.shown, self.result, self.typed)

    def problems(self) -> list[Problem]:
        problems = [*self._data_problems(), *self._words_problems(), *self._processor_problems()]
        problems += self._decoding_problems()
        # The default head is replaced by the task's, and default blocks by those of the checkpoint.
        begun = self.start.checkpoint is not None or self.start.blocks_of is not None
        if not begun or self.model.head != LanguageModelHead():
            problems += self._head_problems() + self._wide_problems()
        if not begun or self.model.blocks != Model.model_fields["blocks"].default:
            problems += [problem.under("model") for problem in self.task.model_problems(self.model)]
        return problems + self._encoder_problems() + self._candidate_problems()

    def _candidate_problems(self) -> list[Problem]:
        wrong = next((name for name in self.candidates if not _NAME.fullmatch(name)), None)
        if wrong is not None:
            sentence = f"{wrong!r} cannot name a folder; use letters, digits, '-', '_' and '+'"
            return [Problem(("candidates",), sentence)]
        return [
            Problem(("candidates", name, path), "a candidate changes the model, not the list of candidates")
            for name, changes in self.candidates.items()
            for path in changes
            if path.partition(".")[0] == "candidates"
        ]

    def _data_problems(self) -> list[Problem]:
        kind, draws = self.task.kind, self.task.reads == "nothing"
        if draws and self.data.source != NO_DATA.source:
            return [
                Problem(
                    ("data",),
                    f"the task {kind!r} generates its own data and would not read {self.data.source!r}; "
                    "leave the key out",
                )
            ]
        if not draws and self.data == NO_DATA:
            return [
                Problem(
                    ("data",), f"missing; the task {kind!r} reads {self.task.reads}: name a file or a known data set"
                )
            ]
        return []

    def _processor_problems(self) -> list[Problem]:
        """Return the errors if the front end, or that of the encoder, does not read the kind of signal of the data."""
        processor, stack = self.data.processor, self.model.encoder or self.model
        if self.task.separates_inputs:
            return self._separate_problems()
        if self.data.inputs or stack.frontend.inputs_read:
            return self._input_problems()
        needed = stack.frontend.processor
        if processor is not None and not self.task.reads_signals:
            takers = ", ".join(sorted(kind for kind, task in Task.kinds().items() if task.reads_signals))
            sentence = (
                f"the task {self.task.kind!r} reads text; leave it out (tasks that read {processor.kind}: {takers})"
            )
            return [Problem(("data", "processor"), sentence)]
        if self.start.checkpoint is not None or self.task.reads == "nothing" or (processor is None and needed is None):
            return []
        if processor is None:
            kind = needed.kind if needed else ""
            sentence = f"the front end {stack.frontend.kind!r} reads {kind}; give data.processor={kind}"
            return [Problem(("data", "processor"), sentence)]
        if needed is not None and isinstance(processor, needed):
            return []
        kinds = ", ".join(kind for kind, each in Frontend.kinds().items() if each.processor is type(processor))
        sentence = f"the front end {stack.frontend.kind!r} does not read {processor.kind}; use one of {kinds}"
        return [Problem(("model", *(("encoder",) if self.model.encoder else ()), "frontend"), sentence)]

    def _separate_problems(self) -> list[Problem]:
        """Return the errors if the stacks of two inputs do not match the inputs of the data."""
        if len(self.data.inputs) != 2:
            sentence = f"the task {self.task.kind!r} reads two inputs, not {len(self.data.inputs)}; name both"
            return [Problem(("data", "inputs"), sentence)]
        if self.start.checkpoint is not None or self.model.encoder is None:
            return []  # the front ends are those of the start; a missing encoder is reported by the task
        problems, stacks = list[Problem](), (self.model.encoder, self.model)
        for path, stack, name in zip((("encoder",), ()), stacks, self.data.inputs, strict=True):
            processor, needed = self.data.processors.get(name), stack.frontend.processor
            if (processor is None) == (needed is None) and isinstance(processor, needed or object):
                continue
            kind = "text" if processor is None else processor.kind
            kinds = (
                "text"
                if processor is None
                else ", ".join(kind for kind, each in Frontend.kinds().items() if each.processor is type(processor))
            )
            sentence = (
                f"the front end {stack.frontend.kind!r} does not read {name!r}, which is {kind}; use one of {kinds}"
            )
            problems.append(Problem(("model", *path, "frontend"), sentence))
        return problems + self._pair_map_problems()

    def _pair_map_problems(self) -> list[Problem]:
        """Return the errors if the wide path of two inputs reads n-grams of what is no text, or values of a text."""
        problems, parts = list[Problem](), () if self.wide is None else self.wide.sides
        for side, part, name in zip(("first", "second"), parts, self.data.inputs, strict=False):
            if part.of_values != (name in self.data.processors):
                needed = "'features' or 'hog'" if name in self.data.processors else "'ngrams'"
                sentence = f"{part.kind!r} does not read the input {name!r}; use {needed}"
                problems.append(Problem(("wide", side), sentence))
        return problems

    def _input_problems(self) -> list[Problem]:
        """Return the errors if the front ends of several inputs do not match the inputs of the data."""
        inputs, path = self.data.inputs, ("model", "frontend", "inputs")
        read = {name: each for name, each in self.model.frontend.inputs_read.items() if each.processor is not None}
        if not self.task.joins_inputs:
            takers = ", ".join(sorted(kind for kind, task in Task.kinds().items() if task.joins_inputs))
            sentence = f"the task {self.task.kind!r} reads one input; tasks that join several: {takers}"
            return [Problem(("data", "inputs") if inputs else path, sentence)]
        if self.model.encoder is not None:
            return [Problem(("model", "encoder"), "several inputs form one row, which needs no encoder; leave it out")]
        if self.wide is not None and not self.wide.joins:
            return [Problem(("wide",), f"{self.wide.kind!r} reads one input; use 'inputs', or leave it out")]
        if self.start.checkpoint is not None and not read:
            return []  # the front ends are those of the start
        problems = list[Problem]()
        for name, processor in self.data.processors.items():
            if name not in read:
                kinds = ", ".join(kind for kind, each in Frontend.kinds().items() if each.processor is type(processor))
                problems.append(
                    Problem((*path, name), f"missing; the data has this input: name its front end, {kinds}")
                )
            elif not isinstance(processor, read[name].processor or Processor):
                sentence = f"the front end {read[name].kind!r} does not read {processor.kind}"
                problems.append(Problem((*path, name), sentence))
        other = next((name for name in read if name not in inputs), None)
        if other is not None:
            problems.append(Problem((*path, other), f"data.inputs has no {other!r}; {nearest(other, inputs)}"))
        return problems

    def _words_problems(self) -> list[Problem]:
        stacks = {("model",): self.model, ("model", "encoder"): self.model.encoder}
        read = [path for path, stack in stacks.items() if stack is not None and stack.frontend.words is not None]
        if not read or (self.task.reads_words and read == [("model",)]):
            return []
        takers = ", ".join(sorted(kind for kind, task in Task.kinds().items() if task.reads_words))
        sentence = f"the task {self.task.kind!r} reads tokens, not words; use 'text' (tasks that read words: {takers})"
        return [Problem((*read[-1], "frontend"), sentence)]

    def _decoding_problems(self) -> list[Problem]:
        asks = f"the task {self.task.kind!r}"
        if self.task.needs in ("causal", "decodes") and self.model.frontend.on_grid:
            sentence = f"{self.model.frontend.kind!r} reads whole rows, but {asks} needs a model that decodes"
            return [Problem(("model", "frontend"), sentence)]
        if self.task.needs in ("causal", "decodes") and self.model.latents:
            sentence = f"latents read a whole text at once, but {asks} needs a model that decodes; leave them out"
            return [Problem(("model", "latents"), sentence)]
        if self.task.needs == "causal" and not self.model.causal:
            path = self.model.first_branch(lambda branch: not branch.causal)
            advice = self.model.decoding_advice(path, "use a causal mask")
            sentence = f"this branch sees later positions, but {asks} needs a model that decodes; {advice}"
            return [Problem(("model", *path), sentence)]
        if self.task.needs == "decodes" and not self.model.decodes:
            path = self.model.first_not_decoding()
            advice = self.model.decoding_advice(path, "use the mask 'causal' or 'causal | prefix'")
            sentence = f"this branch sees later positions, but {asks} needs a model that decodes; {advice}"
            return [Problem(("model", *path), sentence)]
        return self._exactness_problems() if self.task.writes(self.model) else []

    def _exactness_problems(self) -> list[Problem]:
        length = self.model.context_length
        path, branch = self.model.first_inexact(length)
        if branch is None:
            return []
        sentence = (
            f"decoding of {branch.kind!r} is exact for rows of up to {branch.exactness.length} positions, "
            f"but context_length is {length}; make rows shorter or that length larger, "
            "or accept the difference with inexact_decoding=true"
        )
        return [Problem(("model", *path), sentence)]

    def _head_problems(self) -> list[Problem]:
        if self.model.head.serves == self.task.head:
            return []
        kinds = f"a head of the kind {self.task.head!r}, but the model's is {self.model.head.kind!r}"
        return [
            Problem(("model", "head"), f"the task {self.task.kind!r} needs {kinds}; give model.head={self.task.head}")
        ]

    def _wide_problems(self) -> list[Problem]:
        stack = self.model.encoder or self.model
        sentence = "" if self.wide is None else self.wide.misfit(stack.frontend, self.model.head)
        return [Problem(("wide",), sentence)] if sentence else []

    def _encoder_problems(self) -> list[Problem]:
        if not self.model.encoder or self.task.reads_source():
            return []
        takers = ", ".join(sorted(kind for kind, task in Task.kinds().items() if task.takes_encoder))
        sentence = f"the task {self.task.kind!r} has no source text for an encoder; tasks with one: {takers}"
        return [Problem(("model", "encoder"), sentence)]
