"""The command line: ``tbkit VERB``, the same as ``python -m tbkit``.

Exit 0: done; 1: done, and the answer is bad; 2: usage or unreadable input, one line on standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbkit import __version__
from tbkit.errors import Interrupted, TbkitError
from tbkit.verbs import COMMAND_VERBS, Session, parse, tree


def main(given: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code."""
    words = list(sys.argv[1:] if given is None else given)
    if words[:1] == ["--version"]:
        print(f"tbkit {__version__}")
        return 0
    session = Session(say=_say, how_to_connect="Add --local 2 for two engines on this machine")
    with contextlib.suppress(ValueError):  # only the main thread takes signals
        signal.signal(signal.SIGTERM, _stop_orderly)
    try:
        args = parse(tree("tbkit", COMMAND_VERBS, json=True), words or ["--help"])
        return _show(args.action(args, session), args)
    except TbkitError as error:
        text = str(error)
        print(text if text.startswith("tbkit") else f"tbkit: {text}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("tbkit: stopped by Ctrl-C or SIGTERM", file=sys.stderr)
        return Interrupted.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        session.close()


def _stop_orderly(*_: object) -> None:
    """SIGTERM is taken as Ctrl-C: engines and ranks are stopped, and not left behind. A second one is ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    """Progress goes to standard error, so that standard output is the answer alone."""
    print(text, file=sys.stderr, flush=True)


def _show(answer: Any, args: argparse.Namespace) -> int:
    """Print the answer as text or JSON; 1 when it is a bad one."""
    document, text, good = _forms(answer, args)
    print(json.dumps(document, indent=2) if args.json else text, flush=True)
    return 0 if good else 1


def _forms(answer: Any, args: argparse.Namespace) -> tuple[Any, str, bool]:
    """An answer as a JSON document, as text, and whether it is a good one."""
    if args.verb == "plan":
        document = answer.to_json()
        return document, str(answer), document["best"] is not None
    if args.verb == "links":
        from tbkit.view.links import measurement_text

        return answer.to_json(), measurement_text(answer), answer.good
    import msgspec

    from tbkit.view.text import record_text, summary

    record = answer.record
    good = record.state == "done"
    if args.verb == "quickstart":
        return summary(record), f"{record_text(record)}\n\nreport: {Path(args.out) / 'report.html'}", good
    if args.verb == "explain":
        return (
            answer.to_json(),
            f"{record_text(record)}\n\n{answer.words}\nNext: {answer.next_experiment}",
            good,
        )
    return msgspec.to_builtins(record), f"{record_text(record)}\n\nrun: {answer.path}", good


if __name__ == "__main__":
    sys.exit(main())
