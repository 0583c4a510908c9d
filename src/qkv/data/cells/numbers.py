"""Numbers in the cells of a column, which share one convention: decimal mark, thousands separator, currency or
percent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from qkv.spec.data import Decimal

MISSING = frozenset(
    (
        *("", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "nat", "null", "none", "nil", "missing", "#n/a n/a", "#na"),
        *("-", "--", "---", "–", "—", ".", "?", "1.#qnan", "-1.#ind"),
    )
)
"""Lower-case texts that mean an empty cell in a column of numbers."""
SMALL_SHARE = 0.05
"""Fraction of unreadable cells above which a column is refused."""
_FEW = 3
_CURRENCIES = (
    *("$", "€", "£", "¥", "₹", "₽", "₩", "₺", "₫", "฿", "₪", "₴", "R$", "US$", "A$", "C$", "NZ$", "HK$", "S$"),
    *("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "NZD", "SEK", "NOK", "DKK", "PLN", "CZK", "HUF", "INR", "CNY"),
    *("RMB", "BRL", "MXN", "ZAR", "KRW", "SGD", "HKD", "TRY", "RUB", "kr.", "kr", "zł", "Fr.", "Rs.", "Rs", "Ft", "Kč"),
)
_PERCENT = ("%", "‰")
_UNIT = "|".join(re.escape(unit) for unit in sorted((*_CURRENCIES, *_PERCENT), key=len, reverse=True))
_CELL = re.compile(
    rf"(?P<sign>[-+(])?\s*(?P<before>{_UNIT})?\s*(?P<inner>[-+(])?\s*"
    rf"(?P<body>\d[\d.,' ]*|[.,]\d+)(?P<exponent>[eE][-+]?\d+)?"
    rf"\s*(?P<close>[-)])?\s*(?P<after>{_UNIT})?\s*(?P<last>[-)])?"
)
_LIKE = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "’": "'", "´": "'", "`": "'", "−": "-"})
"""Characters that are replaced by a similar character: spaces of several widths, apostrophes, and the minus sign."""
_THREE = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
"""Pattern of a number such as 1.234 or 1,234, whose mark separates either thousands or decimals."""


class _Parts(NamedTuple):
    negative: bool
    body: str
    exponent: str
    unit: str


class NumberForm(NamedTuple):
    """Number format of a column: ``decimal`` mark, ``thousands`` separator or "", and ``unit``, which is dropped.

    ``example``: cell that shows the format, "" if all cells are plain; ``question``: cell that fits another format as
    well, "" if there is none.
    """

    decimal: str = "."
    thousands: str = ""
    unit: str = ""
    example: str = ""
    question: str = ""

    def read(self, cell: Any) -> float:
        """Return the finite number in a cell; NaN if the cell holds no number in this format."""
        if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
            return math.nan
        if not isinstance(cell, str):
            return _finite(cell)
        parts = _split(cell)
        if parts is None or not _matches(parts.body, self.decimal, self.thousands):
            return math.nan
        digits = parts.body.replace(self.thousands, "") if self.thousands else parts.body
        number = _finite(digits.replace(self.decimal, ".") + parts.exponent)
        if parts.unit != self.unit and (parts.unit or (self.unit in _PERCENT and number != 0)):
            return math.nan
        return -number if parts.negative else number

    def note(self, name: str) -> str:
        """Return a sentence on how the numbers of the column ``name`` are read; "" if they are plain."""
        if not self.example:
            return ""
        return f"numbers of {name!r} are read with {self._words}, such as {self.example!r} as {self._format_example}"

    @property
    def _words(self) -> str:
        names = {",": "a comma", ".": "a point", " ": "a space", "'": "an apostrophe"}
        parts = [f"{names[self.decimal]} before decimals"]
        if self.thousands:
            parts.append(f"{names[self.thousands]} between thousands")
        return " and ".join([*parts, *([f"{self.unit!r} left out"] if self.unit else [])])

    @property
    def shows(self) -> bool:
        """True if a cell determines the decimal mark."""
        return bool(self.example) and not self.question and any(mark in self.example for mark in ".,")

    @property
    def _format_example(self) -> str:
        return f"{self.read(self.example):.15g}"

    def doubt(self, name: str, option: str) -> str:
        """Return the error text for a column that can be read in two ways. ``option``: name of the option that decides,
        or "".
        """
        digits = self.question.strip()
        ways = (NumberForm(mark, other, self.unit).read(digits) for mark, other in (".,", ",."))
        way_out = f"give {option}=point or {option}=comma, the mark before decimals"
        return (
            f"the numbers of the column {name!r} can be read in two ways: {digits!r} as "
            f"{' or as '.join(f'{way:.15g}' for way in ways)}; "
            f"{way_out if option else 'write them without marks between thousands'}"
        )


_FORMS = tuple(
    (decimal, thousands) for thousands in ("", ",", ".", " ", "'") for decimal in ".," if decimal != thousands
)


def number_form(cells: Iterable[Any], decimal: Decimal | None = None) -> NumberForm:
    """Return the number format that reads most cells of a column. ``decimal``: decimal mark to use if two formats are
    possible.

    If all marks stand before exactly three digits, they are ambiguous. A comma then separates thousands, but it is a
    ``question`` unless all integers without a mark are smaller than 1,000 and some exceed 99. A point separates
    thousands if these integers are smaller than 1,000, all exceed 99 or are 0, and are far above the numbers with a
    point read as fractions; otherwise it is a decimal point.
    """
    texts = [cell for cell in cells if isinstance(cell, str) and not is_empty(cell)]
    if _are_plain(texts):
        return NumberForm()
    split = [(text, parts) for text in texts if (parts := _split(text)) is not None and _is_number(parts.body)]
    unit = _unit_of([parts.unit for _, parts in split])
    shapes = Counter(_shape(parts.body) for _, parts in split)
    counts = {form: sum(n for shape, n in shapes.items() if _matches(shape, *form)) for form in _FORMS}
    best = [form for form in _FORMS if counts[form] == max(counts.values())]
    point, comma = (next((form for form in best if form[0] == mark), None) for mark in ".,")
    marked = next((text for text, parts in split if "," in parts.body or "." in parts.body), "")
    if point is None or comma is None or not marked:
        reading = _with_example(NumberForm(*(point or comma or _FORMS[0]), unit), split)
        few = (1 - SMALL_SHARE) * max(counts.values())
        return reading._replace(question=_contradiction(reading, split, few)) if decimal is None else reading
    if decimal is not None:
        return _with_example(NumberForm(*(point if decimal == "point" else comma), unit), split)
    chosen, question = _decide([parts.body for _, parts in split])
    reading = _with_example(NumberForm(*(point if chosen == "." else comma), unit), split)
    return reading._replace(question=marked if question else "", example=reading.example or marked)


def _decide(bodies: Sequence[str]) -> tuple[str, bool]:
    """Return (decimal mark, whether it is uncertain) of numbers that have at most one mark, always before three
    digits.
    """
    marks = {mark for body in bodies for mark in ".," if mark in body}
    plain = [int(body) for body in bodies if body.isdecimal()]
    small = bool(plain) and max(plain) < 1000
    if marks == {","}:
        return ".", not (small and max(plain) > 99)
    if marks == {"."}:
        fractions = sorted(float(body) for body in bodies if "." in body)
        above = small and all(each > 99 or each == 0 for each in plain) and max(plain) > 99
        grouped = above and 10 * fractions[len(fractions) // 2] < sorted(plain)[len(plain) // 2]
        return "," if grouped else ".", False
    return ".", True


def _contradiction(form: NumberForm, split: Sequence[tuple[str, _Parts]], least: float) -> str:
    """Return a cell whose mark probably separates thousands, although a few other cells use the same mark before
    decimals.

    "" if there is none. ``least``: minimum number of cells that can be read with thousands.
    """
    if form.thousands in (",", "."):
        return ""
    bodies = [parts.body for _, parts in split if parts.body.isdecimal() or _THREE.fullmatch(parts.body)]
    if len(bodies) < max(2, least) or not any(form.decimal in body for body in bodies):
        return ""
    chosen, question = _decide(bodies)
    first = next(text for text, parts in split if _THREE.fullmatch(parts.body))
    return "" if question or chosen == form.decimal else first


class Numbers(NamedTuple):
    """Numbers of a column, NaN where a cell has none; ``wrong``: indices of cells that are neither empty nor a
    number.
    """

    values: list[float]
    wrong: list[int]
    form: NumberForm


def read_numbers(
    cells: Sequence[Any], decimal: Decimal | None = None, missing: frozenset[str] = frozenset()
) -> Numbers:
    """Read all cells of a column in one number format; ``missing``: further texts that mean an empty cell."""
    cells = [None if is_empty(cell) or (isinstance(cell, str) and cell.strip() in missing) else cell for cell in cells]
    form = number_form(cells, decimal)
    values = [math.nan if cell is None else form.read(cell) for cell in cells]
    wrong = [i for i, cell in enumerate(cells) if cell is not None and values[i] != values[i]]
    return Numbers(values, wrong, form)


def too_many(wrong: int, cells: int) -> bool:
    """Return True if too many cells cannot be read: more than 5 % and more than three cells, or more than half."""
    return wrong > max(_FEW, SMALL_SHARE * cells) or 2 * wrong > cells


def like_number(text: str) -> bool:
    """Return True if a text can be a number in some convention."""
    parts = _split(text)
    return parts is not None and _is_number(parts.body)


def is_empty(cell: Any) -> bool:
    """Return True for a missing value, NaN, or a text that means an empty cell in a column of numbers."""
    if isinstance(cell, str):
        return (len(cell) < 10 and cell.strip().lower() in MISSING) or not cell.strip()
    return cell is None or (isinstance(cell, float) and cell != cell)


def _are_plain(texts: Sequence[str]) -> bool:
    """Return True if all texts are numbers as programs write them, and no point can separate thousands."""
    fractions = False
    try:
        for text in texts:
            if not math.isfinite(float(text)) or "_" in text:
                return False
            fractions = fractions or ("." in text and _THREE.fullmatch(text.strip().lstrip("+-")) is None)
    except (ValueError, OverflowError):
        return False
    return fractions or not any("." in text for text in texts)


def _split(text: str) -> _Parts | None:
    match = _CELL.fullmatch(text.strip().translate(_LIKE))
    if match is None:
        return None
    signs = "".join(match[name] or "" for name in ("sign", "inner", "close", "last"))
    units = [unit for unit in (match["before"], match["after"]) if unit]
    if signs not in ("", "+", "-", "()") or len(units) > 1:
        return None
    return _Parts(signs in ("-", "()"), match["body"].strip(), match["exponent"] or "", *units or [""])


def _shape(body: str) -> str:
    """Replace the digits of a number by 9, except for leading zeros."""
    zeros = len(body) - len(body.lstrip("0"))
    return body[:zeros] + re.sub(r"\d", "9", body[zeros:])


def _matches(body: str, decimal: str, thousands: str) -> bool:
    whole, mark, fraction = body.partition(decimal)
    if mark and not (fraction.isdecimal() or (not fraction and decimal == "." and whole)):
        return False
    if not whole:
        return bool(fraction)
    if whole.isdecimal():
        return True
    first, *groups = whole.split(thousands) if thousands else [whole]
    if not first.isdecimal() or first.startswith("0") or not groups or not all(map(str.isdecimal, groups)):
        return False
    lengths = [len(group) for group in groups]
    indian = thousands == "," and len(first) < 3 and lengths[-1] == 3 and set(lengths[:-1]) <= {2}
    return len(first) < 4 and (set(lengths) == {3} or indian)


def _is_number(body: str) -> bool:
    return any(_matches(body, *form) for form in _FORMS)


def _unit_of(units: Sequence[str]) -> str:
    """Return the unit of a column: percent if at least half of the cells have it, else the most frequent currency."""
    counts = Counter(unit for unit in units if unit)
    unit = max(counts, key=counts.__getitem__, default="")
    return "" if unit in _PERCENT and 2 * counts[unit] < len(units) else unit


def _with_example(form: NumberForm, split: Sequence[tuple[str, _Parts]]) -> NumberForm:
    """Return ``form`` with its example: the first cell that ``float`` does not read in the same way, if possible a cell
    with a point or comma.
    """
    odd = [text for text, _ in split if (number := form.read(text)) == number and _as_program(text) != number]
    marked = (text for text in odd if "," in text or "." in text)
    return form._replace(example=next(marked, next(iter(odd), "")).strip())


def _as_program(text: str) -> float:
    return _finite(text) if "_" not in text else math.nan


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
