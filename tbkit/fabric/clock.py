"""Offset and drift between the clocks of two ranks, from exchanges of readings, with a bound that holds.

Every message bounds the other clock from one side, for it arrives after it was sent: what the other had read when our
message came is an upper bound of what it showed when we sent, and what it read before it answered is a lower bound of
what it showed when the answer came. While both clocks run at constant rates, the true offset is a line that keeps
above all lower and below all upper bounds. In each stretch of time the tightest bound of either side is kept: the
quickest message there and the quickest back, which need not be of one exchange. The estimate is the middle of all
lines that are left; the error cannot exceed half of their breadth, however unlike the two ways are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tbkit.errors import UsageError
from tbkit.fabric.group import Group, Stamps

STRETCHES = 64  # of the time that the exchanges took; the tightest bounds of each are kept
READING_NS = 2.0  # readings are whole nanoseconds
WANDER = 1e-7  # by how much the rate of two clocks may change after the exchanges: 0.1 µs a second
EXCHANGES_MIN = 8

Line = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Moments of our clock, and what the other's offset cannot exceed there, both in ns from the clock's origins."""

    moment: Line
    offset: Line

    def tightest(self, edges: Line) -> Bounds:
        """The lowest of each stretch between two edges."""
        stretch = np.searchsorted(edges, self.moment, side="right")
        order = np.lexsort((self.offset, stretch))
        first = order[np.unique(stretch[order], return_index=True)[1]]
        return Bounds(self.moment[first], self.offset[first])

    def negated(self) -> Bounds:
        """The same seen from below."""
        return Bounds(self.moment, -self.offset)

    def eased(self, ns: float) -> Bounds:
        """All of them higher by ``ns``."""
        return Bounds(self.moment, self.offset + ns)


def highest(upper: Bounds, lower: Bounds, moment: float) -> float:
    """The largest value at ``moment`` of a line below all of ``upper`` and above all of ``lower`` (offsets negated)."""
    x, y = upper.moment, upper.offset
    before, after = x <= moment, x >= moment
    found = [np.inf]
    if before.any() and after.any():
        left, right = x[before][:, None], x[after][None, :]
        share = (moment - left) / np.where(right > left, right - left, 1.0)
        found.append(float((y[before][:, None] * (1 - share) + y[after][None, :] * share).min()))
    run, ahead = x[:, None] - lower.moment[None, :], moment - x[:, None]
    beyond = (
        run * ahead > 0
    )  # a line that turns about a lower bound rises no further than an upper one allows
    if beyond.any():
        slope = (y[:, None] + lower.offset[None, :]) / np.where(run == 0, 1.0, run)
        found.append(float((y[:, None] + slope * ahead)[beyond].min()))
    return min(found)


