"""Nearest training rows beside a model that writes captions: kept before training, compared with it afterwards."""

from __future__ import annotations

from collections.abc import Callable

from qkv.data.corpora.corpus import VALIDATION
from qkv.models.nearest import Nearest
from qkv.models.transformer import Transformer
from qkv.models.wide import DEEP, WIDE
from qkv.tasks.dataset import ExampleDataset
from qkv.tasks.multimodal.captioning import CaptioningTask
from qkv.training.race.contestants import Contestant, deep_name


def keep_rows(model: Transformer, task: CaptioningTask, dataset: ExampleDataset) -> list[str]:
    """Keep the training rows in the wide path; return notices."""
    return [f"the captions of {task.fit_nearest(dataset):,} training rows are kept, to be found by similar features"]


def join_nearest(
    model: Transformer,
    task: CaptioningTask,
    dataset: ExampleDataset,
    precision: str,
    stop: Callable[[], bool],
    name: str,
) -> list[Contestant] | None:
    """Choose between the model, called ``name``, and the nearest training rows by the task's metric on the validation
    split; return both, the better first. None if ``stop`` returned True. A tie is won by the model.
    """
    assert isinstance(task.wide, Nearest)
    rows, contestants = dataset.records[VALIDATION], list[Contestant]()
    for label, path in ((deep_name(model, name), DEEP), ("nearest neighbour", WIDE)):
        if stop():
            return None
        factors = float(path == DEEP), float(path == WIDE)
        task.wide.set_share(*factors)
        written = task.write(model, dataset.vocabulary, dataset.recipe, rows)
        contestants.append(Contestant(label, *factors, task.compare(written, rows).figures))
    order = sorted(contestants, key=lambda each: -each.figures[task.metric])
    task.wide.set_share(order[0].deep, order[0].wide)
    return order
