"""The one tree of verbs: its parser and what each verb does. Magics and the command line spell it.

A verb's action takes the parsed arguments and a :class:`Session`, and gives the object to show.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from tbkit.errors import UsageError

if TYPE_CHECKING:
    from tbkit.cluster.carriers import Carrier

DEFAULT_MODEL = "smollm2-135m-instruct"
COUNTS = (1, 2, 4)

EXAMPLES = {
    "connect": "connect --local 2",
    "status": "status",
    "disconnect": "disconnect",
    "links": "links lat --local 2",
    "plan": f"plan --model {DEFAULT_MODEL} --local 2",
    "shard": "shard --kind tensor-uneven",
    "scale": "scale decode --on 1,2",
    "explain": "explain last",
    "quickstart": "quickstart",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are UsageError, in one line, with the nearest valid choice."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, *_in_our_words(message, self))


def _in_our_words(message: str, parser: argparse.ArgumentParser) -> tuple[str, str, str]:
    """Rule, got and remedy of an argparse message."""
    if "unrecognized arguments:" in message:
        got = message.partition(": ")[2].split()[0]
        flags = [f for a in _all_actions(parser) for f in a.option_strings]
        return "knows its flags", got, "It stands after the verb" if got in flags else nearest(got, flags)
    if "invalid choice:" in message:
        got = message.partition("invalid choice: ")[2].split(" (")[0].strip("'\"")
        where = message.partition(":")[0].replace("argument ", "")
        return f"{where} is one of its choices", got, nearest(got, _choices(parser))
    return message, "", f"See {parser.prog} --help"


def _all_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found += _all_actions(sub)
    return found


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    return [str(choice) for action in parser._actions if action.choices for choice in action.choices]


def nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, list(dict.fromkeys(known)), n=1, cutoff=0.4)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(dict.fromkeys(known))}"


class Session:
    """What lasts between verbs: the current cluster and loaded model. The command line makes one a call."""

    def __init__(
        self, say: Callable[[str], None] = print, how_to_connect: str = "Try %tbcluster connect --local 2"
    ) -> None:
        self.cluster: Any = None
        self.model: Any = None
        self.say, self.how_to_connect = say, how_to_connect

    def open_cluster(self) -> Any:
        """The connected cluster; UsageError says how to connect."""
        if self.cluster is None or self.cluster.closed:
            raise UsageError("cluster", "is connected first", "none", self.how_to_connect)
        return self.cluster

    def cluster_of(self, args: argparse.Namespace) -> Any:
        """The connected cluster, or a new one of ``--local`` engines."""
        if args.local is None:
            return self.open_cluster()
        return self.connect(args.local, args.policy, getattr(args, "carrier", "shm"))

    def connect(self, local: int | None, policy: str = "auto", carrier: Carrier = "shm") -> Any:
        """Connect; a no-op with a message where such a cluster stands."""
        if local is None:
            raise UsageError(
                "connect", "says which machines", "nothing", "Try --local 2 for two engines here"
            )
        if self.cluster is not None and not self.cluster.closed:
            if (self.cluster.size, self.cluster.carrier) == (local, carrier):
                self.say(f"already connected: {self.cluster!r}")
                return self.cluster
            self.cluster.close()
        from tbkit.cluster import connect

        self.cluster = connect(local=local, policy=policy, carrier=carrier)
        return self.cluster

    def close(self) -> None:
        """Close what is open."""
        if self.cluster is not None:
            self.cluster.close()
        self.cluster = self.model = None


def _connect(args: argparse.Namespace, session: Session) -> Any:
    return session.connect(args.local, args.policy, args.carrier)


def _status(_args: argparse.Namespace, session: Session) -> Any:
    return session.open_cluster()


def _disconnect(_args: argparse.Namespace, session: Session) -> Any:
    if session.cluster is None:
        session.say("not connected")
    session.close()


def _links(args: argparse.Namespace, session: Session) -> Any:
    from tbkit.cluster.links import Effort, check_nodes, measure

    effort = {"sizes": args.sizes, "blocks": args.blocks, "iterations": args.iterations, "seed": args.seed}
    Effort(**effort).check()
    check_nodes(args.what, args.local if args.local is not None else session.open_cluster().size)
    return measure(session.cluster_of(args), args.what, say=session.say, **effort)


class Measures:
    """The names of the micro suite; its room is loaded when one is asked for."""

    def __iter__(self) -> Iterator[str]:
        from tbkit.cluster.links import MEASURES

        return iter(MEASURES)

    def __contains__(self, name: object) -> bool:
        return name in list(self)


def _plan(args: argparse.Namespace, session: Session) -> Any:
    from tbkit.hardware import read_machines
    from tbkit.plan import plan

    if args.nodes is not None:
        return plan(args.model, len(read_machines(args.nodes)))
    return plan(args.model, args.local if args.local is not None else session.open_cluster())


def _shard(args: argparse.Namespace, session: Session) -> Any:
    from tbkit.cluster import shard

    session.model = shard(session.open_cluster(), args.kind, args.model, backend=args.backend)
    return session.model


def _counts(args: argparse.Namespace, session: Session) -> tuple[int, ...]:
    """The node counts of ``--on``, or those of 1, 2 and 4 that the cluster has; known before it starts."""
    size = args.local if args.local is not None else session.open_cluster().size
    if args.on is None:
        return tuple(n for n in COUNTS if n <= max(size, 1))
    if max(args.on) > size > 0:
        most = max(args.on)
        raise UsageError("--on", f"at most the {size} nodes of the cluster", str(most), f"Try --local {most}")
    return args.on  # type: ignore[no-any-return]


def _check_names(args: argparse.Namespace) -> None:
    """UsageError for a model, kind or fault that is not there, before anything starts."""
    from tbkit.model.catalog import find
    from tbkit.plan.placement import KINDS

    facts = find(args.model).facts
    for flag in ("kind", "full"):
        for kind in getattr(args, flag) or ():
            if kind not in KINDS:
                raise UsageError(f"--{flag}", "a kind of plan", kind, nearest(kind, KINDS))
    _check_plant(args.plant, facts.layers)


def _check_plant(plant: str | None, layers: int) -> None:
    if plant is not None:
        from tbkit.rank.sharded.faults import parse as parse_fault

        parse_fault(plant, layers)


def _scale(args: argparse.Namespace, session: Session) -> Any:
    from tbkit.scale import Design
    from tbkit.scale.run import scale
    from tbkit.view.progress import Progress

    _check_names(args)
    on = _counts(args, session)
    design = Design(
        on=on,
        blocks=args.blocks,
        steps=args.steps,
        loads=args.loads,
        seed=args.seed,
        backend=args.backend,
        full=tuple((n, k) for n in on for k in args.full),
    )
    design.check()
    with Progress("scale decode") as tell:
        cluster = session.cluster_of(args)
        return scale(
            cluster,
            args.workload,
            args.kind,
            model=args.model,
            design=design,
            plant=args.plant,
            say=session.say,
            tick=tell,
        )


def _explain(args: argparse.Namespace, _session: Session) -> Any:
    from tbkit.explain.explanation import explain

    return explain(args.run)


def _quickstart(args: argparse.Namespace, session: Session) -> Any:
    from tbkit.main_job import quickstart
    from tbkit.model.catalog import find

    _check_plant(args.plant, find(DEFAULT_MODEL).facts.layers)
    return quickstart(args.out, plant=args.plant, say=session.say)


def whole_numbers(text: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers above 0; argparse turns the error into ours."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"whole numbers such as 1,2,4, got {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def words(text: str) -> list[str]:
    """``a,b`` as words."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _cluster_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--local", type=int, metavar="N", help="N engines on this machine")
    policies = ("auto", "spin", "yield", "futex")
    parser.add_argument(
        "--policy", choices=policies, default="auto", help="how ranks wait (auto by occupancy)"
    )


