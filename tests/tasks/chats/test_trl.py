"""Losses and gradients of training on conversations and on preferences beside those of trl.

Where trl's definitions differ, the test gives both the same input:

- trl learns all that the template writes after the prompt of a preference, qkv what the model itself writes, through
  its end token. The template here ends with that token.
- ``label_smoothing`` does not change ``sigmoid`` of trl 1.16. Its ``aot`` of a single pair
  is the loss of conservative DPO.
- For the divergence of KTO, trl gives each prompt the answer of the row before, qkv that of the next row. The rows are
  reversed for trl.
- trl's losses are means over the rows of a batch, qkv's are sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.chats.chat_runs import END, talk, tokenizer, write
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import qkv
from qkv.data.batching.batch import Batch
from qkv.interop.load import load_published
from qkv.interop.registry import families
from qkv.interop.save import published_tensors
from qkv.runs.reference import open_reference
from qkv.runs.start import with_start
from qkv.spec.data import BestFit, Data, LengthBuckets
from qkv.spec.recipe import Recipe
from qkv.spec.recipes import preference_tasks as spec
from qkv.spec.recipes.task import Task
from qkv.spec.tasks import Chat, Preference
from qkv.spec.training import Training
from qkv.tasks.registry import task_of_recipe

trl: Any = pytest.importorskip("trl")
datasets: Any = pytest.importorskip("datasets")

pytestmark = pytest.mark.filterwarnings("ignore")
TEMPLATE = (
    "{% for m in messages %}{% if not loop.first %}\n{% endif %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}"
)
TALKS = [
    talk("the cat", "sat", system="a dog"),
    talk("the dog", "ran to the house", "and", "the red ball"),
    talk("a", "b"),
    talk("x", "y and the house with a red ball"),
]
PAIRS = [
    ("the cat", "sat", "sat on the mat and ran"),
    ("the dog and the cat", "ran", "ran to the house with a red ball"),
    ("a ball", "a red ball on the mat", "red"),
]
QUIET = {
    "per_device_train_batch_size": 2,
    "max_length": None,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "disable_tqdm": True,
}
NEAR, GRADIENT = 1e-6, 1e-5
"""Bounds of relative differences of losses and of gradients: the transformers library norms in single precision."""


def words() -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer(TEMPLATE).core, eos_token=END, pad_token=END)
    made.chat_template = TEMPLATE
    return made


def saved(folder: Path, seed: int) -> Path:
    """A Llama with random weights and its tokenizer, as the transformers library saves them."""
    torch.manual_seed(seed)
    made = words()
    config = LlamaConfig(
        vocab_size=len(made),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=made.eos_token_id,
        pad_token_id=None,  # the embedding of a padding id, here also the end, would have no gradient
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def theirs(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)


def opened(task: Task, start: Path, source: Path, batching: Any = None) -> tuple[Any, list[Any], Any]:
    """(task, the data of its examples in order, the function that makes a batch of them)."""
    data = Data(source=str(source), validation=str(source), batching=batching or LengthBuckets())
    recipe = with_start(Recipe(data=data, task=task, start=str(start), training=Training.parse({"adapt": "whole"})))
    built = task_of_recipe(recipe)
    dataset = built.open(recipe)
    open_reference(built, qkv.load(start).model, dataset.recipe)
    if built.reference is not None:
        with built.reference() as reference:
            reference.double()
    collate = built.collator(dataset.recipe, dataset.vocabulary)
    return built, [example.fields for example in dataset.examples["train"]], collate


def difference(found: float | Tensor, wanted: float | Tensor) -> float:
    """Relative difference, of tensors by their norms."""
    a, b = torch.as_tensor(found).detach(), torch.as_tensor(wanted).detach()
    return float((a - b).norm() / b.norm())


def compare_gradients(folder: Path, task: Any, batches: Iterable[Batch], scale: float, other: nn.Module) -> float:
    """Largest relative difference of a gradient: ours of the summed losses over ``scale``, and those of ``other``."""
    found = load_published(folder)
    model = found.model.double().train()
    for batch in batches:
        (task.summed_loss(model, batch) / scale).backward()
    family = next(each for each in families() if each.name == found.family)
    ours = published_tensors(model, family, found.architecture, gradients=True)
    wanted = {name: p.grad for name, p in other.named_parameters()}
    assert ours.keys() == wanted.keys()
    return max(difference(ours[name], gradient) for name, gradient in wanted.items())


@pytest.mark.parametrize("batching", [BestFit(tokens=96), LengthBuckets()], ids=lambda part: part.kind)
@pytest.mark.parametrize("form", ["messages", "completion"])
def test_chat_training_equals_supervised_fine_tuning(tmp_path: Path, batching: Any, form: str) -> None:
    folder, rows = saved(tmp_path / "start", 1), list[Mapping[str, Any]](TALKS)
    if form == "completion":
        rows = [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in TALKS]
    task, texts, collate = opened(
        Chat(learn="last" if form == "completion" else "answers"),
        folder,
        write(tmp_path / "rows.jsonl", rows),
        batching,
    )
    options = {"completion_only_loss": True} if form == "completion" else {"assistant_only_loss": True}
    args = trl.SFTConfig(output_dir=str(tmp_path / "sft"), gradient_accumulation_steps=2, **QUIET, **options)
    trainer = trl.SFTTrainer(
        theirs(folder), args, train_dataset=datasets.Dataset.from_list(rows), processing_class=words()
    )
    encoded = list(trainer.train_dataset)
    assert [row["input_ids"] for row in encoded] == [text.ids.tolist() for text in texts]
    halves = [slice(0, 2), slice(2, 4)]
    batches = [trainer.data_collator(encoded[half]) for half in halves]
    parts = [collate(texts[half]) for half in halves]
    model = qkv.load(folder).model.double()
    for batch, part in zip(batches, parts, strict=True):
        wanted = trainer.compute_loss(trainer.model, dict(batch))
        assert difference(task.summed_loss(model, part) / part.num_targets, wanted) < NEAR
    inputs, count = trainer.get_batch_samples(iter(batches), 2, torch.device("cpu"))
    assert int(count) == sum(part.num_targets for part in parts)
    trainer.model.zero_grad()
    for batch in inputs:
        trainer.compute_loss(trainer.model, batch, num_items_in_batch=count).backward()
    assert compare_gradients(folder, task, parts, int(count), trainer.model) < GRADIENT


def turns(prompt: str, **answers: str) -> dict[str, Any]:
    """A row of a preference in the form of messages."""
    said = {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}
    return {"prompt": [{"role": "user", "content": prompt}], **said}


ROWS = [turns(prompt, chosen=chosen, rejected=rejected) for prompt, chosen, rejected in PAIRS]
DIRECT = [
    (spec.SigmoidLoss(beta=0.3), {"loss_type": ["sigmoid"], "beta": 0.3}, 3),
    (spec.SigmoidLoss(beta=0.3, label_smoothing=0.1), {"loss_type": ["aot"], "beta": 0.3, "label_smoothing": 0.1}, 1),
    (spec.IPOLoss(beta=0.2), {"loss_type": ["ipo"], "beta": 0.2}, 3),
]


def of_trainer(trainer: Any, rows: Sequence[Any], size: int) -> float:
    """Mean of trl's loss over rows in batches of ``size``; its gradients are left in the model."""
    starts = range(0, len(rows), size)
    total = 0.0
    for i in starts:
        loss = trainer.compute_loss(trainer.model, dict(trainer.data_collator(rows[i : i + size]))) / len(starts)
        loss.backward()
        total += float(loss.detach())
    return total


