"""Specs of tasks on one kind of signal: graphs, series, images."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from qkv.spec.base import Seq, Spec
from qkv.spec.errors import Problem
from qkv.spec.model import Model
from qkv.spec.recipes.task import Needs, Reads, Task


class Consistency(Spec):
    """Consistency loss of predictions under dropout, for nodes with and without a label (GRAND, Feng et al. 2020).

    Each step reads the graph S times with different dropout masks. p_is: prediction for node i in pass s; p̄_i: its mean
    over the passes. The loss is the mean of the S cross-entropies, plus weight / (S n) Σ_s Σ_i |p_is - q_i|² over all n
    nodes of the batch, with q_i ∝ p̄_i^(1 / temperature), which has no gradient.
    """

    samples: int = Field(default=4, ge=2, le=100, description="S, number of times that a step reads the graph")
    weight: float = Field(default=1.0, gt=0)
    temperature: float = Field(default=0.5, gt=0, le=1, description="below 1: q is sharper than the mean")


class NodeClassification(Task, kind="node_classification"):
    """Classification of the nodes of one graph: -Σ log p(label of node i | graph) over the training nodes.

    Metrics: accuracy and macro F1. The whole graph is read, with the nodes of all splits (transductive). Data: a known
    graph, an ``.npz`` file, or ``nodes.csv | edges.csv``.
    """

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    consistency: Consistency | None = Field(
        default=None, description="auxiliary loss for few labels: equal predictions under different dropout; null: none"
    )
    parts: int = Field(
        default=1,
        gt=0,
        description="number of random parts of the nodes, which an epoch reads one by one; for a large graph",
    )
    fold: int = Field(default=0, ge=0, description="index of the split, if the data has several")
    fanouts: Seq[Annotated[int, Field(ge=-1)]] = Field(
        default=(),
        description="maximum number of neighbours per node that a step samples at each hop from training.batch_size "
        "nodes (Hamilton et al. 2017); -1: all; default: the whole graph",
    )

    def problems(self) -> list[Problem]:
        if self.parts == 1 or not self.fanouts:
            return []
        return [
            Problem(("fanouts",), "a batch is a part or is sampled by fanouts; leave task.parts or task.fanouts out")
        ]

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    head: ClassVar[str] = "tokens"

    def model_problems(self, model: Model) -> list[Problem]:
        return _of_graphs(self, model)


class EdgePrediction(Task, kind="edge_prediction"):
    """Prediction of the missing edges of one graph: -Σ log p(edge or not | pair of nodes, other edges), undirected.

    Metrics: AUC, average precision, hits at 20. Held-out edges are removed from the graph that the model reads; an
    equal number of pairs without an edge is sampled. Data: a known graph, an ``.npz`` file, ``nodes.csv | edges.csv``,
    or ``edges.csv``.
    """

    test_fraction: float = Field(default=0.1, ge=0, lt=1, description="fraction of the edges in the test part")
    hidden: float = Field(
        default=0.5, gt=0, lt=1, description="fraction of the training edges that each step hides and predicts"
    )
    negatives: int = Field(default=1, gt=0, le=100, description="pairs without an edge for each hidden edge")

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    head: ClassVar[str] = "edges"

    def model_problems(self, model: Model) -> list[Problem]:
        return _of_graphs(self, model)


def _of_graphs(task: Task, model: Model) -> list[Problem]:
    """Return one error if the model's front end reads no graph; else an empty list."""
    processor = model.frontend.processor
    if processor is not None and processor.of_graphs:
        return []
    sentence = f"the task {task.kind!r} reads a graph, but the front end {model.frontend.kind!r} reads none"
    return [Problem(("frontend",), f"{sentence}; use 'nodes'")]


class Forecasting(Task, kind="forecasting"):
    """Forecasting of time series: the next ``horizon`` values from the last ``context``; loss of the head's form.

    Metrics: MSE and MAE of the standardised values, RMSE and MAE in the units of the data. Columns ``value``, and
    optionally ``time``, ``series`` and ``known``; several names are separated by commas.
    """

    context: int = Field(default=96, gt=0, le=1_000_000, description="steps that the model reads")
    horizon: int = Field(default=24, gt=0, le=1_000_000, description="steps that it forecasts")
    parts: Seq[Annotated[float, Field(gt=0)]] = Field(
        default=(0.7, 0.1, 0.2),
        min_length=2,
        max_length=3,
        description="training, validation and test part in order of time: fractions, or numbers of steps",
    )
    dropped: float = Field(
        default=0.0, ge=0, lt=1, description="fraction of the steps of each window that are left out at random"
    )

    reads: ClassVar[Reads] = "examples"
    head: ClassVar[str] = "forecast"
    reads_signals: ClassVar[bool] = True
    takes_encoder: ClassVar[bool] = True

    def problems(self) -> list[Problem]:
        if max(self.parts) > 1:
            wrong = next((part for part in self.parts if part != int(part)), None)
            sentence = f"{wrong} is no number of steps; give only integers, or fractions whose sum is at most 1"
            return [] if wrong is None else [Problem(("parts",), sentence)]
        total = sum(self.parts)
        return [] if total <= 1 + 1e-9 else [Problem(("parts",), f"the sum of the fractions is {total:g}, above 1")]

    def model_problems(self, model: Model) -> list[Problem]:
        stack, path = (model.encoder, ("encoder", "frontend")) if model.encoder else (model, ("frontend",))
        if stack.frontend.processor is None or stack.frontend.processor.kind != "series":
            return [Problem(path, f"the task 'forecasting' reads series, not {stack.frontend.kind!r}")]
        if model.encoder and model.frontend.kind != "series_steps":
            return [Problem(("frontend",), "a decoder of forecasts reads future steps; use 'series_steps'")]
        inverted = getattr(stack.frontend, "channels", "") == "inverted"
        fits = ("steps",) if model.encoder else ("channels",) if inverted else ("flatten", "mean")
        over = getattr(model.head, "over", fits[0])
        if over in fits:
            return []
        sentence = f"the head reads {over!r}, which the positions of this model are not; use {' or '.join(fits)}"
        return [Problem(("head", "over"), sentence)]