def _carrier_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--carrier",
        choices=("shm", "tcp", "verbs"),
        default="shm",
        help="what frames go over (verbs: the mock of TBKIT_LIBRDMA)",
    )


def _connect_flags(parser: argparse.ArgumentParser) -> None:
    _cluster_flags(parser)
    _carrier_flag(parser)


def _links_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", default="cards", choices=Measures(), metavar="WHAT", help="one of %(choices)s"
    )
    _connect_flags(parser)
    parser.add_argument(
        "--sizes", type=whole_numbers, metavar="B,B", help="message sizes in bytes (of crossing, widths)"
    )
    parser.add_argument("--blocks", type=int, default=5, help="passes over everything (default 5)")
    parser.add_argument(
        "--iterations", type=int, default=1000, help="at most, a size and block (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random order")


def _model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, metavar="M", help=f"a model (default {DEFAULT_MODEL})"
    )
    parser.add_argument(
        "--backend", choices=("fabric", "ring"), default="fabric", help="what carries the collectives"
    )


def _scale_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", choices=("decode",), help="what is timed")
    _model_flags(parser)
    _cluster_flags(parser)
    parser.add_argument(
        "--on", type=whole_numbers, metavar="N,N", help="node counts (default: those of 1,2,4 that are there)"
    )
    parser.add_argument("--kind", type=words, metavar="K,K", help="kinds of plan (default: all that fit)")
    parser.add_argument(
        "--full", type=words, default=["tensor-uneven"], metavar="K,K", help="kinds that run all arms"
    )
    parser.add_argument("--blocks", type=int, default=5, help="blocks a load (default 5)")
    parser.add_argument("--steps", type=int, default=6, help="tokens an arm (default 6)")
    parser.add_argument("--loads", type=int, default=5, help="loads a plan (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="of every random order")
    parser.add_argument("--plant", metavar="FAULT:LAYER", help="plant a fault, to see the gate find it")


def _quickstart_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="build/quickstart", metavar="DIR", help="where the report goes")
    parser.add_argument("--plant", metavar="FAULT:LAYER", help="plant a fault, to see the gate find it")


