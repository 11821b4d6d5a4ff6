"""The ledger: a closed account of T_p - T_1/p, each term with its interval and its second source."""

from __future__ import annotations

from statistics import fmean

from tbkit.explain import terms
from tbkit.explain.blocks import Blocks
from tbkit.record import Interval, Ledger, Record, Residual, Sample, Term
from tbkit.stats import blocks_needed, combine_sum, mean_interval

NEEDED = ("P", "F", "L", "C", "N", "A")
RESOLUTION = 0.05  # of the lost time: a residual known this narrowly is resolved even when it covers zero

WORDS = {
    "replicated": "every rank repeats it: norms, residual sums, sampling, building the graph",
    "shape": "the shard's narrower kernels, and KV heads that are held twice",
    "contention": "ranks at once against one at a time",
    "imbalance": "slowest rank minus mean rank, compute only",
    "fence": "the graph is cut, evaluated and its buffer exported around each collective",
    "wait": "late arrivals at the collectives",
    "bubble": "stages that wait for the stage before",
    "latency": "the fixed cost of the collectives",
    "transfer": "their bytes",
    "instruments": "the plain step minus F: counting, stamping and replaying are taken out again",
}
SOURCES = {
    "replicated": "the pieces on the single node",
    "shape": "pieces alone on each rank minus the single node's",
    "contention": "pieces on all ranks at once minus alone",
    "imbalance": "pieces alone: slowest minus mean rank",
    "fence": "one graph cut × collectives",
    "wait": "replay of the pieces' measured scatter",
    "latency": "one-element message × collectives",
    "transfer": "added time of the real sizes × collectives",
}


def ledgers(record: Record, rows: list[Sample], layers: int) -> list[Ledger]:
    """The ledger of every plan of the run that has all arms, on the base of the measured single node."""
    base = Blocks(rows, 1, "one")
    if not base.has("P"):
        return []
    found = []
    for nodes, plan in sorted({(r.nodes, r.plan) for r in rows if r.nodes > 1}):
        blocks = Blocks(rows, nodes, plan)
        if blocks.has(*NEEDED) and len(blocks.keys) > 1:
            found.append(_ledger(record, blocks, base, layers))
    return found


def _ledger(record: Record, blocks: Blocks, base: Blocks, layers: int) -> Ledger:
    p = blocks.nodes
    # arithmetic means, unlike the rates: only they add up
    single, step = _mean(base, base.together("P")), _mean(blocks, blocks.together("P"))
    lost = step.value - single.value / p
    first = terms.route_a(blocks, single.value)
    second = terms.second_sources(blocks, base, layers) if blocks.has("together/segments") else {}
    spread = {name: base.units(values) for name, values in terms.base_scatter(base, p).items()}
    made = []
    for name in terms.NAMES:
        interval = _mean(blocks, first[name])
        if name == "shape":
            interval = combine_sum([(1.0, interval), (-1 / p, _centred(single))])
        source = _second(blocks.units(second[name]), spread.get(name)) if name in second else None
        made.append(_term(name, blocks.plan, interval, lost, source, _cause(name, record, p)))
    residual = _residual(blocks, single, second, spread, lost)
    scope = "within one load" if blocks.loads == 1 else "between loads"
    return Ledger(
        p, blocks.plan, step, single, single.value / p, tuple(made), residual, scope, record.reality
    )


def _mean(blocks: Blocks, values: list[float]) -> Interval:
    """Mean of one value a block, over blocks or, where there are several loads, over loads."""
    return mean_interval(blocks.units(values))


def _centred(interval: Interval) -> Interval:
    """The scatter of an interval around zero."""
    half = (interval.high - interval.low) / 2
    return Interval(0.0, -half, half, interval.n)


def _second(values: list[float], spread: list[float] | None) -> Interval:
    interval = mean_interval(values)
    return (
        interval if spread is None else combine_sum([(1.0, interval), (1.0, _centred(mean_interval(spread)))])
    )


def _term(name: str, plan: str, interval: Interval, lost: float, second: Interval | None, cause: str) -> Term:
    name = "bubble" if name == "wait" and plan == "pipeline" else name
    words = WORDS[name] + (f"; {cause}" if cause else "")
    source = SOURCES[name] if second is not None else "one route only"
    return Term(
        name,
        interval.value,
        interval.low,
        interval.high,
        interval.value / lost if lost else 0.0,
        words,
        second,
        source,
    )


def _cause(name: str, record: Record, p: int) -> str:
    cores = record.cluster.get("cores")
    if name == "contention" and record.reality == "local" and cores:
        if p > cores:
            return f"oversubscribed: {p} ranks on {cores} cores"
        return f"{p} ranks share the caches and memory of {cores} cores"
    return ""


def _residual(
    blocks: Blocks,
    single: Interval,
    second: dict[str, list[float]],
    spread: dict[str, list[float]],
    lost: float,
) -> Residual:
    """P minus T_1/p minus the terms as their second sources give them; a term without one stays in it."""
    plain = blocks.together("P")
    known = [sum(values[b] for values in second.values()) for b in range(len(plain))]
    left = _mean(blocks, [x - y for x, y in zip(plain, known, strict=True)])
    parts = [(1.0, left), (-1 / blocks.nodes, single)]
    parts += [(-1.0, _centred(mean_interval(values))) for name, values in spread.items() if name in second]
    found = combine_sum(parts)
    half = (found.high - found.low) / 2
    target = max(abs(found.value), RESOLUTION * abs(lost))
    resolved = half <= target
    needed = 0 if resolved else blocks_needed(found, target)
    missing = [name for name in terms.NAMES if name not in second and name != "instruments"]
    return Residual(
        found.value,
        found.low,
        found.high,
        found.value / lost if lost else 0.0,
        resolved,
        needed,
        _residual_words(missing, fmean(plain)),
    )


def _residual_words(missing: list[str], step_us: float) -> str:
    words = f"what the second sources do not explain of a step of {step_us / 1e3:.1f} ms"
    return words + (f"; holds {', '.join(missing)}, which have one route only" if missing else "")
