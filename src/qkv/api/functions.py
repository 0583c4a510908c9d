"""Public functions. They accept a path, a name, a spec, a run or data in memory, and import torch only when needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from qkv.api.given import (
    choose_split,
    predicts_tables,
    recipe_on,
    rows_of_inputs,
    rows_of_table,
    temporary_file,
    training_files,
)
from qkv.api.recipes import find_recipe, folder_of, is_text, place_of
from qkv.choosing.verbs import data_fields, split_settings, task_named
from qkv.data.given.tables import is_given
from qkv.spec.files.overrides import measured, override, quick_form
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings
from qkv.system.world import ALONE, World

if TYPE_CHECKING:
    import numpy as np

    from qkv.comparison.ranking import Ranking
    from qkv.comparison.scaling import Scaling
    from qkv.costs.cost import Cost
    from qkv.generation.decode.speculate import Speculator
    from qkv.lens.fixtures import Fixtures
    from qkv.lens.health.page import Health
    from qkv.lens.inspection.inspection import Inspection
    from qkv.models.transformer import Transformer
    from qkv.runs.chats.shown import ShownChats
    from qkv.runs.evaluation import Figures
    from qkv.runs.export import Exported
    from qkv.runs.quantize import QuantizedRun
    from qkv.runs.run import Run
    from qkv.spec.generation import Measure
    from qkv.training.swap import Swapped
    from qkv.training.watch.events import OnEvent


@with_usual_settings
def train(
    recipe: Any,
    out: str | Path | None = None,
    overrides: Iterable[str] = (),
    quick: bool = False,
    resume: bool = True,
    on_event: OnEvent | None = None,
    task: str | None = None,
    start: str | Path | None = None,
    adapt: str | None = None,
    minutes: float | None = None,
    world: World = ALONE,
    **data: Any,
) -> Run:
    """Train a model, or resume the run in the folder ``out``; return the run with its best weights.

    ``recipe`` is a ``Recipe``, or any source of ``find_recipe``. ``out`` is by default ``runs/`` and the recipe's name.
    ``minutes`` is the time budget of the whole run, ``training.minutes`` of its recipe.

    With a ``task``, train on a table of examples: ``train("mine.csv", task="classify", text="review", label="stars")``.
    With ``start="bert-base-uncased"``, or a run, fine-tune that model; ``adapt``: "whole", "head", "last(2)",
    "lora(8)".

    Data in memory can replace a file: a data frame, a list of dicts, a dict of columns, a ``datasets`` object, or a
    list of texts, which without a task is running text. A mapping from split names to such data, or the arguments
    ``validation`` and ``test``, give further splits. The data is stored in the run's folder, so that the run can be
    resumed and evaluated later. The default folder is named after the task and the data, and the same call resumes the
    run. Rows that cannot be used are refused; ``bad_rows="skip"`` leaves them out.

    With a recipe, ``data=``, in memory or a file, replaces the recipe's own data. ``world``: the processes that train
    together, each of which calls this function.

    See ``qkv.training.loop.train`` for resuming, signals, events and exceptions.
    """
    from qkv.training import clock

    run_training = partial(_train_in, resume=resume, on_event=on_event, began=clock.seconds(), world=world)
    from qkv.data.reading import one_reading

    overrides = [*overrides, *([] if minutes is None else [f"training.minutes={minutes}"])]
    if "data" in data and isinstance(recipe, (str, Path)) and not is_text(recipe):
        recipe = read_recipe(recipe)
    if isinstance(recipe, Recipe):
        if task is not None or start is not None or adapt is not None or (data and "data" not in data):
            raise UserError("a recipe already sets task, data, start and adapt; leave these arguments out")
        recipe = override(recipe, [*(quick_form(recipe.quick) if quick else ()), *overrides])
        folder = Path(out) if out is not None else folder_of(recipe.name or "unnamed", quick)
        if "data" not in data:
            return run_training(recipe, folder)
        with recipe_on(recipe, data.pop("data"), folder, data) as recipe:
            return run_training(recipe, folder)
    if task is not None:
        chosen, data = split_settings(task, data)
        overrides, task, data = [*chosen, *overrides], task_named(task), data_fields(task, data)
    with one_reading(), training_files(recipe, task, place_of(out, quick), data) as (source, place, fields):
        run_recipe, folder = world.lead(
            lambda: find_recipe(source, overrides, quick, place, resume, task, start, adapt, **fields)
        )
        return run_training(run_recipe, folder)


def _train_in(recipe: Recipe, folder: Path, resume: bool, on_event: OnEvent | None, began: float, world: World) -> Run:
    """Report the event ``Prepared``, then train ``recipe`` in ``folder``."""
    from qkv.training.loop import train as train_run
    from qkv.training.watch.events import Prepared

    if on_event is not None:
        on_event(Prepared(recipe, folder))
    world.barrier()  # the first process may have moved an existing run aside
    return train_run(recipe, folder, resume, on_event, began, world)


@with_usual_settings
def swap(
    run: Run | str | Path,
    changes: Iterable[str],
    heal: int = 100,
    data: str | Path | None = None,
    out: str | Path | None = None,
    on_event: OnEvent | None = None,
    copy: bool = False,
) -> Swapped:
    """Replace parts of a run's or a published checkpoint's model, such as ``swap("runs/my",
    ["blocks.*.mixer=linear_attention"])``.

    ``changes``: dotted overrides of the model's spec. Weights that fit are kept; ``heal`` steps of training on the text
    ``data`` (default: the run's own) adapt the other weights. The result holds the new run, in the folder ``out``
    (default: ``runs/`` and the name), and the metrics before the swap, after it and after the training. ``copy``: as
    for ``load``. Raises ``UserError``; see ``qkv.training.swap.swap``.
    """
    from qkv.training.swap import swap as swap_parts

    name = Path(run).name if isinstance(run, (str, Path)) else run.folder.name
    text = None if data is None else str(data)
    return swap_parts(
        run, changes, folder_of(f"{name}-swapped", False) if out is None else out, heal, text, on_event, copy
    )


@with_usual_settings
def quantize(
    run: Run | str | Path,
    out: str | Path | None = None,
    bits: int = 8,
    group: int | None = None,
    data: str | Path | None = None,
    batches: int | None = None,
    copy: bool = False,
) -> QuantizedRun:
    """Write a run, or a published checkpoint, with weights in ``bits`` 16 (bf16), 8 or 4, as a new run for ``load``,
    ``generate``, ``evaluate`` and ``predict``.

    ``out``: new folder, by default ``runs/``, the name and the bits. ``group``: weights per scale. ``data``: file to
    measure both on (default: the run's validation data). The result holds the new run and its metrics before and
    after. Raises ``UserError``; see ``qkv.runs.quantize.quantize``.
    """
    from qkv.runs.quantize import quantize as quantize_run

    name = Path(run).name if isinstance(run, (str, Path)) else run.folder.name
    folder = folder_of(f"{name}-{bits}bit", False) if out is None else out
    return quantize_run(run, folder, bits, group, None if data is None else str(data), batches, copy)


@with_usual_settings
def export(
    run: Run | str | Path,
    out: str | Path | None = None,
    format: str = "hf",
    dtype: str | None = None,
    check: bool | None = None,
    copy: bool = False,
) -> Exported:
    """Export a run, or a published checkpoint, in a format that other libraries open, such as ``export("runs/my",
    format="gguf", dtype="q8_0")``.

    ``format``: "hf", a folder in Hugging Face format; "gguf", a file of llama.cpp; "peft", only the adapter of a run
    trained with one; "onnx". ``out``: new folder, or file for "gguf", by default beside the run. ``dtype``: precision
    of the weights ("fp32", "bf16", "fp16"; "gguf" also "q8_0" and "q4_0"), by default unchanged. ``check``: open the
    result with the transformers library, or llama.cpp, and compare logits; by default for models up to 2 GiB in fp32.
    ``copy``: as for ``load``.

    The result holds the ``place``, a ``summary`` and ``notes`` on what was left out. Raises ``UserError``; see
    ``qkv.runs.export.export``.
    """
    from qkv.runs.export import choose_place
    from qkv.runs.export import export as export_run

    source = Path(run) if isinstance(run, (str, Path)) else run.folder
    return export_run(source, choose_place(source, out, format, dtype), format, dtype, check, copy)


@with_usual_settings
def compare(
    recipe: Recipe | str | Path,
    entries: Mapping[str, Iterable[str]] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    threads: int = 1,
    **settings: Any,
) -> Ranking | Scaling:
    """Compare models over seeds at an equal budget, such as ``compare("small.yaml", {"attention": [], "gru":
    ["blocks.*.mixer=gru"]})``; resume the comparison in the folder ``out``.

    ``recipe``: a ``Recipe``, its file, or the name of a recipe that ships with the package; ``entries``: dotted
    overrides of the recipe by the name of the entry. Or ``recipe``: the file of a comparison, or the name of a
    comparison that ships with the package, without ``entries``. ``settings``: fields of
    ``qkv.spec.recipes.comparison.Comparison``: equal ("parameters", "flops", "steps", "time"), seeds, rates, metric,
    baseline, knobs, overrides, scale, fit, quick. ``out`` is by default ``runs/compare-`` and the recipe's name.
    ``jobs``: number of runs at once, each in a separate process; None: one after another in this process. ``ray``:
    address of a Ray cluster that executes the runs, each with ``threads`` cores, or "local".

    The result holds the table, its conclusions and an HTML page, which are also in the folder. Raises ``UserError``.
    """
    from qkv.comparison.compare import compare as compare_models
    from qkv.comparison.compare import executor_of
    from qkv.spec.recipes.comparison import Comparison, read_comparison

    base = None
    if entries is None:
        if isinstance(recipe, Recipe):
            raise UserError("a recipe is given without entries; give entries, a mapping from names to overrides")
        comparison, name = read_comparison(recipe, settings.items()), Path(recipe).stem
    else:
        if isinstance(recipe, Recipe):
            name = recipe.name or "unnamed"
            base = override(recipe, [*(quick_form(recipe.quick) if settings.get("quick") else ())])
            base = override(base, settings.get("overrides", ()))
        else:
            name = f"{Path(recipe).stem}"
        changes = {key: tuple(value) for key, value in entries.items()}
        comparison = Comparison.parse({"recipe": name if base else str(recipe), "entries": changes, **settings})
    folder = folder_of(name if name.startswith("compare") else f"compare-{name}", False) if out is None else out
    return compare_models(comparison, folder, executor_of(jobs, ray, threads), base)


@with_usual_settings
def load(
    run: str | Path, accept_changes: bool = False, copy: bool = False, device: str | None = None, **published: Any
) -> Run:
    """Load the run in a folder, with its best weights, or a published checkpoint: a folder in Hugging Face format, or a
    name like "gpt2".

    ``published``: settings for published checkpoints: dtype ("fp32", "bf16"), revision, pickles; see
    ``qkv.interop.load.load_published``. ``accept_changes``: load a run even if its spec or vocabulary was edited after
    training, or its best weights are missing. ``copy``: read the weights into memory; by default they are mapped from
    their file, which must then stay unchanged. ``device``: device for the model, such as "cuda"; default: the
    environment variable ``QKV_DEVICE``, which the command line and the server also read, else the CPU.

    Raises ``UserError`` if ``run`` is neither a run nor a published checkpoint, or if one of its files is missing,
    damaged or edited.
    """
    from qkv.runs.storage.load import load as load_run

    return load_run(run, accept_changes, copy, device=device, **published)


@overload
def generate(
    run: Run | Transformer | str | Path,
    prompt: str = "",
    *,
    ids: None = None,
    special: bool = False,
    tokenizer: Any = None,
    speculation: Speculator | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    open_objects: bool = False,
    **options: Any,
) -> str:
    """Generate text after ``prompt``."""


@overload
def generate(
    run: Run | Transformer | str | Path,
    *,
    ids: Sequence[int],
    speculation: Speculator | None = None,
    **options: Any,
) -> list[int]:
    """Generate token ids after ``ids``."""


@with_usual_settings
def generate(
    run: Run | Transformer | str | Path,
    prompt: str = "",
    *,
    ids: Sequence[int] | None = None,
    special: bool = False,
    tokenizer: Any = None,
    speculation: Speculator | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    open_objects: bool = False,
    **options: Any,
) -> str | list[int]:
    """Generate text after ``prompt``, without the prompt; or generate ids after ``ids``, without any tokenizer.

    ``run``: a run, its folder, or a model made by ``build``, which needs a ``tokenizer`` for text, as for ``save``.
    ``special``: parse special tokens in the prompt, such as ``<|im_start|>``; default: read them as plain text.
    ``speculation``: a ``qkv.generation.decode.speculate.Speculator``, to propose tokens by looking up n-grams in the
    text or with a draft model; afterwards it holds the statistics of this call. ``regex``, ``json_schema``: pattern or
    schema that the whole new text must match, see ``qkv.generation.logits.constrain``. A schema is a dict or JSON text;
    ``open_objects`` allows properties that it does not name. ``options``: fields of ``qkv.spec.generation.Generation``:
    max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
    logit_bias, min_tokens, stop, stop_token_ids, seed, overflow; num_beams, length_penalty, early_stopping. Defaults
    are those of the recipe's ``sample``; with ``num_beams`` above 1, its sampling settings are ignored.

    Raises ``UserError``.
    """
    from qkv.generation.ids import write_ids
    from qkv.generation.logits.constrain import constraint_of
    from qkv.generation.text import generate_text
    from qkv.runs.inference.generator import generator_of

    special_text = special and ids is None
    generator = generator_of(load(run) if isinstance(run, (str, Path)) else run, tokenizer, special_text)
    if ids is None:
        constraint = constraint_of(generator.tokenizer, regex, json_schema, open_objects)
        generation = generator.settings(options, stops=constraint is None)
        return generate_text(generator.model, generator.tokenizer, prompt, generation, None, speculation, constraint)
    if regex is not None or json_schema is not None:
        raise UserError("'regex' and 'json_schema' apply to text, but 'ids' are given; leave one of them out")
    if prompt or special:
        raise UserError("'prompt' and 'special' apply to text, but 'ids' are given; leave one of them out")
    return write_ids(generator.model, ids, generator.settings(options, stops=False), speculation, generator.drawn)


@with_usual_settings
def generate_images(
    run: Run | str | Path, count: int = 1, label: str | None = None, **options: Any
) -> list[np.ndarray]:
    """Generate ``count`` images with a run on images, as arrays (H, W) or (H, W, 3) of bytes.

    ``label``: label of the images, if the model has learned labels; None: all labels in turn. ``options``: temperature,
    top_k, top_p, min_p and seed; defaults are those of the recipe's ``sample``. Raises ``UserError``.
    """
    from qkv.runs.inference.images import generated_images

    return generated_images(load(run) if isinstance(run, (str, Path)) else run, count, label, **options)


@with_usual_settings
def evaluate(
    run: Run | str | Path,
    split: str | None = None,
    batches: int | None = None,
    overrides: Sequence[str] = (),
    data: Any = None,
) -> Figures:
    """Evaluate a run on one split of its data, or on all of ``data``; return the metrics by name.

    ``split``: "train", "validation" (the default) or "test". ``data``: a file, or data in memory as for ``train``.
    ``batches``: number of batches to evaluate; None: all. ``overrides``: generation settings (``sample.num_beams=1``)
    or the columns of ``data`` (``data.columns.text=review``). Baselines are fitted on the run's training split only.

    Metrics of a language model: loss (nats per token), perplexity, and bits per token, character and byte. Metrics of
    other tasks: accuracy, BLEU and so on, some only if the whole split is evaluated. ``evaluation`` of the result also
    holds the sections of a report. Raises ``UserError``.
    """
    from qkv.runs.evaluation import Figures
    from qkv.runs.evaluation import evaluate as evaluate_run

    part = choose_split(split, batches, data)
    loaded = load(run) if isinstance(run, (str, Path)) else run
    recipe = measured(loaded.recipe, overrides)
    if not is_given(data):
        source = None if data is None else str(data)
        evaluation = evaluate_run(replace(loaded, recipe=recipe), part, batches, source)
        return Figures(evaluation, source or part)
    recipe = recipe.changed(data=recipe.data.changed(bad_rows="refuse"))
    with temporary_file(data, recipe.reads == "text") as source:
        return Figures(evaluate_run(replace(loaded, recipe=recipe), part, batches, source), "data in memory")


@with_usual_settings
def evaluate_choices(
    run: Run | str | Path,
    questions: Any,
    examples: Iterable[Mapping[str, str]] = (),
    template: str | None = None,
    num_examples: int | None = None,
) -> dict[str, float]:
    """Evaluate a language model on multiple-choice questions, by the log probability of each option.

    questions: a table, as a file or in memory, with the fields of the template, ``label``, and ``options`` of each row
    (default: all labels); the label may be the option, its index from 0 or its letter. examples, template,
    num_examples: as for ``ask``.

    Returns the metrics by name: accuracy by total log p, by log p per token and per character; loss in nats; and
    ``baseline``, the accuracy of the most frequent label, or of chance if options differ between rows. Raises
    ``UserError``.
    """
    from qkv.generation.few_shot import TEMPLATE, Template
    from qkv.runs.evaluation import Figures
    from qkv.runs.inference.ask import few_shot, read_rows
    from qkv.runs.inference.choices import evaluate_choices as evaluate_prompt

    loaded = load(run) if isinstance(run, (str, Path)) else run
    form = Template(template or TEMPLATE)
    prompt = few_shot(loaded, _labelled(examples), form, num_examples)
    if not is_given(questions):
        rows = read_rows(str(questions), form, "questions", {}, labelled=True)
        return Figures(evaluate_prompt(prompt, rows), str(questions))
    with temporary_file(questions, running=False) as source:
        rows = read_rows(source, form, "questions", {}, labelled=True)
    return Figures(evaluate_prompt(prompt, rows), "data in memory")


@with_usual_settings
def predict(
    run: Run | str | Path,
    *inputs: Any,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    hypothesis: str | None = None,
    multi_label: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
    task: str | None = None,
    group: str | None = None,
    no_answer: bool = False,
) -> list[dict[str, Any]]:
    """Predict the task's output (label, number, span, text …) for each input, as a mapping whose ``answer`` is
    readable.

    An input is a text, or a mapping if the task has several input fields (``{"context": …, "question": …}``). A list of
    inputs, or a table in memory as for ``train``, gives one prediction per row; ``columns``: column of each input field
    in the table, by default as in training. A forecasting run takes a table of series, in memory or a file, and gives a
    row for each future step.

    ``labels``: zero-shot classification with these labels, for a model of natural language inference: the label whose
    hypothesis the text entails most. ``hypothesis``: sentence with "{}" for the label, by default "This example is
    {}."; ``multi_label``: score each label independently. See ``qkv.runs.uses.zero_shot``.

    ``source_language``, ``target_language``: codes, such as "de", for a published translator of many languages, see
    ``qkv.runs.uses.text_to_text``. ``task``: an entry of ``task_specific_params`` in the model's ``config.json``,
    such as "summarization" of T5, with its prefix and generation settings.

    ``group``: how the tokens of named entities are grouped and scored, "simple", "first", "average" or "max"; see
    ``qkv.tasks.words.entity_groups``. ``no_answer``: a published model may find no answer in a context. Raises
    ``UserError``.
    """
    from qkv.runs.inference.predict import predict as predict_run
    from qkv.runs.uses.use import use_of

    loaded = load(run) if isinstance(run, (str, Path)) else run
    use = use_of(labels, hypothesis, multi_label, source_language, target_language, task, group, no_answer)
    if predicts_tables(loaded):
        return rows_of_table(loaded, inputs, columns)
    return predict_run(loaded, rows_of_inputs(loaded, inputs, columns), use)


@with_usual_settings
def ask(
    run: Run | str | Path,
    inputs: Iterable[str | Mapping[str, str]],
    examples: Iterable[Mapping[str, str]] = (),
    options: Sequence[str] | Sequence[Sequence[str]] | None = None,
    template: str | None = None,
    by: Measure = "sum",
    calibrate: bool = False,
    num_examples: int | None = None,
    seed: int = 0,
    images: Sequence[Any] = (),
) -> list[dict[str, Any]]:
    """Answer each input by few-shot prompting; return mappings with ``answer`` and the options' ``probabilities``.

    inputs: texts, or mappings with the fields of the template. examples: mappings with these fields and ``label``,
    which are shown as far as they fit the model's positions; if there are more than ``num_examples``, so many are
    sampled with ``seed``. options: possible answers, or a list of them for each input; None: the labels of the
    examples; without examples the answer is generated. template: text of an example, such as "{text} is {label}.".
    by, calibrate: see ``qkv.generation.few_shot.FewShot.choose``. images: pictures that the inputs, which are texts,
    ask about, as files, data URIs, arrays or Pillow images; they are answered in the form of the model's chat template,
    or by a run whose inputs are pictures and a text, and not by prompting. Raises ``UserError``.
    """
    from qkv.generation.few_shot import TEMPLATE, Template
    from qkv.runs.inference.ask import answers, few_shot, options_of_rows

    loaded = load(run) if isinstance(run, (str, Path)) else run
    if images:
        prompting = {"examples": examples, "options": options, "template": template, "calibrate": calibrate}
        return _asked_about(loaded, inputs, images, prompting)
    form, demonstrations = Template(template or TEMPLATE), _labelled(examples)
    rows = [{form.fields[0]: item} if isinstance(item, str) else item for item in inputs]
    prompt = few_shot(loaded, demonstrations, form, num_examples, seed)
    results = answers(prompt, rows, options_of_rows(options, len(rows), demonstrations), by, calibrate)
    return [{"answer": answer.text, "probabilities": answer.probabilities} for answer in results]


def _asked_about(
    run: Run, inputs: Iterable[str | Mapping[str, str]], images: Sequence[Any], prompting: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Answer texts about pictures. Raises ``UserError`` for settings of ``prompting``, which do not apply."""
    from qkv.runs.chats.questions import ask_about

    questions = [inputs] if isinstance(inputs, str) else list(inputs)
    name = next((name for name, value in prompting.items() if value), None)
    if name is not None or not all(isinstance(each, str) for each in questions):
        what = "inputs that are no texts" if name is None else f"{name!r}"
        raise UserError(f"{what} given beside 'images'; questions about pictures are texts, without prompting")
    return ask_about(run, [str(each) for each in questions], images)


def _labelled(examples: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Return the examples as a list. Raises ``UserError`` for an example without a label."""
    from qkv.generation.few_shot import LABEL

    rows = list(examples)
    unlabelled = next((i for i, row in enumerate(rows) if LABEL not in row), None)
    if unlabelled is not None:
        raise UserError(f"example {unlabelled} has no {LABEL!r}; give each example a label")
    return rows


@with_usual_settings
def explain(run: Run | str | Path, *inputs: Any, columns: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Predict for inputs as ``predict`` does, and measure the effect of each word on the answer.

    ``words`` of a prediction: for each word, the change of the answer's log-probability, or of the number, when that
    word is left out; negative for words that support the answer. See ``qkv.lens.explain.explain``. Raises
    ``UserError``.
    """
    from qkv.lens.explain import explain as explain_run

    loaded = load(run) if isinstance(run, (str, Path)) else run
    return explain_run(loaded, rows_of_inputs(loaded, inputs, columns))


@with_usual_settings
def health(run: Run | str | Path) -> Health:
    """Examine a run, as ``qkv health`` does: what is wrong with it, how that was measured, and the command that cures
    it. Notebooks show the verdicts and the recorded curves.

        health = qkv.health("runs/my")
        health.severity      # "good", "note", "warning" or "alarm"
        health.verdicts[0]   # the worst: check, severity, sentence, value, limit, source, cure, places
        health.save()        # health.html in the run's folder

    ``run``: run or its folder. Raises ``UserError`` if it is no run that was trained.
    """
    from qkv.lens.health.examine import examine

    return examine(run.folder if not isinstance(run, (str, Path)) else Path(run))


@with_usual_settings
def inspect(
    run: Run | str | Path,
    text: Any = None,
    /,
    *,
    row: int | None = None,
    answer: str | None = None,
    ablate: Iterable[tuple[str, int]] = (),
    position: int | None = None,
    over: str | None = None,
    **inputs: Any,
) -> Inspection:
    """Look inside a model on one input: ``qkv.inspect("runs/my", "the quick brown fox")`` shows its page in a notebook,
    and ``.save("page.html")`` writes it.

    Views: answers, attention, influence of positions, logit lens, parts of a logit, roles of heads, importance of
    positions, hidden states, neurons, and the kept checkpoints of the run; each is computed when it is shown or by
    ``.view(name)``.

    ``run``: run, its folder, published folder, GGUF file or name. ``text``: the first input of the task; further ones
    by name. ``row``: instead of inputs, a row of the run's held-out data, of any task. ``answer``: text that an
    encoder–decoder writes, by default its own. ``ablate``: (path of a branch, number of a head) of heads that are
    replaced by their mean. ``position``: position whose prediction is explained, by default the last one or a gap.
    ``over``: text over which neurons are read, by default held-out rows of the run.

    Raises ``UserError``.
    """
    from qkv.lens.inspection.inspection import inspect_run
    from qkv.lens.inspection.reading import collect_inputs

    loaded = load(run) if isinstance(run, (str, Path)) else run
    heads: tuple[Any, ...] = (ablate,) if isinstance(ablate, str) else tuple(ablate)
    return inspect_run(loaded, collect_inputs(loaded, text, inputs, row), answer, heads, position, over)


@with_usual_settings
def embed(
    run: Run | str | Path,
    texts: Sequence[str | Sequence[int]],
    prompt: str | None = None,
    prefix: str | None = None,
    **options: Any,
) -> np.ndarray:
    """Compute one embedding vector per text, (texts, D) float32: the hidden states before the head, pooled over tokens.

    A text may also be given as token ids, which are used unchanged.

    A sentence-transformers folder defines pooling, length, normalisation and prompts. ``prompt``: name of one of its
    prompts; ``prefix``: your own text instead. Other models use the mean over all tokens. ``options``: fields of
    ``qkv.generation.embed.Embedding`` (poolings, normalise, max_length, dimensions), which override the folder's,
    batch_size, and copy as for ``load``.

    Raises ``UserError``.
    """
    from qkv.runs.inference.embed import embed as embed_with

    return embed_with(run, texts, prompt, prefix, **options)


@with_usual_settings
def write_fixtures(
    run: Run | str | Path,
    out: str | Path,
    texts: Sequence[str] = (),
    points: Sequence[str] = ("*",),
    rows: int = 2,
    length: int = 16,
    new: int = 8,
    seed: int = 0,
    dtype: str = "fp32",
) -> Fixtures:
    """Write inputs, the values at ``points`` and the outputs of a model to the safetensors file ``out``.

    Other engines compare their own values with these: each is computed part by part by its reference implementation,
    in ``dtype`` ("fp32" or "fp64"). ``texts``: rows of the model, or of its encoder; default: ``rows`` random rows of
    ``length`` positions, drawn with ``seed``. ``points``: names, paths or patterns of points; default: all. ``new``:
    number of greedily generated tokens. Names of the tensors: see ``qkv.lens.fixtures.write_fixtures``. Raises
    ``UserError``.
    """
    from qkv.lens.fixtures import RandomRows
    from qkv.lens.fixtures import write_fixtures as write
    from qkv.runs.storage.folder import SPEC

    if isinstance(run, (str, Path)):
        # Weights of a published checkpoint are read in full, those of a quantised GGUF file too.
        whole: dict[str, Any] = {} if (Path(run) / SPEC).is_file() else {"dtype": "fp32"}
        run = load(run, **whole)
    return write(run, out, texts, points, RandomRows(rows, length, seed), new, dtype)


@with_usual_settings
def cost(
    spec: Model | Recipe | str | Path,
    batch_size: int | None = None,
    length: int | None = None,
    precision: str | None = None,
    source_length: int | None = None,
    overrides: Iterable[str] = (),
) -> Cost:
    """Estimate parameters, FLOPs, memory and state of a model without building it.

    ``spec``: a model, a recipe, the file of one, a run or published folder, a published config.json, or the name of a
    shipped recipe or preset, such as "gpt2"; with the changes ``overrides``. Omitted arguments are taken from the
    recipe; for a model alone, they are one row of its context length in fp32. ``source_length``: positions that an
    encoder reads. Raises ``UserError``.
    """
    from qkv.api.models import find_model

    return find_model(spec, overrides).cost(batch_size, length, precision, source_length)


@with_usual_settings
def show(
    data: Any,
    start: str | Path,
    rows: Sequence[int] = (),
    learn: str | None = None,
    length: int | None = None,
    chat_template: str | None = None,
    **columns: str,
) -> ShownChats:
    """Show what a model would learn from conversations, such as ``show("chat.jsonl", start="my-checkpoint")``: the kind
    of every token (context, target, or mark of the template), counts, lengths, what truncation would cut, unusable
    rows.

    ``data``: file or data in memory, as for ``train``, of conversations, or of preferences. ``start``: run, published
    folder, GGUF file or name, of which only tokenizer, template and sizes are read. ``rows``: numbers of the rows to
    show, from 1. ``learn``: "answers", the default, "last" or "everything". ``length``: maximum tokens of a text, by
    default the context length. ``chat_template``: text of a Jinja template that replaces the model's. ``columns``:
    column of each role.

    The result holds the counts (``audit``) and the tokens (``texts``); ``page()`` is an HTML page, and notebooks show
    the counts as tables. Raises ``UserError``, also if nothing would be learned.
    """
    from qkv.runs.chats.show import show_chats

    wrong = next((name for name, column in columns.items() if not isinstance(column, str)), None)
    if wrong is not None:
        raise UserError(
            f"{wrong}: {columns[wrong]!r} given, but the name of a column is a text; rows to show are 'rows'"
        )
    settings: dict[str, Any] = {"rows": rows, "learn": learn, "length": length, "chat_template": chat_template}
    if not is_given(data):
        return show_chats(str(data), str(start), columns=columns, **settings)
    with temporary_file(data, running=False) as source:
        return show_chats(source, str(start), columns=columns, name="the data", **settings)
