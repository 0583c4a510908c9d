"""Dates in the cells of a column: recognise patterns such as "%d/%m/%Y", parse dates, and write dates in the same
form.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import NamedTuple

from qkv.data.cells.zones import ZONE

EPOCH = datetime(1970, 1, 1)
_SEPARATED = [f"%Y{s}%m{s}%d" for s in "-/."]
_BOTH_ORDERS = [f"{a}{s}{b}{s}%{y}" for y in "Yy" for s in "/-" for a, b in (("%d", "%m"), ("%m", "%d"))]
_DAY_FIRST = ["%d.%m.%Y", "%d.%m.%y", "%d. %m. %Y", "%d %m %Y", "%d%m%Y"]
_YEAR_FIRST = ["%y-%m-%d", "%y/%m/%d", "%y.%m.%d"]
_COMPACT = ["%Y%m%d", "%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%Y%m", "%Y%j", "%y%m%d", "%d%m%y", "%Y-%j"]
_MONTHS = ["%Y-%m", "%Y/%m", "%Y.%m", "%m/%Y", "%m-%Y", "%m.%Y", "%m %Y", "%YM%m", "%Y-M%m", "%Ym%m"]
_NAMED_DAYS = [f"%d{s}%b{s}%{y}" for y in "Yy" for s in (" ", "-", "/", ".", "")]
_NAMED_DAYS += ["%d. %b %Y", "%b %d, %Y", "%b %d %Y", "%b-%d-%Y", "%Y-%b-%d", "%Y %b %d", "%Y%b%d", "%d de %b de %Y"]
_NAMED_MONTHS = [f"%b{s}%{y}" for y in "Yy" for s in (" ", "-", "/", ", ", "")] + ["%b '%y", "%b. %Y"]
_NAMED_MONTHS += [f"%Y{s}%b" for s in (" ", "-", "/", "")] + ["%y-%b", "%b de %Y"]
_QUARTERS = [f"%Y{s}Q%q" for s in ("-", "", " ", "/", ":")] + [f"Q%q{s}%{y}" for y in "Yy" for s in (" ", "-", "/", "")]
_QUARTERS += ["%qQ%Y", "%qQ%y", "%qQ %Y", "%q. Quartal %Y", "%Yq%q"]
_WEEKS = ["%G-W%V", "%GW%V", "%G W%V", "%G-W%V-%u", "%GW%V%u", "%GW%V-%u", "W%V %G", "W%V-%G", "W%V/%G", "KW%V %G"]
_WEEKS += ["KW %V/%G", "KW%V/%G", "%G-KW%V", "KW %V %G", "%G/W%V", "Week %V %G"]
PATTERNS = (
    *(*_SEPARATED, "%Y%m%d", *_DAY_FIRST, *_BOTH_ORDERS, *_YEAR_FIRST, *_COMPACT[1:]),
    *(*_MONTHS, *_NAMED_DAYS, *_NAMED_MONTHS, *_QUARTERS, *_WEEKS),
)
"""Patterns to try, preferred patterns first. Fields are those of ``strftime``, and %q for the quarter."""
WEAK = ("%y%m%d", "%d%m%y", "%Y%j", "%Y.%m", "%d%m%Y", "%m.%Y")
"""Patterns that plain numbers can match by chance, so that such a column is preferably read as numbers."""
EXCHANGED = ("%d/%m", "%m/%d", "%d-%m", "%m-%d-", "%y/%m", "%y-%m", "%y.%m")
"""Beginnings of ambiguous patterns: two fields are easily exchanged, such as day and month."""
_LANGUAGES = tuple(
    tuple(names.split())
    for names in (
        "january february march april may june july august september october november december",
        "januar februar märz april mai juni juli august september oktober november dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    )
)
_FIELDS = {
    "Y": r"(?P<Y>\d{4})",
    "G": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "q": r"(?P<q>[1-4])",
    "u": r"(?P<u>[1-7])",
    "m": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "V": r"(?P<V>\d{1,2})",
    "j": r"(?P<j>\d{3})",
    "b": r"(?P<b>[^\W\d_]{3,})\.?",
    "H": r"(?P<H>\d{2})",
    "M": r"(?P<M>\d{2})",
    "S": r"(?P<S>\d{2})",
}
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\.?)?|(?<=T)\d{2}(?:\d{2}){0,2}"
_STAMP = re.compile(rf"(?P<date>.*?\w)(?:(?P<gap>T|t|,?\s+|:)(?P<clock>{_CLOCK})(?P<zone>{ZONE})?)?")
_WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+", re.IGNORECASE)
_CENTURY = 69
_CHECKED = 20
"""Number of cells, counted from the last one, that a style must reproduce exactly."""


class StampCell(NamedTuple):
    """Parts of a time stamp as texts, and its time of the day in ``seconds``."""

    date: str
    gap: str = ""
    clock: str = ""
    zone: str = ""
    seconds: float = 0.0


def split_cell(text: str) -> StampCell | None:
    """Split a time stamp into its parts; None if it has another form or an impossible time of the day."""
    text = text.strip()
    match = _STAMP.fullmatch(_WEEKDAY.sub("", text, count=1) if text[:1].isalpha() else text)
    if match is None:
        return None
    clock = match["clock"] or ""
    seconds = _time_of_day(clock) if clock else 0.0
    return (
        None
        if math.isnan(seconds)
        else StampCell(match["date"], match["gap"] or "", clock, match["zone"] or "", seconds)
    )


def _time_of_day(clock: str) -> float:
    digits = re.sub(r"[^\d:.,]", "", clock.rstrip(".")).rstrip(".").replace(",", ".")
    parts = digits.split(":") if ":" in digits else [digits[i : i + 2] for i in range(0, len(digits), 2)]
    hour, minute, second = (float(part) for part in (*parts, "0", "0")[:3])
    half = next((sign for sign in clock.lower() if sign in "ap"), "")
    if (half and not 1 <= hour <= 12) or hour > 24 or minute >= 60 or second >= 60 or (hour == 24 and minute + second):
        return math.nan
    hour = hour % 12 + 12 * (half == "p") if half else hour
    return 3600 * hour + 60 * minute + second


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(%[A-Za-z])", pattern)
    regex = ""
    for i, part in enumerate(parts):
        if not part.startswith("%"):
            regex += re.escape(part)
            continue
        joined = (i > 1 and not parts[i - 1]) or (i + 2 < len(parts) and not parts[i + 1])
        field = _FIELDS[part[1]]
        regex += field.replace("{1,2}", "{2}") if joined and part[1] in "mdV" and "%b" not in pattern else field
    return re.compile(regex, re.IGNORECASE)


def is_pattern(pattern: str) -> bool:
    """Return True if all fields of the pattern are known and different, and one of them is the year."""
    fields = re.findall(r"%(.)", pattern)
    valid = bool(fields) and all(field in _FIELDS for field in fields) and len(set(fields)) == len(fields)
    return valid and any(field in "YyG" for field in fields)


def day_in(text: str, pattern: str) -> float:
    """Parse a text by a pattern; return the seconds from 1970 to the beginning of its day, month, quarter or week.

    NaN if the text does not fit.
    """
    match = _compiled(pattern).fullmatch(text)
    if match is None:
        return math.nan
    fields = match.groupdict()
    try:
        day = _day({name: value for name, value in fields.items() if value is not None})
    except (ValueError, KeyError):
        return math.nan
    moment = datetime.combine(day, datetime.min.time())
    clock = [int(fields.get(name) or 0) for name in "HMS"]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return math.nan
    return (moment - EPOCH).total_seconds() + 3600 * clock[0] + 60 * clock[1] + clock[2]


def _day(fields: dict[str, str]) -> date:
    """Return the date for the fields of a pattern. Raises ``ValueError`` or ``KeyError`` if there is no such date."""
    short = int(fields.get("y", 0))
    year = int(fields["Y"]) if "Y" in fields else short + (2000 if short < _CENTURY else 1900)
    if not 1000 <= year < 3000:
        raise ValueError(year)
    if "V" in fields:
        return date.fromisocalendar(year, int(fields["V"]), int(fields.get("u", 1)))
    if "j" in fields:
        day = date(year, 1, 1) + timedelta(int(fields["j"]) - 1)
        if day.year != year:
            raise ValueError(fields["j"])
        return day
    if "q" in fields:
        return date(year, 3 * int(fields["q"]) - 2, 1)
    month = _month_names()[fields["b"].lower()] if "b" in fields else int(fields.get("m", 1))
    return date(year, month, int(fields.get("d", 1)))


@cache
def _month_names() -> dict[str, int]:
    """Return month numbers by month name, and by each prefix of a name with at least three letters."""
    months = {"mrt": 3, "mrz": 3, "maerz": 3}
    for names in _LANGUAGES:
        for i, name in enumerate(names):
            months |= {name[:size]: i + 1 for size in range(3, len(name) + 1)}
    return {name: month for name, month in months.items() if name != "jui"}


class Style(NamedTuple):
    """Spelling of dates in a ``pattern``.

    ``padded``: numbers have leading zeros; ``names``: month names; ``gap``: text between date and time of the day;
    ``clock``: form of the time of the day, as for ``strftime``, with %f of ``digits`` digits.
    """

    pattern: str
    padded: bool = True
    names: tuple[str, ...] = ()
    gap: str = ""
    clock: str = ""
    digits: int = 0

    def write(self, moment: datetime) -> str:
        """Write a local time in this style."""
        text = re.sub(r"%(.)", lambda each: self._field(each[1], moment), self.pattern)
        if not self.clock:
            return text
        half = "pm" if moment.hour >= 12 else "am"
        fields = {"%k": f"{moment.hour}", "%l": f"{moment.hour % 12 or 12}", "%p": half.upper(), "%q": half}
        fields["%f"] = f"{moment:%f}"[: self.digits]
        clock = re.sub("%[klpqf]", lambda each: fields[each[0]], self.clock)
        return f"{text}{self.gap}{moment.strftime(clock)}"

    def _field(self, field: str, moment: datetime) -> str:
        year, week, day = moment.isocalendar()
        if field in "YyjHMS":
            return moment.strftime(f"%{field}").zfill(4 if field == "Y" else 2)
        if field == "b":
            return self.names[moment.month - 1]
        number = {"m": moment.month, "d": moment.day, "V": week, "G": year, "u": day, "q": (moment.month + 2) // 3}[
            field
        ]
        return f"{number:02}" if self.padded and field in "mdV" else str(number)


def style_of(cells: Sequence[StampCell], moments: Sequence[datetime], pattern: str) -> Style | None:
    """Find the style that reproduces the last cells exactly; None if there is none, for example because of unknown
    month names.
    """
    timed = ([i for i, cell in enumerate(cells) if cell.clock] or list(range(len(cells))))[-_CHECKED:]
    texts = {i: f"{cells[i].date}{cells[i].gap}{cells[i].clock}" for i in timed}
    for hours, padded in itertools.product((True, False), repeat=2):
        clock = _clock_style(cells[timed[-1]], hours)
        for names in _name_styles(pattern):
            style = Style(pattern, padded, names, *clock)
            if all(style.write(moments[i]) == text for i, text in texts.items()):
                return style
    return None


def _clock_style(cell: StampCell, padded: bool) -> tuple[str, str, int]:
    """Return (gap, form, number of digits of the fraction) of a cell's time of the day, as fields of ``Style``.

    ``padded``: True if hours always have two digits.
    """
    clock = cell.clock
    if not clock:
        return "", "", 0
    if ":" not in clock:
        return cell.gap, "".join(("%H", "%M", "%S")[: len(clock) // 2]), 0
    half, fraction = re.search(r"\s?[AaPp][Mm]$", clock), re.search(r"([.,])(\d+)$", clock)
    hour = {(False, True): "%H", (False, False): "%k", (True, True): "%I", (True, False): "%l"}[bool(half), padded]
    form = f"{hour}:%M" + (":%S" if clock.count(":") == 2 else "")
    form += f"{fraction[1]}%f" if fraction else ""
    form += f"{half[0][:-2]}{'%p' if half[0][-1].isupper() else '%q'}" if half else ""
    return cell.gap, form, min(6, len(fraction[2])) if fraction else 0


def _name_styles(pattern: str) -> Iterable[tuple[str, ...]]:
    """Yield the possible spellings of the twelve month names; one empty tuple if the pattern has no month names."""
    if "%b" not in pattern:
        yield ()
        return
    for names in _LANGUAGES:
        for size in (3, 4, 20):
            short = tuple(name[:size] for name in names)
            for change in (str.title, str.upper, str.lower):
                yield tuple(change(name) for name in short)
                yield tuple(change(name) + "." for name in short)


def in_words(pattern: str) -> str:
    """Describe a pattern for users, for example as "day/month/year"."""
    words = {"Y": "year", "y": "year", "G": "year", "m": "month", "b": "month", "d": "day", "q": "quarter", "V": "week"}
    words |= {"u": "weekday", "j": "day of the year", "H": "hour", "M": "minute", "S": "second"}
    parts = re.split(r"(%[A-Za-z])", pattern)
    joined = "".join(words.get(part[1:], part) if part.startswith("%") else part or " " for part in parts)
    return joined.strip()