class WaveLoss(Spec):
    """Loss of reconstructed sound: ``wave`` · Σ (y - x)² / Σ x² + ``mel`` · mel distance; ``excerpt``: seconds.

    The mel distance is the mean absolute difference of log10 mel bands at several resolutions (Kumar et al. 2023).
    """

    wave: float = Field(
        default=0.3, ge=0, description="weight of the squared error of the samples relative to their power"
    )
    mel: float = Field(default=1.0, ge=0, description="weight of the mel distance")
    excerpt: float = Field(
        default=0.5, gt=0, le=3600, description="seconds of a sound that a training step reads, at a random place"
    )


class Autoencoding(Task, kind="autoencoding"):
    """Autoencoding through codes: of images, (pixel - reconstruction)² + β (z - code)², means per image; of sound, a
    neural codec with the loss ``sound`` and that of its quantizer.

    Metrics of images: squared error of pixels from 0 to 1, PSNR. Of sound: SI-SDR, mel distance, bits per second. Of
    both: the use of the codes. Column ``image`` or ``sound``.
    """

    sound: WaveLoss = Field(default=WaveLoss(), description="loss of sounds")

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    head: ClassVar[str] = "codebook"

    def model_problems(self, model: Model) -> list[Problem]:
        frontend = model.frontend
        if frontend.processor is not None and frontend.processor.of_sounds:
            pairs = (
                ("frontend", frontend.kind, ("wave_encoder", "spectra")),
                ("head", model.head.kind, ("wave_decoder", "spectrum_decoder")),
            )
            return [
                Problem((name,), f"a codec of sound needs {' or '.join(map(repr, kinds))}, not {kind!r}")
                for name, kind, kinds in pairs
                if kind not in kinds
            ]
        if frontend.cell is None:
            sentence = f"the task {self.kind!r} reads a grid of image patches, but the front end is {frontend.kind!r}"
            return [Problem(("frontend",), f"{sentence}; use 'patches', or 'spectra' for sound")]
        if model.head.kind != self.head:
            return [Problem(("head",), f"an autoencoder of images needs {self.head!r}, not {model.head.kind!r}")]
        if getattr(frontend, "leading", 0):
            sentence = "an autoencoder has one code per patch, and no other positions"
            return [Problem(("frontend",), f"{sentence}; leave class_token and extra_tokens out")]
        if model.merges:
            return [Problem(("blocks",), "an autoencoder has one code per patch; leave merge out")]
        return []


class Speech(Task, kind="speech"):
    """Speech from text: -Σ log p(code of each codebook | voice, text, earlier codes), of the codes of a neural codec.

    Metrics: loss in nats a code, and its perplexity. Columns ``text``, ``sound``, and optionally ``voice``.
    """

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    needs: ClassVar[Needs] = "causal"
    head: ClassVar[str] = "speech_codes"

    def model_problems(self, model: Model) -> list[Problem]:
        if model.frontend.kind == "speech_codes":
            return []
        sentence = f"the task {self.kind!r} does not read {model.frontend.kind!r}; use 'speech_codes'"
        return [Problem(("frontend",), sentence)]


class NextPatch(Task, kind="next_patch"):
    """Generation of images from patches of pixels: -log p(patch_i | start, patch_<i), in nats per pixel value.

    Pixels get uniform noise as wide as one of their 256 levels (dequantisation), so that the density bounds the
    probability of the levels (Theis et al. 2016). Columns ``image`` and, if the start is the label, ``label``.
    """

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    needs: ClassVar[Needs] = "causal"
    head: ClassVar[str] = "mixture"

    def model_problems(self, model: Model) -> list[Problem]:
        processor = model.frontend.processor
        if processor is not None and processor.kind == "image_patches":
            return []
        return [
            Problem(("frontend",), f"the task {self.kind!r} does not read {model.frontend.kind!r}; use 'image_patches'")
        ]
