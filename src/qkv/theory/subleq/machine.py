"""A looped Transformer whose weights, set by hand, carry out SUBLEQ (Giannou et al. 2023).

A round is three blocks. Attention reads, ReLU networks turn what softmax has blurred into bits again and compute:

    fetch    the counter's position reads the cells at counter, counter + 1 and counter + 2: the addresses a, b, c
    load     it reads the cells at a and b, and subtracts
    store    all cells read b and the result from it; the cell at b takes the result, the counter its next value

A cell is addressed by its bits: the score of a cell is lower by ``sharpness`` for every bit in which its address
differs from the one that is asked for, so that the addressed cell gets the weight w = 1 / ((1 + e^-s)^bits + e^(-s
bits / 2)) of the softmax. As long as w > 1/2, a bit that is read is above 1/2 if it is set and below it if not; then
the rounding is exact, and no error grows from round to round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.models.start import ConstructedStart
from qkv.system.errors import UserError
from qkv.theory.subleq.wires import Form, HeadWires, ReluNetwork, StreamFeatures, matrix_of, times, total

LEAST_BITS, MOST_BITS = 3, 10
SHARPNESS = 8.0
"""Default sharpness of the softmax over addresses."""


def addressed_weight(bits: int, sharpness: float) -> float:
    """Return the softmax weight of the cell that is addressed, among 2^bits cells and the counter."""
    return 1.0 / ((1.0 + math.exp(-sharpness)) ** bits + math.exp(-sharpness * bits / 2))


class Wiring:
    """StreamFeatures of the residual stream, and the wires of every branch, for words of ``bits`` bits.

    ``gain``: factor of a bit that was read, minus 1/2, before the units that round it.
    """

    def __init__(self, bits: int, gain: float):
        self.bits, self.gain = bits, gain
        words = {name: bits for name in ("value", "place", "before", "second_before")}
        scratch = ("a", "b", "c", "minuend", "subtrahend", "following", "result", "address", "written")
        sizes = {**words, "counter": 1, "cell": 1, "read": 3 * bits, **dict.fromkeys(scratch, bits)}
        self.features = StreamFeatures({**sizes, "jump": 1, "mismatch": 1})
        self.scratch = (*scratch, "jump", "mismatch")
        self.counter, self.cell = self.features.single("counter"), self.features.single("cell")
        self.size = 1 << bits
        self.one: Form = {self.counter: 1.0, self.cell: 1.0}

    def fetch(self) -> tuple[list[HeadWires], list[ReluNetwork]]:
        """Read the three cells of the instruction; compute the address of the next one."""
        places, into = ("place", "before", "second_before"), self._read(3)
        heads = [self._reader("value", place, part) for place, part in zip(places, into, strict=True)]
        first, second = self._rounding(("a", "b", "c"), self.counter, self.cell)
        first.add_bits(self._bits("value"), 3, self._bits("following"), {self.cell: 1.0})
        return heads, [first, second]

    def load(self) -> tuple[list[HeadWires], list[ReluNetwork]]:
        """Read the cells at a and b; subtract, and decide whether to jump."""
        heads = [self._reader(name, "place", part) for name, part in zip(("a", "b"), self._read(2), strict=True)]
        return heads, [*self._rounding(("subtrahend", "minuend"), self.counter, self.cell), self._subtraction()]

    def store(self) -> tuple[list[HeadWires], list[ReluNetwork]]:
        """Let all cells read b and the result; write the result, and the next value of the counter."""
        values = [*self._bits("b"), *self._bits("result")]
        head = HeadWires([self.one], [{self.counter: 1.0}], values, self.features["read"][: 2 * self.bits])
        first, second = self._rounding(("address", "written"), self.cell, self.counter)
        self._choose_next(first)
        return [head], [first, second, self._comparison(), self._update()]

    def _read(self, count: int) -> list[range]:
        """Return the features that ``count`` heads write into."""
        return [self.features["read"][i * self.bits : (i + 1) * self.bits] for i in range(count)]

    def _reader(self, address: str, place: str, into: Sequence[int]) -> HeadWires:
        """Return a head that reads the value of the cell whose ``place`` is ``address``; bits are compared as ±1."""
        minus = times(-1.0, self.one)
        queries = [total({feature: 2.0}, minus) for feature in self.features[address]]
        keys = [total({feature: 2.0}, {self.cell: -1.0}) for feature in self.features[place]]
        return HeadWires(queries, keys, self._bits("value"), into)

    def _bits(self, name: str) -> list[Form]:
        return [{feature: 1.0} for feature in self.features[name]]

    def _rounding(self, names: Sequence[str], here: int, elsewhere: int) -> tuple[ReluNetwork, ReluNetwork]:
        """Return two networks that round what was read to the bits of ``names``, at positions with the flag ``here``.

        First y = ReLU(gain (x - 1/2)), which is 0, or at least 1 for a bit; then 1 - ReLU(1 - y). One network alone
        would have to subtract two large numbers, and round them.
        """
        first, second = ReluNetwork(self.one), ReluNetwork(self.one)
        places = [feature for name in names for feature in self.features[name]]
        second.add({here: 1.0}, dict.fromkeys(places, 1.0))
        for x, place in zip(self.features["read"], places, strict=False):
            lowered = total(times(-self.gain / 2, self.one), {elsewhere: -self.gain})
            first.add(total({x: self.gain}, lowered), {x: 1.0})
            second.add({here: 1.0, x: -1.0}, {place: -1.0})
        for network in (first, second):
            network.erase(self.features["read"][: len(places)])
        return first, second

    def _subtraction(self) -> ReluNetwork:
        """Return the network that computes the result's bits, and whether it is at most 0: its sign, or all zeros."""
        network, jump, gate = ReluNetwork(self.one), self.features.single("jump"), {self.cell: 1.0}
        pairs = zip(self.features["minuend"], self.features["subtrahend"], strict=True)
        terms: list[Form] = [{b: 1.0, a: -1.0} for b, a in pairs]
        *bits, sign = self._bits("result")
        network.add_bits(terms, 0, [*bits, total(sign, {jump: 1.0})], gate, lift=1)
        difference = total(
            *(times(float(1 << i), term) for i, term in enumerate(terms)), times(-float(self.size), gate)
        )
        for threshold, factor in ((0, 1.0), (1, -1.0)):
            network.add_step(difference, threshold, {jump: factor})
        return network

    def _choose_next(self, network: ReluNetwork) -> None:
        """Write the counter's next value, c after a jump, into the word that is written at the counter's position."""
        jump = self.features.single("jump")
        words = (self.features[name] for name in ("c", "following", "written"))
        for c, following, written in zip(*words, strict=True):
            network.add(total({c: 1.0, jump: 1.0}, times(-1.0, self.one)), {written: 1.0})
            network.add({following: 1.0, jump: -1.0}, {written: 1.0})

    def _comparison(self) -> ReluNetwork:
        """Return the network that counts the bits in which a cell's place differs from the address b."""
        network, mismatch = ReluNetwork(self.one), {self.features.single("mismatch"): 1.0}
        for place, address in zip(self.features["place"], self.features["address"], strict=True):
            network.add({place: 1.0, address: -1.0}, mismatch)
            network.add({address: 1.0, place: -1.0}, mismatch)
        return network

    def _update(self) -> ReluNetwork:
        """Return the network that writes a word where nothing differs, and erases what the next round shall not see."""
        network, mismatch = ReluNetwork(self.one), {self.features.single("mismatch"): -1.0}
        for value, written in zip(self.features["value"], self.features["written"], strict=True):
            network.add(total({written: 1.0, value: -1.0}, mismatch), {value: 1.0})
            network.add(total({value: 1.0, written: -1.0}, mismatch), {value: -1.0})
        for name in self.scratch:
            network.erase(self.features[name])
        return network


