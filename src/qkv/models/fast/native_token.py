"""Decoding of a few tokens in one native call from ids to logits, for models whose parts the library all supports.

    token ─ embedding ─ blocks ─ norm ─ output matrix ─ logits      one call, instead of one for the blocks

After the blocks, the processor caches hold weights, not the code of Python and torch. With one call instead of two, a
token of GPT-2 124M therefore takes 0.7 ms less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from qkv.frontends.frontend import Past
from qkv.frontends.text import TextFrontend
from qkv.layers.norms import NoNorm
from qkv.layers.signal import Signal
from qkv.models.fast.native_parts import beyond
from qkv.models.fast.native_step import NativeStep, Unknown, refuse_beyond, step_of
from qkv.models.heads.head import LanguageModelHead
from qkv.models.state import Decoded, State
from qkv.ops.native import library
from qkv.ops.native.step import LOGITS, NORMED, STREAM
from qkv.state.arrival import Arrival, Counts

Embed = Callable[[], Tensor]
"""Function without arguments that returns the embedded tokens, (M, D)."""


class NativeToken(NativeStep):
    """Decoding step from tokens to logits. parts: front end, blocks, final norm, head.

    The embedding is computed in Python before the call if the library does not support it. Any other unsupported part
    is named in ``unknown``.
    """

    covers = "a whole token"
    embeds = False
    """True if the native call computes the embedding."""

    def __call__(  # type: ignore[override]
        self, tokens: Sequence[int], arrival: Arrival, state: Sequence[Any], embed: Embed
    ) -> Tensor:
        """Return the logits (M, V) after each of M ``tokens``, and append the new keys and values to ``state``.

        tokens: ids of all rows, row by row.   embed: function that computes the embedding if the native call does not.
        """
        return self._run(LOGITS, arrival, state, None if self.embeds else embed(), tokens)

    def _build(self, parts: Sequence[nn.Module]) -> None:
        frontend, *blocks, norm, head = parts
        self._modules += [frontend, head]
        if type(head) is not LanguageModelHead:
            raise Unknown(f"the head {type(head).__name__}")
        refuse_beyond(head.part)
        self.embeds = self._embed(frontend)
        self._add_blocks(blocks)
        matrix = self._table(head.weight, head.bias)
        self.steps.normalise(self._norm(norm), matrix.inner, STREAM, NORMED)
        self.steps.multiply(matrix, NORMED, LOGITS)

    def _embed(self, frontend: nn.Module) -> bool:
        """Add the step of the embedding; return False if the library does not support it."""
        if type(frontend) is not TextFrontend or type(frontend.norm) is not NoNorm or beyond(frontend.part):
            return False
        place: Any = frontend.positions
        if place is not None and not place.table.is_contiguous():
            return False
        self._modules += [frontend.norm]
        table = self._table(frontend.table)
        if place is None:
            self.steps.embed(table)
        else:
            self._modules.append(place)
            self.steps.embed(table, self._table(place.table).stored, place.offset)
        return True


_made: WeakKeyDictionary[nn.Module, NativeToken] = WeakKeyDictionary()


def decode(model: Any, tokens: Sequence[Sequence[int]], state: State) -> Decoded | None:
    """Decode ``tokens`` in one native call, like ``Transformer.decode``; return None if the library does not support
    it.

    Return None also if the ids or their number are invalid: the model's own modules then raise the error.
    """
    size = model.vocab_size
    if _unsupported(model) or size is None or len(tokens) != len(state.positions):
        return None
    arrival = _arrival(state.positions, tokens)
    step = step_of(_made, model, _parts(model), arrival, state.blocks, NativeToken)
    flat = [token for row in tokens for token in row]
    if step is None or not all(0 <= token < size for token in flat):
        return None
    model.frontend.call_guards()
    model.frontend.admit(arrival, state.limit)

    def embed() -> Tensor:
        signal = Signal.of_rows(tokens, model.device)
        return signal.unpadded(model.embed(signal, Past(state.positions, state.limit, None))[0])

    logits = step(flat, arrival, state.blocks, embed)
    return Decoded(logits, state._replace(positions=arrival.after))


def decoding_path(model: Any) -> str:
    """Describe how ``model.decode`` runs: "one native call a token", or "part by part" and the reason."""
    obstacle = _obstacle(model)
    return f"part by part: {obstacle}" if obstacle else "one native call a token"


def _obstacle(model: Any) -> str:
    """Return the reason why ``model.decode`` cannot run natively; "" if it can."""
    if lacking := _unsupported(model):
        return lacking
    if not library.available():
        return f"the native library does not run here: {library.described()}"
    if model.training:
        return "the model is in training mode"
    step, parts = _made.get(model), _parts(model)
    if step is None or not step.current(parts):
        step = NativeToken(parts)
    if step.unknown:
        return f"the native library lacks {step.unknown}"
    return "a module has a hook, which runs only when the module is called" if step.fingerprint.heard() else ""


def _unsupported(model: Any) -> str:
    """Return what the library does not support around the model's sequence of modules; "" if it supports all."""
    if model.tap is not None:
        return "a tap receives values inside the model"
    beside = {"a segmentation": model.segmentation, "latents": model.latents}
    lacking = next((name for name, part in beside.items() if part is not None), None)
    if lacking is not None:
        return f"the model has {lacking}"
    if model.depth_average is not None or model.reversible:
        return "the native library lacks averages over depth and reversible blocks"
    return ""


def _parts(model: Any) -> tuple[nn.Module, ...]:
    """Return the modules from tokens to logits, in the order of execution: front end, blocks, final norm, head."""
    return (model.frontend, *model.walked, model.norm, model.head)


def _arrival(past: Counts, tokens: Sequence[Sequence[int]]) -> Arrival:
    """Describe the positions of new ``tokens`` of each row; ``past``: positions already read."""
    counts = Counts(map(len, tokens))
    most = max(counts, default=0)
    return Arrival(past, most, None if counts.count(most) == len(counts) else counts)
