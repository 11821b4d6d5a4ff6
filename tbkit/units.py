"""Numbers as text: times, bytes, rates, intervals. A unit stands behind every number.

Times come in microseconds, sizes in bytes. GB is 10^9 bytes and GiB 2^30; the two have a function
each and are never mixed. The digits of a value with an interval follow the interval's width::

    >>> interval_text(9.12, 8.91, 9.33, "tok/s")
    '9.1 tok/s [8.9, 9.3]'
"""

from __future__ import annotations

from math import floor, isfinite, log10
from typing import Protocol

MINUS = "\N{MINUS SIGN}"
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_DECIMAL = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class Ranged(Protocol):
    """What has a value and a 95 % interval: ``Interval``, ``SpeedUp``."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def number(value: float, decimals: int | None = None, signed: bool = False) -> str:
    """``value`` with ``decimals`` places (None: three significant digits) and a real minus sign."""
    if not isfinite(value):
        return "–"
    places = significant_places(value) if decimals is None else decimals
    text = f"{abs(value):.{max(0, places)}f}"
    if not float(text):
        return text
    return (MINUS if value < 0 else "+" if signed else "") + text


def significant_places(value: float, digits: int = 3) -> int:
    """Decimal places that show ``digits`` significant digits of ``value``; 0 at the least."""
    return max(0, digits - 1 - floor(log10(abs(value)))) if value and isfinite(value) else 0


def interval_places(low: float, high: float, value: float = 0.0) -> int:
    """Decimal places that the half-width of an interval allows.

    One significant digit of it, two where the first would be a 1, and at least two of ``value``, so that a
    wide interval does not round it away; three of ``value`` when the interval has no width.
    """
    half = (high - low) / 2
    if not (isfinite(half) and half > 0):
        return significant_places(value)
    exponent = floor(log10(half))
    leading_one = half / 10.0**exponent < 1.95
    of_value = 1 - floor(log10(abs(value))) if value and isfinite(value) else 0
    return min(6, max(0, -exponent + leading_one, min(of_value, 2)))


def interval_text(
    value: float, low: float, high: float, unit: str = "", signed: bool = False, least: int = 0
) -> str:
    """``'9.1 tok/s [8.9, 9.3]'``: value, unit, 95 % interval; ``least`` decimal places at the least."""
    places = max(least, interval_places(low, high, value))
    unit = unit if unit in ("", "%") or unit.startswith("×") else f" {unit}"
    inside = ", ".join(number(bound, places, signed) for bound in (low, high))
    return f"{number(value, places, signed)}{unit} [{inside}]"


def rate_text(interval: Ranged, unit: str = "tok/s") -> str:
    """A rate with its 95 % interval: ``'9.1 tok/s [8.9, 9.3]'``."""
    return interval_text(interval.value, interval.low, interval.high, unit)


def speedup_text(speedup: Ranged) -> str:
    """A ratio of times with its 95 % interval: ``'1.31× [1.28, 1.34]'``."""
    return interval_text(speedup.value, speedup.low, speedup.high, "×")


def time_unit(us: float) -> tuple[float, str]:
    """``(microseconds in the unit, its name)`` fit for a time of ``us``: µs, ms or s."""
    return next(((size, name) for size, name in _TIMES if abs(us) >= size), _TIMES[-1])


def time_text(us: float, signed: bool = False) -> str:
    """A time in microseconds with three significant digits: ``'108 ms'``."""
    size, name = time_unit(us)
    return f"{number(us / size, signed=signed)} {name}"


def time_interval_text(us: float, low: float, high: float, signed: bool = False, scale: float = 0.0) -> str:
    """A time with its 95 % interval, all in µs.

    ``scale`` (µs) is the time beside which it stands: it fixes the unit and the fewest decimal places.
    """
    size, name = time_unit(scale or max(abs(us), abs(low), abs(high)))
    least = significant_places(scale / size) if scale else 0
    return interval_text(us / size, low / size, high / size, name, signed, least)


def gb_text(size_bytes: float) -> str:
    """Bytes in powers of ten: ``'1.50 GB'`` is 1.5 x 10^9 bytes."""
    return _bytes_text(size_bytes, _DECIMAL)


def gib_text(size_bytes: float) -> str:
    """Bytes in powers of two: ``'512 GiB'`` is 512 x 2^30 bytes."""
    return _bytes_text(size_bytes, _BINARY)


def bandwidth_text(bytes_per_s: float) -> str:
    """Bytes per second in powers of ten: ``'6.50 GB/s'``."""
    return f"{gb_text(bytes_per_s)}/s"


def percent_text(share: float, decimals: int = 0) -> str:
    """A share of one as percent: ``0.314`` is ``'31 %'``."""
    return f"{number(100 * share, decimals)} %"


def _bytes_text(size_bytes: float, steps: tuple[tuple[int, str], ...]) -> str:
    size, name = next(((size, name) for size, name in steps if abs(size_bytes) >= size), (1, "B"))
    return f"{number(size_bytes / size, 0 if size == 1 else None)} {name}"