class SubleqMachine:
    """Transformer that carries out ``rounds`` SUBLEQ instructions in a forward pass, on 2^bits cells of ``bits`` bits.

    model: ids (B, S + 1) of cells and counter -> logits (B, S + 1, S), the largest at the ids after the instructions.
    The logit of a token is minus the number of bits in which it differs from the word that was computed.

    temperature: of every softmax; queries are scaled by it.   sharpness: see the module; raises ``UserError`` if the
    addressed cell would not get more than half of the weight.   dtype: precision of the weights.
    """

    def __init__(
        self,
        bits: int = 8,
        rounds: int = 1,
        sharpness: float = SHARPNESS,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ):
        check_bits(bits)
        _check_sharpness(bits, sharpness)
        self.bits, self.size, self.sharpness, self.temperature = bits, 1 << bits, sharpness, temperature
        self.spec, self.start = machine_spec(bits, rounds, sharpness, temperature)
        self.model: Transformer = build(self.spec, start=self.start).to(dtype).eval()

    def sentences(self) -> list[str]:
        """Return sentences on the sizes of the machine and the sharpness of its softmax."""
        layers, weight = len(self.spec.blocks), addressed_weight(self.bits, self.sharpness)
        branches = sum(len(block.branches) for block in self.spec.blocks)
        count = sum(weights.numel() for weights in self.model.parameters())
        return [
            f"{self.size} cells of {self.bits} bits and the program counter are {self.size + 1} tokens; a round is "
            f"{layers} blocks with {branches} branches of width {self.spec.width}, {count:,} weights in all.",
            f"At sharpness {self.sharpness:g} the addressed cell gets {weight:.6f} of the softmax; above 1/2 every bit "
            f"is read without error, whatever the temperature, here {self.temperature:g}.",
        ]

    @torch.inference_mode()
    def passes(self, rows: Tensor, count: int = 1) -> Iterator[Tensor]:
        """Yield the ids (B, S + 1) after each of ``count`` forward passes of ``rounds`` instructions."""
        for _ in range(count):
            rows = self.model(rows)[0].argmax(-1)
            yield rows

    def rows(self, row: Sequence[int], steps: int) -> Iterator[list[int]]:
        """Yield ``row`` and the rows after each of at most ``steps`` passes, until one changes nothing."""
        before = list(row)
        yield before
        for (after,) in self.passes(torch.tensor([before]), steps):
            if after.tolist() == before:
                return
            yield (before := after.tolist())


