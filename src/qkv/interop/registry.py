"""Every published family that qkv knows; a new one is a file in ``families`` and a line here."""

from __future__ import annotations

from qkv.interop.families.gpt2 import GPT2
from qkv.interop.family import Family

FAMILIES: tuple[Family, ...] = (GPT2,)
