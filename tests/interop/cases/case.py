"""What a family's list of cases is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Case:
    """A class of the transformers library and the config that it is built from, of small and unusual sizes.

    ``lengths``: of the rows of a batch (of the sources, for an encoder–decoder).
    ``steps``: tokens that decoders write.
    ``renamed``: what the class calls a parameter that its files hold under another name; several if the files hold
    them joined by rows.
    ``attention``: how that library computes it.
    ``trains``: True if that library has gradients in training alone.
    ``cached``: False if one of the two writes other tokens with a cache than without: then both read the whole text
    again for each token, after the first four of a row.
    ``left``: False if that library counts padding on the left as positions; then no row is padded there.
    ``computed``: ends of names of constants that the library computes where a file lacks them, such as sinusoids.
    ``joined``: turns tensors of its files into the parameters of the class, such as experts that it holds as one.
    """

    name: str
    model: type[Any]
    config: Any
    lengths: tuple[int, ...] = (9, 1, 5)
    steps: int = 14
    renamed: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    attention: str = "eager"
    trains: bool = False
    cached: bool = True
    left: bool = True
    computed: tuple[str, ...] = ()
    joined: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict

    def __str__(self) -> str:
        return self.name
