"""Time zones at the end of time stamps: offsets from UTC and names."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

ZONE = r"\s*(?:Z|z|UTC|GMT|(?:UTC|GMT)?[+-]\d{2}(?::?\d{2})?)(?:\[\w+(?:/[\w+-]+)*\])?|\s*\[?[A-Z]\w+(?:/[\w+-]+)+\]?"
"""Pattern of a time zone after a time: "Z", "+01:00", "UTC", "Europe/Berlin", "+01:00[Europe/Berlin]"."""
_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})?")


def offset_of(zone: str, wall: float) -> float:
    """Return the seconds by which the local time ``wall`` (seconds since 1970) is ahead of UTC.

    NaN for an unknown zone, 0 if ``zone`` is empty.
    """
    text = zone.strip()
    match = _OFFSET.search(text)
    if match:
        size = 3600 * int(match[2]) + 60 * int(match[3] or 0)
        return float(-size if match[1] == "-" else size)
    if not text or text.upper() in ("Z", "UTC", "GMT"):
        return 0.0
    tz = _named(text.strip("[]"))
    if tz is None:
        return math.nan
    moment = datetime(1970, 1, 1, tzinfo=tz) + timedelta(seconds=wall)
    offset = moment.utcoffset()
    return math.nan if offset is None else offset.total_seconds()


def offset_at(zone: str, instant: float, otherwise: float) -> float:
    """Return the seconds ahead of UTC at an instant (seconds since 1970) in a named zone; ``otherwise`` if the zone has
    no name.
    """
    name = re.search(r"[A-Z]\w+(?:/[\w+-]+)+", zone)
    tz = _named(name[0]) if name else None
    if tz is None:
        return otherwise
    offset = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=instant)).astimezone(tz).utcoffset()
    return otherwise if offset is None else offset.total_seconds()


@cache
def _named(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, or no time zone data on this machine
        return None