@pytest.mark.parametrize(("loss", "options", "size"), DIRECT, ids=["sigmoid", "smoothed", "ipo"])
def test_losses_of_pairs_equal_those_of_direct_preference_optimisation(
    tmp_path: Path, loss: Any, options: dict[str, Any], size: int
) -> None:
    start, policy = saved(tmp_path / "start", 1), saved(tmp_path / "policy", 2)
    task, pairs, collate = opened(Preference(loss=loss), start, write(tmp_path / "pairs.jsonl", ROWS))
    args = trl.DPOConfig(output_dir=str(tmp_path / "dpo"), **QUIET, **options)
    trainer = trl.DPOTrainer(
        theirs(policy), theirs(start), args, train_dataset=datasets.Dataset.from_list(ROWS), processing_class=words()
    )
    check(task, policy, collate(pairs), trainer, of_trainer(trainer, list(trainer.train_dataset), size))


def check(task: Any, policy: Path, batch: Batch, trainer: Any, wanted: float) -> None:
    """Compare mean loss and gradients of a batch with the loss and the gradients of trl."""
    found = task.summed_loss(qkv.load(policy).model.double(), batch) / batch.num_targets
    assert difference(found, wanted) < NEAR
    assert compare_gradients(policy, task, [batch], batch.num_targets, trainer.model) < GRADIENT


def test_the_loss_of_single_answers_equals_kto(tmp_path: Path) -> None:
    start, policy = saved(tmp_path / "start", 1), saved(tmp_path / "policy", 2)
    rows = [
        {**turns(prompt, completion=text), "label": text == chosen}
        for prompt, chosen, rejected in PAIRS
        for text in (chosen, rejected)
    ]
    loss = spec.KTOLoss(beta=0.3, desirable_weight=1.2, undesirable_weight=0.8)
    task, answers, collate = opened(Preference(loss=loss), start, write(tmp_path / "rows.jsonl", rows))
    options = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.8, "per_device_train_batch_size": 6}
    args = trl.KTOConfig(output_dir=str(tmp_path / "kto"), **{**QUIET, **options})
    trainer = trl.KTOTrainer(
        theirs(policy),
        theirs(start),
        args,
        train_dataset=datasets.Dataset.from_list(rows[::-1]),
        processing_class=words(),
    )
    check(task, policy, collate(answers), trainer, of_trainer(trainer, list(trainer.train_dataset), 6))


def test_the_loss_without_a_reference_equals_simpo(tmp_path: Path) -> None:
    """trl subtracts γ / β before it multiplies by β, so that its γ is qkv's."""
    cpo: Any = pytest.importorskip("trl.experimental.cpo")
    policy = saved(tmp_path / "policy", 2)
    task, pairs, collate = opened(
        Preference(loss=spec.SimPOLoss(beta=1.5, gamma=0.7)), policy, write(tmp_path / "pairs.jsonl", ROWS)
    )
    options = {"loss_type": "simpo", "beta": 1.5, "simpo_gamma": 0.7, "cpo_alpha": 0.0}
    args = cpo.CPOConfig(output_dir=str(tmp_path / "cpo"), **QUIET, **options)
    trainer = cpo.CPOTrainer(
        theirs(policy), args, train_dataset=datasets.Dataset.from_list(ROWS), processing_class=words()
    )
    check(task, policy, collate(pairs), trainer, of_trainer(trainer, list(trainer.train_dataset), 3))
