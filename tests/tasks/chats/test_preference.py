"""Training on preferences: losses against loops in double precision, the reference, and the run that results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.chats.chat_runs import END, TEMPLATE, start, tokenizer, write

import qkv
from qkv.api.recipes import find_recipe
from qkv.layers.linear.lora import adapters, without_adapters
from qkv.models.edit.adapt import add_adapters
from qkv.runs.reference import open_reference
from qkv.runs.start import with_start
from qkv.spec.data import Data, LengthBuckets
from qkv.spec.recipe import Recipe
from qkv.spec.recipes import preference_tasks as spec
from qkv.spec.register import implementation
from qkv.spec.tasks import Preference
from qkv.spec.training import Training
from qkv.tasks.chats.preference_losses import AnswerScores
from qkv.tasks.registry import task_of_recipe
from qkv.tokenizers.chat_targets import find_answer
from qkv.tokenizers.chat_template import ChatTemplate

PAIRS = [
    {"prompt": "the cat", "chosen": "sat", "rejected": "sat on the mat and ran"},
    {"prompt": "the dog and the cat", "chosen": "ran", "rejected": "ran to the house with a red ball"},
    {"prompt": "a ball", "chosen": "red", "rejected": "a red ball on the mat"},
]
JUDGED = [
    {"prompt": pair["prompt"], "completion": pair[name], "label": name == "chosen"}
    for pair in PAIRS
    for name in ("chosen", "rejected")
]
FEW = ["training.minutes=null", "training.validation.every=5"]
LOSSES = [
    spec.SigmoidLoss(beta=0.3),
    spec.SigmoidLoss(beta=0.3, label_smoothing=0.1),
    spec.IPOLoss(beta=0.2),
    spec.SimPOLoss(beta=1.5, gamma=0.7),
    spec.KTOLoss(beta=0.3, desirable_weight=1.2, undesirable_weight=0.8),
]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def looped(
    part: Any, policy: list[float], reference: list[float], lengths: list[int], good: list[bool], z: float
) -> float:
    """The sum of a loss as its paper writes it; the chosen answers come first."""
    ratios = [p - r for p, r in zip(policy, reference, strict=True)]
    if isinstance(part, spec.KTOLoss):
        point = max(0.0, z)
        values = [
            part.desirable_weight * (1 - sigmoid(part.beta * (r - point)))
            if is_good
            else part.undesirable_weight * (1 - sigmoid(part.beta * (point - r)))
            for r, is_good in zip(ratios, good, strict=True)
        ]
        return sum(values)
    half, total = len(policy) // 2, 0.0
    for i, j in zip(range(half), range(half, 2 * half), strict=True):
        if isinstance(part, spec.SigmoidLoss):
            h = part.beta * (ratios[i] - ratios[j])
            total += -(1 - part.label_smoothing) * math.log(sigmoid(h)) - part.label_smoothing * math.log(sigmoid(-h))
        elif isinstance(part, spec.IPOLoss):
            total += (ratios[i] / lengths[i] - ratios[j] / lengths[j] - 1 / (2 * part.beta)) ** 2
        else:
            h = part.beta * (policy[i] / lengths[i] - policy[j] / lengths[j]) - part.gamma
            total += -math.log(sigmoid(h))
    return total


@pytest.mark.parametrize("part", LOSSES, ids=lambda part: part.kind)
def test_a_loss_equals_its_formula(part: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    policy, reference = -10 * torch.rand(2, 6, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([3, 5, 2, 7, 4, 1])
    good = torch.tensor([True, True, True, False, False, False])
    z = torch.tensor(0.4, dtype=torch.float64)
    loss = implementation(part, "qkv.tasks")(part)(AnswerScores(policy, reference, lengths, good, z)).sum()
    wanted = looped(part, policy.tolist(), reference.tolist(), lengths.tolist(), good.tolist(), 0.4)
    assert float(loss) == pytest.approx(wanted, rel=1e-12)


def slopes(
    part: Any, policy: list[float], reference: list[float], lengths: list[int], good: list[bool], z: float
) -> list[float]:
    """Derivatives of a looped loss by the log-probability of each answer, from differences. ``z`` is constant."""
    found, step = list[float](), 1e-5
    for i in range(len(policy)):
        above, below = ([*policy[:i], policy[i] + sign * step, *policy[i + 1 :]] for sign in (1, -1))
        higher = looped(part, above, reference, lengths, good, z)
        found.append((higher - looped(part, below, reference, lengths, good, z)) / (2 * step))
    return found


@pytest.mark.parametrize("part", LOSSES, ids=lambda part: part.kind)
def test_the_gradient_of_a_loss_equals_that_of_its_formula(part: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    policy, reference = -6 * torch.rand(2, 6, dtype=torch.float64, generator=generator)
    lengths, good = torch.tensor([3, 5, 2, 7, 4, 1]), torch.tensor([True, True, True, False, False, False])
    z = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    policy.requires_grad_()
    implementation(part, "qkv.tasks")(part)(AnswerScores(policy, reference, lengths, good, z)).sum().backward()
    wanted = slopes(part, policy.tolist(), reference.tolist(), lengths.tolist(), good.tolist(), 0.4)
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert z.grad is None  # the divergence of KTO is a constant


def opened(source: Path, folder: Path, loss: Any, adapt: str = "whole", **task: Any) -> tuple[Any, Any, Any]:
    """(task, data, model in double precision) of a training from ``folder``."""
    data = Data(source=str(source), validation=str(source), batching=LengthBuckets())
    recipe = with_start(
        Recipe(
            data=data,
            task=Preference(loss=loss, **task),
            start=str(folder),
            training=Training.parse({"batch_size": 6, "adapt": adapt}),
        )
    )
    built = task_of_recipe(recipe)
    dataset = built.open(recipe)
    model = qkv.load(folder).model
    if adapt != "whole":
        add_adapters(model, dataset.recipe.training)
    open_reference(built, model, dataset.recipe)
    return built, dataset, model.double().train()


def encoded(prompt: str, text: str) -> Any:
    """Token ids of a prompt and of the answer to it."""
    template = ChatTemplate(TEMPLATE, tokenizer())
    return find_answer(template, [{"role": "user", "content": prompt}], [{"role": "assistant", "content": text}])


def log_probability(model: Any, prompt: str, text: str) -> torch.Tensor:
    """Log-probability of an answer after its prompt, one position at a time."""
    answer = encoded(prompt, text)
    ids = [*answer.prompt, *answer.ids]
    assert tokenizer().core.token_to_id(END) == ids[-1]
    logits = model(torch.tensor([ids]))[0][0].log_softmax(-1)
    return torch.stack([logits[i - 1, ids[i]] for i in range(len(answer.prompt), len(ids))]).sum()


def answer_scores(model: Any, rows: list[tuple[str, str]]) -> tuple[list[float], list[int]]:
    """Log-probabilities of answers after their prompts, and their lengths."""
    return [float(log_probability(model, *row)) for row in rows], [len(encoded(*row).ids) for row in rows]


@torch.no_grad()
def moved(model: Any) -> None:
    """Change the weights that are trained."""
    generator = torch.Generator().manual_seed(7)
    for p in model.parameters():
        p += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)


@pytest.mark.parametrize("part", LOSSES, ids=lambda part: part.kind)
def test_the_loss_of_a_batch_equals_that_of_single_rows(tmp_path: Path, part: Any) -> None:
    folder = start(tmp_path / "start")
    task, dataset, model = opened(write(tmp_path / "pairs.jsonl", PAIRS), folder, part)
    moved(model)
    before = qkv.load(folder).model.double()
    chosen = [(pair["prompt"], pair["chosen"]) for pair in PAIRS]
    rejected = [(pair["prompt"], pair["rejected"]) for pair in PAIRS]
    with torch.no_grad():
        batch = next(dataset.rows("validation"))
        if task.reference is not None:
            with task.reference() as reference:
                reference.double()
        found = float(task.summed_loss(model, batch))
        if not isinstance(part, spec.KTOLoss):
            policy, lengths = answer_scores(model, chosen + rejected)
            reference, _ = answer_scores(before, chosen + rejected)
            wanted = looped(part, policy, reference, lengths, [True] * 3 + [False] * 3, 0.0)
            assert found == pytest.approx(wanted, rel=1e-6)
            return
        rows = [example.fields[0] for example in dataset.examples["validation"]]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt) + len(rows[i].answer))
        texts = [(row[0], row[1]) for pair in zip(chosen, rejected, strict=True) for row in pair]
        texts, good = [texts[i] for i in order], [rows[i].good for i in order]
        others = [(prompt, texts[(i + 1) % len(texts)][1]) for i, (prompt, _) in enumerate(texts)]
        (policy, lengths), (reference, _) = answer_scores(model, texts), answer_scores(before, texts)
        (theirs, _), (theirs_before, _) = answer_scores(model, others), answer_scores(before, others)
        z = sum(a - b for a, b in zip(theirs, theirs_before, strict=True)) / len(others)
        assert found == pytest.approx(looped(part, policy, reference, lengths, good, z), rel=1e-6)


PAIR_LOSSES = [part for part in LOSSES if not isinstance(part, spec.KTOLoss)]


@pytest.mark.parametrize("part", PAIR_LOSSES, ids=lambda part: part.kind)
def test_the_gradient_of_a_batch_equals_that_of_single_rows(tmp_path: Path, part: Any) -> None:
    folder = start(tmp_path / "start")
    task, dataset, model = opened(write(tmp_path / "pairs.jsonl", PAIRS), folder, part)
    moved(model)
    before = qkv.load(folder).model.double()
    rows = [(pair["prompt"], pair[name]) for name in ("chosen", "rejected") for pair in PAIRS]
    if task.reference is not None:
        with task.reference() as reference:
            reference.double()
    task.summed_loss(model, next(dataset.rows("validation"))).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.no_grad():
        policy, lengths = answer_scores(model, rows)
        factors = slopes(part, policy, answer_scores(before, rows)[0], lengths, [True] * 3 + [False] * 3, 0.0)
    for factor, (prompt, text) in zip(factors, rows, strict=True):
        (factor * log_probability(model, prompt, text)).backward()
    for p, gradient in zip(model.parameters(), found, strict=True):
        assert p.grad is not None
        assert torch.allclose(gradient, p.grad, rtol=1e-5, atol=1e-8)


def test_the_reference_has_no_dropout_and_training_goes_on_with_it(tmp_path: Path) -> None:
    folder = start(tmp_path / "start")
    source = write(tmp_path / "pairs.jsonl", PAIRS)
    task, _, model = opened(source, folder, LOSSES[0], "lora(rank=4, dropout=0.5)")
    model.float()
    for layer in adapters(model).values():
        torch.nn.init.normal_(layer.lora_b)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), task.reference() as reference:
        assert torch.equal(reference(ids)[0], qkv.load(folder).model(ids)[0])
    assert model.training
    assert not torch.equal(model(ids)[0], model(ids)[0])


@torch.no_grad()
def test_before_the_first_step_the_loss_is_log_2_and_no_prompt_counts(tmp_path: Path) -> None:
    task, dataset, model = opened(
        write(tmp_path / "pairs.jsonl", PAIRS), start(tmp_path / "start"), LOSSES[0], "lora(4)"
    )
    batch = next(dataset.rows("validation"))
    assert float(task.summed_loss(model, batch)) == pytest.approx(3 * math.log(2), rel=1e-6)
    lengths = [int(n) for n in (batch.targets != -100).sum(1)]
    texts = [pair[name] for pair in PAIRS for name in ("chosen", "rejected")]
    assert sorted(lengths) == sorted(len(encoded("x", text).ids) for text in texts)


def test_without_adapters_the_model_is_its_start_bit_by_bit(tmp_path: Path) -> None:
    folder = start(tmp_path / "start")
    source = write(tmp_path / "pairs.jsonl", PAIRS)
    _, _, model = opened(source, folder, LOSSES[0], "lora(rank=4, dropout=0.5)")
    model.float()
    for layer in adapters(model).values():
        torch.nn.init.normal_(layer.lora_b)
    ids = torch.tensor([[1, 2, 3, 4]])
    wanted = qkv.load(folder).model(ids)[0]
    with torch.no_grad():
        assert not torch.allclose(model.eval()(ids)[0], wanted, atol=1e-3)
        with without_adapters(model):
            assert torch.equal(model(ids)[0], wanted)
        assert not torch.allclose(model(ids)[0], wanted, atol=1e-3)


@pytest.mark.parametrize("loss", ["sigmoid", "simpo", "kto"])
def test_short_answers_are_preferred_after_training(tmp_path: Path, loss: str) -> None:
    folder = start(tmp_path / "start")
    source = write(tmp_path / "pairs.jsonl", PAIRS * 4 if loss != "kto" else JUDGED * 2)
    changes = [*FEW, "training.steps=25", "training.optimizer.lr=0.01", f"task.loss={loss}"]
    run = qkv.train(
        source, overrides=changes, task="prefer", start=folder, out=tmp_path / "run", validation=str(source)
    )
    evaluation = run.evaluation["splits"]["validation"]  # type: ignore[index]
    figures = evaluation["figures"]
    assert figures["accuracy"] >= 90
    if loss != "simpo":
        assert figures["margin"] > 0
        again = qkv.evaluate(run)
        assert again["accuracy"] == figures["accuracy"]
        assert again["margin"] == pytest.approx(figures["margin"], rel=1e-3)


def test_chosen_answers_that_become_less_likely_are_said(tmp_path: Path) -> None:
    folder = start(tmp_path / "start")
    task, _, _ = opened(write(tmp_path / "pairs.jsonl", PAIRS), folder, LOSSES[0])
    outcomes = [((-8.0, -6.0, 4, True), (-12.0, -6.0, 3, False)), ((-4.0, -3.0, 2, True), (-2.0, -1.0, 1, False))]
    (note,) = task._notes(outcomes)
    assert "less likely: -2.000 nats per token, -1.500 before" in note
    figures = task._figures_of_answers(outcomes)
    assert figures["reward_chosen"] == pytest.approx(0.3 * (-2 - 1) / 2)
    assert figures["reward_rejected"] == pytest.approx(0.3 * (-6 - 1) / 2)
    assert figures["accuracy"] == 50
    assert figures["log_probability_chosen"] == pytest.approx(-2)
    without, _, _ = opened(tmp_path / "pairs.jsonl", folder, spec.SimPOLoss(beta=1.5))
    figures = without._figures_of_answers(outcomes)
    assert figures["margin"] == pytest.approx(1.5 * (-2 - (-4 - 2) / 2))


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start"), write(tmp_path / "pairs.jsonl", PAIRS * 4)
    arguments = {"task": "prefer", "start": folder, "validation": str(source)}
    changes = [*FEW, "training.adapt=whole", "training.schedule=constant", "training.checkpoints.every=2"]
    whole = qkv.train(source, overrides=[*changes, "training.steps=4"], out=tmp_path / "a", **arguments)
    qkv.train(source, overrides=[*changes, "training.steps=2"], out=tmp_path / "b", **arguments)
    resumed = qkv.train(source, overrides=[*changes, "training.steps=4"], out=tmp_path / "b", **arguments)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_labels_need_kto_and_choose_it(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start"), write(tmp_path / "judged.jsonl", JUDGED * 4)
    run = qkv.train(source, overrides=[*FEW, "training.steps=1"], task="prefer", start=folder, out=tmp_path / "run")
    assert run.recipe.task.loss.kind == "kto"  # type: ignore[attr-defined]


def test_answers_of_one_kind_and_tools_that_are_not_read_are_told(tmp_path: Path) -> None:
    rows = [{**row, "tools": [{"name": "look"}]} for row in JUDGED * 4]
    for kind, other in ((True, "bad"), (False, "good")):
        source = write(tmp_path / f"{kind}.jsonl", [row for row in rows if bool(row["label"]) is kind])
        _, dataset, _ = opened(source, start(tmp_path / f"start-{kind}"), spec.KTOLoss())
        said = " ".join(dataset.notes)
        count = len(dataset.records["train"]) + len(dataset.records["validation"])
        assert f"all {count} answers are {'good' if kind else 'bad'}: the loss 'kto'" in said
        assert f"give {other} answers too" in said
        assert f"{count} of {count} rows have tools, which the chat template does not read" in said
    source = write(tmp_path / "both.jsonl", JUDGED * 4)
    _, dataset, _ = opened(source, start(tmp_path / "start"), spec.KTOLoss())
    assert not any("answers are" in note or "tools" in note for note in dataset.notes)


def test_the_rate_of_all_weights_is_that_of_preferences(tmp_path: Path) -> None:
    folder, source = start(tmp_path / "start"), write(tmp_path / "pairs.jsonl", PAIRS * 4)
    rates = []
    for task in ("chat", "prefer"):
        names = {} if task == "prefer" else {"completion": "chosen"}
        for adapt in ("whole", "lora(8)"):
            recipe, _ = find_recipe(source, task=task, start=folder, adapt=adapt, **names)  # type: ignore[arg-type]
            rates.append(recipe.training.optimizer.lr)
    whole, adapters, whole_preferred, adapters_preferred = rates
    assert whole_preferred == pytest.approx(whole / 50, rel=0.1)
    assert adapters_preferred == adapters
