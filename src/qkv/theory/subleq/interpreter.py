"""SUBLEQ, a computer with one instruction: the rules, which a model has to follow.

A row of tokens is the whole state: the cells 0 … S - 1 of the memory, then the program counter; S = 2^bits cells of
``bits`` bits. An instruction is three cells, a, b and c:

    memory[b] ← memory[b] - memory[a];   go to c if the result is at most 0, else to the next instruction

Numbers are in two's complement, and numbers and addresses are counted modulo S, so that every row has a next one.
Program and numbers share the memory: a program can change itself. One that jumps to an instruction which changes
nothing and jumps to itself has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Instruction(NamedTuple):
    """Instruction that was carried out. Tokens: its address, operands, and memory[a], memory[b] before, memory[b]
    after.   following: the next counter.
    """

    address: int
    a: int
    b: int
    c: int
    subtrahend: int
    minuend: int
    result: int
    following: int


def signed(token: int, size: int) -> int:
    """Return the number that a token of a memory of ``size`` cells means: from -size / 2 to size / 2 - 1."""
    return token - size if token >= size // 2 else token


def next_row(row: Sequence[int]) -> list[int]:
    """Return the tokens after one instruction."""
    *memory, counter = row
    size = len(memory)
    a, b, c = (memory[(counter + i) % size] for i in range(3))
    memory[b] = (memory[b] - memory[a]) % size
    return [*memory, c if signed(memory[b], size) <= 0 else (counter + 3) % size]


def interpret(row: Sequence[int], steps: int) -> Iterator[list[int]]:
    """Yield ``row`` and the rows after each of at most ``steps`` instructions, until one changes nothing."""
    before = list(row)
    yield before
    for _ in range(steps):
        after = next_row(before)
        if after == before:
            return
        yield (before := after)


def instructions_between(rows: Sequence[Sequence[int]]) -> list[Instruction]:
    """Return the instruction that was carried out between each row and the next, read from the rows alone."""
    return [_instruction(before, after) for before, after in pairwise(rows)]


def _instruction(before: Sequence[int], after: Sequence[int]) -> Instruction:
    size, address = len(before) - 1, before[-1]
    a, b, c = (before[(address + i) % size] for i in range(3))
    return Instruction(address, a, b, c, before[a], before[b], after[b], after[-1])
