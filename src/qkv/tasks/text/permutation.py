"""Permutation language modelling with two streams, as one sequence through the ordinary stack.

    x  =  h_1 … h_N  g_1 … g_T          h: the text,  g: query vectors, one for each of the T targets
    positions  0 … N-1  p_1 … p_T       p: positions of the targets

h attends to h as the order allows, g attends to the h that come earlier in the order, and nothing attends to g. All
layers apply the same weights to g and h, and keys and values come from h: the two-stream attention of Yang et al.
(2019, section 2.3). The initial query vector w is the front end's ``query``, or else the embedding of ``<mask>``. XLNet
uses Transformer-XL's relative positions; this implementation uses the positions that the recipe sets, by the
attention's ``relative`` or the front end. Queries are computed only for targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import IGNORED, Batch
from qkv.data.corpora.corpus import Corpus
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.heads.language_loss import loss_of_vectors
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Permutation
from qkv.tasks.objectives.permutation import PermutationBatch, arrange, permutation_targets
from qkv.tasks.task import Observed, Scale, Totals
from qkv.tasks.text.fill_in import FillInTask
from qkv.tasks.text.masked_tokens import padding
from qkv.tasks.text.next_token import at_targets, exponential
from qkv.tasks.text.text_task import Changes
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer


@implements(Permutation)
class PermutationTask(FillInTask):
    """Permutation language modelling (XLNet): -Σ log p(x_i | tokens before i in a random order), over the targets i."""

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_specials(("mask",))

    def changes(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Changes:
        mask = tokenizer.special("mask")
        assert mask is not None
        query = recipe.model.frontend.asking(mask)

        def order(batch: Batch, rng: np.random.Generator) -> Batch:
            padded = padding(batch)
            return streams(
                permutation_targets(
                    batch.input.values.numpy(), padded, rng, self.spec.rate, self.spec.max_span, padded
                ),
                query,
            )

        return order

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        hidden, _ = model.features(batch.input, tap=tap)
        return loss_of_vectors(model, *at_targets(hidden, batch.targets), tap=tap)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return Observed(self.summed_loss(model, batch), batch.num_targets, [])

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        loss = seen.loss / seen.count if seen.count else math.nan
        return {"loss": loss, "perplexity": exponential(loss)}

    def logits(self, model: Transformer, read: Framed, places: list[int]) -> Tensor:
        """Compute logits (len(places), V) at the gaps, filled from left to right.

        Each gap is filled with its most probable token before the next gap is predicted.
        """
        ids, rows, device = np.array([read.ids]), [], model.device
        mask = read.ids[places[0]]
        for number, place in enumerate(places):
            batch = streams(_gaps(ids, places, number), model.frontend.part.asking(mask)).to(device)
            types = torch.tensor([[*read.types, read.types[place]]], device=device) if read.types else None
            hidden, _ = model.features(replace(batch.input, types=types))
            (vector,), _ = at_targets(hidden, batch.targets)
            logits = at_least_single(model.head(vector[None])[0])
            logits[mask] = -torch.inf
            ids[0, place] = int(logits.argmax())
            rows.append(logits)
        return torch.stack(rows)


def streams(batch: PermutationBatch, query: int) -> Batch:
    """Concatenate the ids of text and queries to (B, N + T), with positions, and a mask that follows the order.

    Rows with fewer than T targets are padded with queries at position 0 that have no target. ``query``: input id of
    the query vector.
    """
    rows, length = batch.ids.shape
    mask = batch.targets != IGNORED
    many = max(1, int(mask.sum(axis=1).max(initial=0)))
    places = np.argsort(~mask, axis=1, kind="stable")[:, :many]
    real = np.arange(many) < mask.sum(axis=1, keepdims=True)
    places = np.where(real, places, 0)
    row = np.arange(rows)[:, None]
    visible = np.zeros((rows, length + many, length + many), bool)
    visible[:, :length, :length] = batch.content_mask
    visible[:, length:, :length] = batch.query_mask[row, places]
    ids = np.concatenate((batch.ids, np.full((rows, many), query)), axis=1)
    targets = np.concatenate(
        (np.full((rows, length), IGNORED), np.where(real, batch.targets[row, places], IGNORED)), axis=1
    )
    positions = np.concatenate((np.broadcast_to(np.arange(length), (rows, length)), places), axis=1)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in (ids, targets, positions, visible)]
    return Batch.of(Signal(tensors[0], positions=tensors[2], visible=tensors[3]), tensors[1])


def _gaps(ids: np.ndarray, places: Sequence[int], number: int) -> PermutationBatch:
    """Build a one-row batch that predicts gap ``number`` from the tokens outside ``places`` and earlier gaps."""
    chosen = np.zeros(ids.shape, bool)
    chosen[0, list(places)] = True
    priority = np.zeros(ids.shape)
    priority[0, list(places)] = np.arange(len(places))
    arrangement = arrange(ids, chosen, priority)
    targets = np.full(ids.shape, IGNORED)
    targets[0, places[number]] = 0
    return PermutationBatch(ids, targets, arrangement.order, arrangement.content_mask, arrangement.query_mask)
