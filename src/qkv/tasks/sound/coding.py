"""Autoencoding of sound by a neural codec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.processors.sounds import WaveformProcessor
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.sounds.sound_files import player_uri
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.heads.sample_decoder import ReconstructedWave, SampleDecoderHead
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.signals.sound import Waveform
from qkv.spec.tasks import Autoencoding
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.images.autoencoding import usage
from qkv.tasks.inputs import EncodedRow, SignalReader
from qkv.tasks.signal_task import SignalTask, processor_of
from qkv.tasks.sound.wave_distances import distortion_ratios, mel_distances, relative_errors
from qkv.tasks.task import Evaluation, Observed, Scale, Totals

RATE = "rate"
"""Name of the sampling rate in Hz in the extras of a batch."""
_HEARD = 4
"""Number of sounds in the report, each with its reconstructions."""
_MEASURED = 64
"""Number of sounds with which each bit rate is measured."""


class CodedSound(NamedTuple):
    """Results of one sound.

    ratio: SI-SDR in dB; NaN without sound.   distance: mel distance.   uses (K, codes): number of uses of each code.
    """

    ratio: float
    distance: float
    uses: np.ndarray


class BitRate(NamedTuple):
    """Results of all sounds with the first ``codebooks`` codebooks."""

    codebooks: int
    bits_per_second: float
    ratio: float
    distance: float


@implements(Autoencoding, of=Waveform)
class SoundCodingTask(SignalTask):
    """Autoencoding of sound: loss wave · relative error + mel · mel distance + the quantizer's loss, per sample."""

    adds_rows = False  # its loss has means over the batch
    loss_unit = "a sample"
    metric = "mel_distance"
    spec: Autoencoding

    def reconstructed(
        self, model: Transformer, signal: Signal, tap: Tap | None = None, codebooks: int | None = None
    ) -> ReconstructedWave:
        """Reconstruct sounds (B, T), with the first ``codebooks`` codebooks; by default see ``Quantizer``."""
        head = model.head
        assert isinstance(head, SampleDecoderHead)
        wave = head.reconstructed(model.features(signal, tap=tap)[0], codebooks)
        return wave._replace(samples=wave.samples[:, : signal.values.shape[1]])

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return self._loss(self.reconstructed(model, batch.input, tap), batch)

    def _loss(self, wave: ReconstructedWave, batch: Batch) -> Tensor:
        weights, y = self.spec.sound, at_least_single(wave.samples)
        x = at_least_single(batch.targets[:, : y.shape[1]])
        mean = wave.codes.loss
        if weights.wave:
            mean = mean + weights.wave * relative_errors(y, x).mean()
        if weights.mel:
            mean = mean + weights.mel * mel_distances(y, x, batch.extras[RATE]).mean()
        return batch.num_targets * mean

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        wave = self.reconstructed(model, batch.input)
        return Observed(self._loss(wave, batch), batch.num_targets, self._results(model, wave, batch))

    def _results(self, model: Transformer, wave: ReconstructedWave, batch: Batch) -> list[CodedSound]:
        head, lengths = model.head, batch.input.lengths
        assert isinstance(head, SampleDecoderHead)
        sizes = [batch.targets.shape[1]] * len(batch.targets) if lengths is None else lengths.tolist()
        codes, results = head.part.quantizer.codes_each, list[CodedSound]()
        for y, x, ids, size in zip(wave.samples, batch.targets, wave.codes.ids, sizes, strict=True):
            size = min(size, len(y))
            y, x = at_least_single(y[None, :size]), at_least_single(x[None, :size])
            frames = ids[: math.ceil(size / head.hop)].cpu().numpy()
            uses = np.stack([np.bincount(column, minlength=codes) for column in frames.T])
            distance = mel_distances(y, x, batch.extras[RATE]).item()
            results.append(CodedSound(distortion_ratios(y, x).item(), distance, uses))
        return results

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        outcomes: Sequence[CodedSound] = seen.outcomes
        if not outcomes:
            return {"loss": seen.loss / max(1, seen.count)}
        each = [usage(uses) for uses in np.sum([outcome.uses for outcome in outcomes], axis=0)]
        used = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        return {"loss": seen.loss / max(1, seen.count), **_means(outcomes), **used}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        processor = waves_of(dataset.vocabulary)
        fields = [example.fields for example in dataset.examples[split]]
        rows = [fields[i] for i in np.unique(np.linspace(0, len(fields) - 1, _MEASURED).round().astype(int))]
        head = model.head
        rates = [self._bit_rate(model, processor, rows, count) for count in rates_of(head.part.quantizer.codebooks)]
        figures = self.figures(seen, dataset.scale(split)) | {"bits_per_second": rates[-1].bits_per_second}
        silent = [
            mel_distances(torch.zeros(1, len(row.value)), torch.from_numpy(row.value)[None], rate_of(processor))
            for row in rows
        ]
        figures["mel_distance_of_silence"] = float(torch.cat(silent).mean())
        sections = [_rates_section(rates, len(rows), split), self._players(model, processor, rows[:_HEARD], rates)]
        return Evaluation(figures, sections)

    def _bit_rate(
        self, model: Any, processor: WaveformProcessor, rows: Sequence[EncodedRow], codebooks: int
    ) -> BitRate:
        results = list[CodedSound]()
        with torch.inference_mode(), evaluating(model):
            for row in rows:
                batch = self.batch(SignalReader(processor), [row]).to(model.device)
                wave = self.reconstructed(model, batch.input, codebooks=codebooks)
                results += self._results(model, wave, batch)
        head = model.head
        bits = codebooks * head.part.quantizer.bits * rate_of(processor) / head.hop
        means = _means(results)
        return BitRate(codebooks, bits, means["si_sdr"], means["mel_distance"])

    def _players(
        self, model: Any, processor: WaveformProcessor, rows: Sequence[EncodedRow], rates: Sequence[BitRate]
    ) -> dict[str, Any]:
        """Build the report section with sounds to listen to, each followed by its reconstructions."""
        sounds = list[dict[str, str]]()
        with torch.inference_mode(), evaluating(model):
            for number, row in enumerate(rows, 1):
                batch = self.batch(SignalReader(processor), [row]).to(model.device)
                sounds.append(player(batch.targets[0], rate_of(processor), f"{number}: original"))
                for rate in rates:
                    wave = self.reconstructed(model, batch.input, codebooks=rate.codebooks)
                    caption = f"{number}: {rate.bits_per_second:,.0f} bit/s"
                    sounds.append(player(wave.samples[0], rate_of(processor), caption))
        return {"kind": "sounds", "title": "Reconstructions", "sounds": sounds, "columns": 1 + len(rates)}

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        signal, _ = reader.signal(rows)
        count = int(signal.values.numel() if signal.lengths is None else signal.lengths.sum())
        return Batch.of(signal, signal.values, count=count, **{RATE: reader.processor.spec.rate})

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        processor = waves_of(vocabulary)
        most = max(1, round(self.spec.sound.excerpt * rate_of(processor)))

        def change(batch: Batch, rng: np.random.Generator) -> Batch:
            signal, _ = processor.augmented(excerpts(batch.input, most, rng), rng)
            return replace(
                batch, signals={**batch.signals, INPUT: signal}, targets=signal.values, count=signal.values.numel()
            )

        return change

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        reader, answers = self.reader(recipe, vocabulary), list[dict[str, Any]]()
        for example in self.examples(rows, vocabulary, reader):  # one by one: others never change a sound's codes
            batch = self.batch(reader, [example.fields]).to(model.device)
            with torch.inference_mode(), evaluating(model):
                wave = self.reconstructed(model, batch.input)
            (result,) = self._results(model, wave, batch)
            answers.append(
                {
                    "answer": f"SI-SDR {result.ratio:.1f} dB, mel distance {result.distance:.3f}",
                    "si_sdr": result.ratio,
                    "mel_distance": result.distance,
                    "codes": wave.codes.ids[0].tolist(),
                }
            )
        return answers


