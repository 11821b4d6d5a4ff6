"""Which cable is not like the others. Pure functions of cards, so that cards of another day and place serve too.

A figure is held against the median of the same figure of the other cables. It is told only where the whole 95 %
interval of the ratio lies beyond what cables of one kind differ by; with nothing to compare, nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log

from tbkit import units
from tbkit.fabric.cards.schema import Direction, Finding, LinkCard
from tbkit.stats import Interval, combine_sum

SLOW, LATE = (
    0.75,
    1.5,
)  # ratios that cables of one kind do not reach: Thunderbolt 4 beside 5 is a half or less
TB4 = (0.3, 0.62)  # of a Thunderbolt 5 cable's bandwidth: 40 of 80 Gbit/s, less what the protocol takes

Sized = tuple[int, Interval]  # message size in bytes, and the figure at it
Figure = Callable[[Direction], Sized | None]


def compare(card: LinkCard, others: Sequence[LinkCard]) -> tuple[Finding, ...]:
    """What this cable does worse than its like, in either direction; () where nothing stands out.

    ``others``: cards of other cables; those of another carrier or another word of reality are left out, figures of
    another message size too, and the card itself.
    """
    like = [
        other
        for other in others
        if (other.carrier, other.reality, other.cables) == (card.carrier, card.reality, card.cables)
        and set(other.ends) != set(card.ends)
    ]
    found = [_judge(card, way, like, *row) for way in card.directions for row in _FIGURES]
    return tuple(finding for finding in found if finding is not None)


def odd_ones(cards: Sequence[LinkCard]) -> tuple[Finding, ...]:
    """Each card of a mesh against all others."""
    return tuple(finding for card in cards for finding in compare(card, cards))


def _bandwidth(way: Direction) -> Sized | None:
    return (way.stream.bytes, way.stream.block_bytes_per_s) if way.stream else None


def _latency(way: Direction) -> Sized | None:
    return (way.latency[0].bytes, way.latency[0].block_us) if way.latency else None


def _slow(ratio: Interval) -> bool:
    return ratio.high < SLOW


def _late(ratio: Interval) -> bool:
    return ratio.low > LATE


_FIGURES: tuple[tuple[str, Figure, Callable[[Interval], bool]], ...] = (
    ("bandwidth", _bandwidth, _slow),
    ("latency", _latency, _late),
)


def _judge(
    card: LinkCard,
    way: Direction,
    like: Sequence[LinkCard],
    name: str,
    figure: Figure,
    stands_out: Callable[[Interval], bool],
) -> Finding | None:
    found, theirs = figure(way), [figure(w) for other in like for w in other.directions]
    if found is None:
        return None
    size, own = found
    known = sorted((x[1] for x in theirs if x is not None and x[0] == size), key=lambda x: x.value)
    if not known or not _sound(own):
        return None
    middle = known[len(known) // 2] if name == "bandwidth" else known[(len(known) - 1) // 2]
    if not _sound(middle):
        return None
    ratio = _ratio(own, middle)
    if not stands_out(ratio):
        return None
    return Finding(card.ends, way.source, name, ratio, _words(card, way, name, own, middle, ratio))


def _sound(interval: Interval) -> bool:
    return interval.low > 0 and interval.n > 1


def _ratio(own: Interval, other: Interval) -> Interval:
    """Of two independent figures, from their intervals on logs."""
    left = combine_sum([(1.0, _logs(own)), (-1.0, _logs(other))])
    return Interval(exp(left.value), exp(left.low), exp(left.high), left.n)


def _logs(interval: Interval) -> Interval:
    return Interval(log(interval.value), log(interval.low), log(interval.high), interval.n)


def _words(
    card: LinkCard, way: Direction, name: str, own: Interval, middle: Interval, ratio: Interval
) -> str:
    show = units.bandwidth_text if name == "bandwidth" else units.time_text
    factor = units.interval_text(ratio.value, ratio.low, ratio.high, "×")
    text = f"cable {card.name}, from {way.source}: {name} {show(own.value)}, "
    text += f"{factor} that of the other cables ({show(middle.value)})"
    if name == "bandwidth" and TB4[0] <= ratio.value <= TB4[1]:
        text += (
            "; as a Thunderbolt 4 cable beside Thunderbolt 5: look at the cable and at the speed of its ports"
        )
    return text
