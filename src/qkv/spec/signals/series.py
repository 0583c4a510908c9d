"""Specs for time series: processor and front ends."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem, SpecError
from qkv.spec.frontends import Frontend, Placed
from qkv.spec.processors import Processor, Role

LONGEST = 1_000_000
"""Upper bound of steps and channels, far beyond any published model."""
Unit = Literal["rows", "number", "seconds", "months", "weekdays"]


class Series(Processor, kind="series"):
    """Standardisation (x - mean) / deviation of the channels of a time series, and features of its time stamps.

    Mean and deviation are those of the training part. If the task forecasts, the columns of a table are the channels
    (named in ``data.columns`` or guessed). For other tasks, each row of the table has its own series, of any length,
    and ``rows`` is set.
    """

    role = Role(
        "series",
        "series",
        ("series", "values", "signal", "samples", "waveform", "window", "trace", "curve", "x"),
        values="series",
    )

    calendar: bool = Field(
        default=False, description="hour, day of the week, day of the month and of the year as known covariates"
    )
    time: str | None = Field(default=None, description="column of the time stamps; filled in from the data")
    series: str | None = Field(default=None, description="column of the series' names; filled in from the data")
    channels: Seq[str] = Field(default=(), description="columns of the values; filled in from the data")
    known: Seq[str] = Field(default=(), description="columns known in advance; filled in from the data")
    unit: Unit | None = Field(default=None, description="unit of the step; filled in from the data")
    step: float | None = Field(default=None, gt=0, description="time between two rows; filled in from the data")
    weekdays: str | None = Field(
        default=None,
        pattern="[01]{7}",
        description="weekdays with values, from Monday on, such as 1111100, if steps are weekdays; filled in from "
        "the data",
    )
    dates: str | None = Field(
        default=None,
        min_length=1,
        description="format of the time stamps, such as %d/%m/%Y, or number, unix, excel; filled in from the data",
    )
    period: int | None = Field(default=None, gt=0, description="steps of a season; filled in from the data")
    mean: Seq[float] = Field(default=(), description="means of the channels, then of the columns known in advance")
    deviation: Seq[float] = ()
    rows: bool = Field(default=False, description="each row is a series; filled in from the task")

    @property
    def covariates(self) -> int:
        """Number of features known in advance: columns named in ``known``, and calendar features."""
        return len(self.known) + (CALENDAR if self.calendar else 0)

    @property
    def num_simple(self) -> int | None:
        return SIMPLE * len(self.channels) + 1 if self.rows and self.channels else None

    def problems(self) -> list[Problem]:
        if len(self.mean) != len(self.deviation):
            sentence = f"{len(self.deviation)} deviations are given for {len(self.mean)} means; give one for each"
            return [Problem(("deviation",), sentence)]
        low = min(self.deviation, default=1.0)
        return [] if low > 0 else [Problem(("deviation",), f"{low} given, but values are divided by it; give more")]


SIMPLE = 45
"""Number of simple features of each channel of a row, see ``qkv.data.series.statistics``."""
CALENDAR = 8
"""Number of calendar features: sine and cosine of the hour, the day of the week, of the month and of the year."""


class OfSeries(Placed):
    """Base class of front ends of time series."""

    processor: ClassVar[type[Processor] | None] = Series
    features: int | None = Field(default=None, gt=0, le=LONGEST, description="channels; default: those of the data")
    covariates: int | None = Field(default=None, ge=0, le=LONGEST, description="known features; default: the data's")
    steps: int | None = Field(default=None, gt=0, le=LONGEST, description="steps of a window; default: the task's")

    @property
    def rows_per_channel(self) -> bool:
        """True if each channel of a window is a separate row."""
        return False

    def fitted(self, processor: Processor) -> Self:
        assert isinstance(processor, Series)
        if processor.rows and self.splits_rows(len(processor.channels)):
            sentence = "a row is predicted from all of its channels, and it may have any length; give channels=mixed"
            raise SpecError([Problem(("channels",), sentence)])
        return self._filled(features=len(processor.channels), covariates=processor.covariates)

    def splits_rows(self, channels: int) -> bool:
        """Return True if a row of ``channels`` channels is not read as one sequence, or must have a fixed length."""
        return False

    def of_steps(self, steps: int) -> Self:
        """Return a copy for windows of ``steps`` steps. Raises ``SpecError`` if the spec has another number."""
        return self._filled(steps=steps)

    def _filled(self, **sizes: int) -> Self:
        for name, size in sizes.items():
            value = getattr(self, name)
            if value not in (None, size):
                sentence = f"{value} given, but the data has {size}; leave the key out"
                raise SpecError([Problem((name,), sentence)])
        return self.changed(**sizes)

    def unsized(self) -> Self:
        return self.changed(features=None, covariates=None, steps=None)

    def canonical(self, width: int) -> Self:
        return self.changed(dropout=0.0)


class SeriesPatches(OfSeries, kind="series_patches"):
    """Windows of a time series (B, T, C) -> one vector per patch of ``patch`` steps, or per channel.

    ``channels``: ``apart``: each channel is a separate row, with shared weights, and a patch contains its steps
    (PatchTST, Nie et al. 2023); ``mixed``: a patch contains the steps of all channels; ``inverted``: one position per
    channel, which contains all of its steps (iTransformer, Liu et al. 2024). Known covariates are added to each patch,
    or are separate positions if inverted.

    ``normalise``: ``window``: each channel of each window is standardised, and the forecast transformed back
    (reversible instance normalisation, RevIN, Kim et al. 2022); ``last``: its last value is subtracted (NLinear, Zeng
    et al. 2023).

    ``frequencies`` F > 0: each value x comes with its real time t, as [t, sin(ω_k t + φ_k)] with learned ω and φ
    (Time2Vec, Kazemi et al. 2019) and the products x · sin(ω_k t + φ_k), so that values may be unevenly spaced; steps
    without a value are then left out. Without the products, a linear map of a patch cannot weight a value by its time.

    ``steps`` None: rows of any length; a row shorter than a patch is padded with its last value.
    """

    patch: int = Field(default=16, gt=0, le=LONGEST, description="steps of a patch")
    stride: int = Field(default=8, gt=0, le=LONGEST, description="steps between the starts of patches")
    pad_end: bool = Field(default=True, description="repeat the last value for one more patch")
    align: Literal["start", "end"] = Field(
        default="start", description="end of a window to which patches are aligned; incomplete patches are at the other"
    )
    channels: Literal["apart", "mixed", "inverted"] = "apart"
    normalise: Literal["window", "last", "none"] = "window"
    affine: bool = Field(default=False, description="learned scale and shift of each channel after the normalisation")
    frequencies: int = Field(
        default=0, ge=0, le=10_000, description="number of sine waves of the time of a value; 0: none"
    )

    def canonical(self, width: int) -> Self:
        patches = super().canonical(width)
        whole = self.steps is not None and max(0, self.steps - self.patch) % self.stride == 0
        return patches.changed(align="start") if whole else patches

    @property
    def rows_per_channel(self) -> bool:
        return self.channels == "apart"

    def splits_rows(self, channels: int) -> bool:
        return self.channels == "inverted" or (self.channels == "apart" and channels > 1)

    @property
    def row_features(self) -> int | None:
        """Number of channels of a row."""
        return 1 if self.rows_per_channel else self.features

    @property
    def num_positions(self) -> int | None:
        if self.channels == "inverted":
            return None if self.features is None else self.features + (self.covariates or 0)
        return None if self.steps is None else self.patches(self.steps)

    def patches(self, steps: int) -> int:
        """Return the number of patches of a window of ``steps`` steps."""
        return max(0, steps - self.patch) // self.stride + 1 + self.pad_end

    def positions_of(self, size: int) -> int:
        return self.num_positions or self.patches(size)

    def of_steps(self, steps: int) -> Self:
        if self.channels != "inverted" and steps < self.patch:
            raise SpecError([Problem(("patch",), f"a patch of {self.patch} steps is longer than a window of {steps}")])
        return super().of_steps(steps)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.channels == "inverted" and self.frequencies:
            sentence = "a position that contains all steps of a channel has no single time; use 'apart' or 'mixed'"
            problems.append(Problem(("frequencies",), sentence))
        if self.steps is not None and self.channels != "inverted" and self.steps < self.patch:
            problems.append(
                Problem(("patch",), f"a patch of {self.patch} steps is longer than a window of {self.steps}")
            )
        if self.align == "end" and self.pad_end:
            sentence = "patches aligned to the end need no repeated value after the last step; give pad_end=false"
            problems.append(Problem(("align",), sentence))
        if self.affine and self.normalise == "none":
            problems.append(Problem(("affine",), "there is no normalisation to scale; give normalise=window"))
        return problems


class SeriesSteps(OfSeries, kind="series_steps"):
    """Future steps of a time series: known covariates (B, H, K) -> one vector per step, for a decoder.

    Linear map of the covariates, or one learned vector if there are none, combined with position vectors.
    """

    @property
    def num_positions(self) -> int | None:
        return self.steps


def of_series(frontend: Frontend) -> bool:
    """Return True if ``frontend`` reads time series."""
    return frontend.processor is Series
