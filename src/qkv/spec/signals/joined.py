"""Spec of the front end of several named inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field

from qkv.spec.base import ByName
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Frontend, Text
from qkv.spec.processors import Processor


class Joined(Text, kind="joined"):
    """Several named inputs in one row: tokens, and values of other inputs such as pictures, in the order of the data.

    The front end of an input maps a value to vectors at one or more positions of the row, in place of token embeddings
    (as in LLaVA, Liu et al. 2023). ``positions`` are the positions in the row. Without a text, the table of token
    embeddings has one row, for padding.
    """

    inputs: ByName[Frontend] = Field(default={}, description="front end of each input except the text, by name")

    @property
    def inputs_read(self) -> Mapping[str, Frontend]:
        return self.inputs

    def of_processors(self, processors: Mapping[str, Processor]) -> Self:
        fitted = dict[str, Frontend]()
        for name, frontend in self.inputs.items():
            try:
                fitted[name] = frontend.fitted(processors[name]) if name in processors else frontend
            except SpecError as error:
                raise SpecError([problem.under("inputs", name) for problem in error.problems]) from None
        return self.changed(inputs=fitted)

    def unsized(self) -> Self:
        plain = {name: frontend.unsized() for name, frontend in self.inputs.items()}
        return super().unsized().changed(inputs=plain)

    def canonical(self, width: int) -> Self:
        alike = {name: frontend.canonical(width) for name, frontend in self.inputs.items()}
        return super().canonical(width).changed(inputs=alike)

    def width_problems(self, width: int) -> list[Problem]:
        vector_width = self.vector_width(width)
        inner = [
            Problem(("frontend", "inputs", name, *problem.path), problem.sentence)
            for name, frontend in self.inputs.items()
            for problem in frontend.width_problems(vector_width)
        ]
        return [*super().width_problems(width), *inner]

    def problems(self) -> list[Problem]:
        wrong = next((name for name, each in self.inputs.items() if each.processor is None), None)
        problems = list[Problem]()
        if wrong is not None:
            sentence = f"{self.inputs[wrong].kind!r} does not read the values of a processor, so it cannot be joined"
            problems.append(Problem(("inputs", wrong), sentence))
        if self.query:
            problems.append(Problem(("query",), "here, ids below 0 are the placeholders of other inputs; leave it out"))
        return [*super().problems(), *problems]