def _plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_first", nargs="?", metavar="MODEL", help="the same as --model")
    _model_flags(parser)
    parser.add_argument("--nodes", metavar="SPEC", help="machines, such as 512,512 or m3ultra-512*2")
    parser.add_argument("--local", type=int, metavar="N", help="N equal nodes")


def _shard_flags(parser: argparse.ArgumentParser) -> None:
    _model_flags(parser)
    parser.add_argument("--kind", metavar="K", help="kind of plan (default: the best that fits)")


def _explain_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="last", metavar="RUN", help="a folder, an id, or last")


VERBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[..., Any]]] = {
    "connect": ("start a cluster", _connect_flags, _connect),
    "status": ("nodes, engines and ranks", lambda _: None, _status),
    "disconnect": ("stop the cluster", lambda _: None, _disconnect),
    "links": ("what each cable can do, and the collectives over them", _links_flags, _links),
    "plan": ("every placement of a model, with its reason", _plan_flags, _plan),
    "shard": ("load a model over the cluster", _shard_flags, _shard),
    "scale": ("time a workload on 1, 2, 4 nodes", _scale_flags, _scale),
    "explain": ("why N nodes are not N times faster", _explain_flags, _explain),
    "quickstart": ("the main job on this machine, with its report", _quickstart_flags, _quickstart),
}
CLUSTER_VERBS = ("connect", "status", "links", "disconnect")
COMMAND_VERBS = ("quickstart", "links", "plan", "scale", "explain")


def tree(prog: str, verbs: Sequence[str], *, json: bool) -> Parser:
    """The parser of these verbs. ``json`` adds the command line's ``--json``."""
    parser = Parser(prog=prog, description="Why N machines are not N times faster, with evidence.")
    subs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in verbs:
        help_text, flags, action = VERBS[name]
        example = f"example: {prog} {EXAMPLES[name]}"
        sub = subs.add_parser(name, help=help_text, description=f"{help_text}.", epilog=example)
        flags(sub)
        if json:
            sub.add_argument("--json", action="store_true", help="one JSON document on standard output")
        sub.set_defaults(action=action)
    return parser


def single(prog: str, verb: str) -> Parser:
    """The parser of one verb, for a magic of its own."""
    help_text, flags, action = VERBS[verb]
    parser = Parser(
        prog=prog, description=f"{help_text}.", epilog=f"example: {prog} {EXAMPLES[verb].partition(' ')[2]}"
    )
    flags(parser)
    parser.set_defaults(action=action)
    return parser


def perform(parser: Parser, line: str | Sequence[str], session: Session) -> Any:
    """Parse a line, or words, and do it; gives the verb's object."""
    args = parse(parser, shlex.split(line) if isinstance(line, str) else list(line))
    return args.action(args, session)


def parse(parser: Parser, given: Sequence[str]) -> argparse.Namespace:
    """Parsed arguments; a first positional model counts as ``--model``."""
    args = parser.parse_args(given)
    if getattr(args, "model_first", None):
        args.model = args.model_first
    return args