def waves_of(vocabulary: Vocabulary) -> WaveformProcessor:
    """Return the processor of a run on waveforms. Raises ``UserError`` if the run has none."""
    processor = processor_of(vocabulary)
    assert isinstance(processor, WaveformProcessor)
    return processor


def rate_of(processor: WaveformProcessor) -> int:
    """Return the sampling rate of a fitted processor, in Hz."""
    assert processor.spec.rate is not None
    return processor.spec.rate


def excerpts(signal: Signal, most: int, rng: np.random.Generator) -> Signal:
    """Return excerpts (B, ≤ ``most``) of sounds (B, T), each at a random place; shorter sounds end in silence."""
    sizes = [signal.values.shape[1]] * signal.num_rows if signal.lengths is None else signal.lengths.tolist()
    starts = [int(rng.integers(0, max(0, size - most) + 1)) for size in sizes]
    rows = [row[start : min(size, start + most)] for row, start, size in zip(signal.values, starts, sizes, strict=True)]
    return Signal(pad_sequence(rows, batch_first=True))


def rates_of(codebooks: int) -> list[int]:
    """Return the numbers of codebooks at which a codec is measured: powers of two, and all of them."""
    return [*(2**i for i in range(codebooks.bit_length()) if 2**i < codebooks), codebooks]


def player(samples: Tensor, rate: int, caption: str) -> dict[str, str]:
    """Build a player of a report: its sound as a data URI, and its caption."""
    values = at_least_single(samples.detach().cpu()).to(torch.float32).numpy()
    return {"source": player_uri(Sound(values.clip(-1, 1), rate)), "caption": caption}


def _means(outcomes: Sequence[CodedSound]) -> dict[str, float]:
    ratios = [outcome.ratio for outcome in outcomes if math.isfinite(outcome.ratio)]
    return {
        "si_sdr": float(np.mean(ratios)) if ratios else math.nan,
        "mel_distance": float(np.mean([outcome.distance for outcome in outcomes])),
    }


def _rates_section(rates: Sequence[BitRate], count: int, split: str) -> dict[str, Any]:
    """Build the report section with the results at each bit rate."""
    rows = [[rate.codebooks, rate.bits_per_second, rate.ratio, rate.distance] for rate in rates]
    columns = ["codebooks", "bits per second", "SI-SDR, dB", "mel distance"]
    note = f"{count} sounds of the {split} split, coded with the first codebooks"
    return {"kind": "examples", "title": "Bit rates", "note": note, "columns": columns, "rows": rows}