def check_bits(bits: int) -> None:
    """Raise ``UserError`` if words cannot have so many bits."""
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise UserError(f"bits: {bits} given; allowed: {LEAST_BITS} to {MOST_BITS}, for a memory of 2^bits cells")


def _check_sharpness(bits: int, sharpness: float) -> None:
    weight = addressed_weight(bits, sharpness) if sharpness > 0 else 0.0
    if weight <= 0.5:
        raise UserError(
            f"sharpness: {sharpness:g} gives the addressed one of {1 << bits} cells {weight:.2g} of the softmax, and "
            "it needs more than half to be read without error; give more"
        )


def machine_spec(bits: int, rounds: int, sharpness: float, temperature: float) -> tuple[Model, ConstructedStart]:
    """Return the spec of a machine's model, and the start that writes its weights; see ``SubleqMachine``."""
    wiring = Wiring(bits, gain=2.0 / (addressed_weight(bits, sharpness) - 0.5))
    width, blocks, pieces = wiring.features.width, list[dict[str, Any]](), _tables(wiring)
    stages = (wiring.fetch(), wiring.load(), wiring.store())
    for layer, (heads, networks) in enumerate(stages):
        far = bits * (sharpness + 1.0)  # the counter against all cells, at least as sharp as a cell against the others
        logit = far if layer == 2 else sharpness / 2
        attention, more = _attention(heads, layer, width, logit, temperature)
        blocks.append({"branches": [attention, *(network.branch() for network in networks)], "norm": "none"})
        pieces += more
        for branch, network in enumerate(networks, 1):
            pieces += network.pieces(layer, branch, width)
    text = {"kind": "text", "vocab_size": 1 << bits, "positions": "learned"}
    head = {"kind": "language_model", "tied": False}
    sizes = {"width": width, "context_length": (1 << bits) + 1, "rounds": rounds, "norm": "none"}
    spec = Model.parse({**sizes, "frontend": text, "blocks": blocks, "head": head})
    return spec, ConstructedStart.parse({"pieces": pieces, "rest": "zero"})


def _tables(wiring: Wiring) -> list[dict[str, Any]]:
    """Return the pieces of the tables: the bits of tokens and of addresses, and the logits of tokens."""
    size, width = wiring.size, wiring.features.width
    shifts = (("place", 0), ("before", 1), ("second_before", 2))
    tokens = [_bits_of(token, wiring.features["value"]) for token in range(size)]
    places: list[Form] = [
        total({wiring.cell: 1.0}, *(_bits_of((cell - shift) % size, wiring.features[name]) for name, shift in shifts))
        for cell in range(size)
    ]
    logits = [total(times(2.0, bits), times(-float(len(bits)), wiring.one), _minus(wiring)) for bits in tokens]
    tables = {
        "frontend.table": tokens,
        "frontend.positions.table": [*places, {wiring.counter: 1.0}],
        "head": logits,
    }
    return [{"weight": name, "values": matrix_of(forms, width)} for name, forms in tables.items()]


def _minus(wiring: Wiring) -> Form:
    return dict.fromkeys(wiring.features["value"], -1.0)


def _bits_of(token: int, features: Sequence[int]) -> dict[int, float]:
    """Return the form of the features whose bits are set in ``token``, lowest bit first."""
    return {feature: 1.0 for i, feature in enumerate(features) if token >> i & 1}


def _attention(
    heads: Sequence[HeadWires], layer: int, width: int, logit: float, temperature: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (spec, pieces) of an attention branch. logit: logit of one product of a query's and a key's feature."""
    keys, values = len(heads[0].keys), len(heads[0].values)
    sizes = {"num_heads": len(heads), "head_dim": keys, "value_dim": values}
    spec = {"kind": "attention", **sizes, "mask": "full", "bias": False, "temperature": temperature}
    pieces = list[dict[str, Any]]()
    for i, head in enumerate(heads):
        scaled = [times(logit * temperature * keys**0.5, form) for form in head.queries]
        for name, forms in (("q", scaled), ("k", head.keys), ("v", head.values)):
            pieces.append({"layer": layer, "piece": name, "head": i, "values": matrix_of(forms, width)})
        outputs = [list(row) for row in zip(*matrix_of([{f: 1.0} for f in head.into], width), strict=True)]
        pieces.append({"layer": layer, "piece": "heads", "head": i, "values": outputs})
    return spec, pieces