@dataclass(frozen=True, eq=False)
class Clock:
    """A peer's monotonic clock as seen from ours.

    ``upper`` and ``lower`` (negated) are what the exchanges left of offsets, from ``origin_ns`` of our clock and
    ``offset_origin_ns``. ``round_trip_ns`` is the best exchange's time on the way, ``stamps`` the raw readings.
    """

    peer: int
    origin_ns: int
    offset_origin_ns: int
    upper: Bounds
    lower: Bounds
    round_trip_ns: int
    bent_ns: float
    stamps: Stamps

    @classmethod
    def of(cls, stamps: Stamps, peer: int, ours_first: bool) -> Clock:
        """From raw readings (n, 4), n of 8 or more; ``ours_first``: we asked, the peer answered.

        Where no straight line fits, one of the clocks was set or slewed meanwhile: all bounds are eased by what the
        middle line misses, and ``bent_ns`` says how much that is.
        """
        if stamps.ndim != 2 or stamps.shape[1] != 4 or len(stamps) < EXCHANGES_MIN:
            raise UsageError("clock stamps", f"at least {EXCHANGES_MIN} exchanges of 4", str(stamps.shape))
        t1, t2, t3, t4 = stamps.T
        # (our moment, the peer's) of what bounds from above, and from below.
        above, below = ((t1, t2), (t4, t3)) if ours_first else ((t3, t4), (t2, t1))
        origin, other = int(above[0][0]), int(above[1][0])
        upper = _bounds(*above, origin, other)
        lower = _bounds(*below, origin, other).negated()
        edges = np.linspace(0.0, float(max(upper.moment.max(), lower.moment.max())), STRETCHES + 1)[1:-1]
        upper, lower = (one.tightest(edges).eased(READING_NS) for one in (upper, lower))
        best = int(((t4 - t1) - (t3 - t2)).min())
        clock = cls(peer, origin, other - origin, upper, lower, best, 0.0, stamps)
        bent = clock._missed()
        return (
            clock
            if bent == 0
            else cls(peer, origin, other - origin, upper.eased(bent), lower.eased(bent), best, bent, stamps)
        )

    @property
    def span_s(self) -> float:
        """From the first bound to the last."""
        return float(max(self.upper.moment.max(), self.lower.moment.max())) * 1e-9

    @property
    def drift(self) -> float:
        """How much faster the peer's clock runs: seconds a second."""
        return self._line[1]

    @property
    def drift_bound(self) -> float:
        """By how much the drift may be off, while both clocks kept their rates."""
        low, high = self._ends
        return float((high[1] - low[1] + high[0] - low[0]) / 2 / (self.span_s * 1e9))

    def offset_ns(self, t_ns: int) -> float:
        """How much the peer's clock shows more than ours, when ours shows ``t_ns``."""
        return self.offset_origin_ns + self._from_origin(t_ns)

    def at(self, t_ns: int) -> int:
        """What the peer's clock shows when ours shows ``t_ns``, give or take :meth:`bound_ns`."""
        return t_ns + self.offset_origin_ns + round(self._from_origin(t_ns))

    def ours(self, t_ns: int) -> int:
        """What our clock shows when the peer's shows ``t_ns``."""
        start = t_ns - self.offset_origin_ns
        first = self._from_origin(start)
        return start - round(first / (1 + self.drift))

    def bound_ns(self, t_ns: int) -> float:
        """How far :meth:`at` may be from the truth: what the bounds leave, and outside of the exchanges what clocks
        may wander."""
        moment = float(t_ns - self.origin_ns)
        high, low = highest(self.upper, self.lower, moment), -highest(self.lower, self.upper, moment)
        middle = self._from_origin(t_ns)
        age = max(0.0, -moment, moment - self.span_s * 1e9)
        return max(high - middle, middle - low) + WANDER * age + 1.0  # at() rounds

    def __str__(self) -> str:
        middle = self.origin_ns + round(self.span_s * 5e8)
        return (
            f"rank {self.peer}: {self.offset_ns(middle) / 1e3:+.3f} ± {self.bound_ns(middle) / 1e3:.3f} µs, "
            f"drift {self.drift * 1e6:+.3f} ± {self.drift_bound * 1e6:.3f} ppm, "
            f"{len(self.stamps)} exchanges in {self.span_s:.3g} s, best round trip {self.round_trip_ns / 1e3:.3f} µs"
        )

    @cached_property
    def _ends(self) -> tuple[Line, Line]:
        """The lowest and the highest offset at the first and at the last moment."""
        moments = (0.0, self.span_s * 1e9)
        high = np.array([highest(self.upper, self.lower, moment) for moment in moments])
        low = np.array([-highest(self.lower, self.upper, moment) for moment in moments])
        return low, high

    @cached_property
    def _line(self) -> tuple[float, float]:
        """Offset at the origin and slope of the middle line. The middle of a convex set's box lies in the set."""
        low, high = self._ends
        first, last = (low + high) / 2
        return float(first), float((last - first) / (self.span_s * 1e9))

    def _from_origin(self, t_ns: int) -> float:
        first, slope = self._line
        return first + slope * (t_ns - self.origin_ns)

    def _missed(self) -> float:
        """By how much the middle line breaks a bound; 0 where it keeps them all."""
        first, slope = self._line
        over = first + slope * self.upper.moment - self.upper.offset
        under = -(first + slope * self.lower.moment) - self.lower.offset
        return max(0.0, float(over.max()), float(under.max()))


def _bounds(ours: Stamps, theirs: Stamps, origin: int, other: int) -> Bounds:
    moment = ours - origin
    return Bounds(moment.astype(float), ((theirs - other) - moment).astype(float))


def align(
    group: Group, peer: int, exchanges: int = 400, pause_us: float = 500.0, *, deadline_s: float | None = None
) -> Clock:
    """The peer's clock, from ``exchanges`` that are ``pause_us`` apart; both ranks call it, each gets its own view.

    Longer spans tighten the drift: its error is about the round trip over the span. Raises what
    :meth:`Group.clock_stamps` raises, and UsageError for fewer than 8 exchanges.
    """
    if exchanges < EXCHANGES_MIN:
        raise UsageError("align", f"at least {EXCHANGES_MIN} exchanges", str(exchanges))
    stamps = group.clock_stamps(peer, exchanges, pause_us=pause_us, deadline_s=deadline_s)
    return Clock.of(stamps, peer, group.rank < peer)
