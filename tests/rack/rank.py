"""A rank on a node: runs the code that it is sent, a JSON line in, ``answer JSON`` out.

The exchange of ``form`` goes through the same two streams (``fabric.over_stdio``); who started it gathers the notes.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

import numpy as np

from tbkit.errors import TbkitError
from tbkit.fabric import Cable, Cabling, End, form, over_stdio
from tests.fabric.worker import as_array, make_bits


def join(values: dict[str, Any]) -> dict[str, Any]:
    """Form the group ``g`` over cables given as rows; also forget the one before."""
    cabling = Cabling(
        values["nodes"], [Cable(End(*a), End(*b), carrier) for a, b, carrier in values["cables"]]
    )
    options = {name: values[name] for name in ("deadline_s", "silence_s", "policy")}
    return {"g": form(cabling, values["rank"], over_stdio(), **options), "said": str(cabling)}


def answer(space: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The value of ``result`` after the code, or what was raised; how long it took."""
    began = time.monotonic()
    space.update(request["values"], result=None)
    try:
        exec(request["code"], space)
        found: dict[str, Any] = {"result": space["result"]}
    except TbkitError as error:
        found = {"error": error.to_dict()}
    except Exception:
        found = {"failed": traceback.format_exc()}
    return found | {"took_s": time.monotonic() - began}


def main() -> None:
    """Serve until end of file."""
    space: dict[str, Any] = {"np": np, "make_bits": make_bits, "as_array": as_array, "join": join}
    print("answer {}", flush=True)
    for line in iter(sys.stdin.buffer.readline, b""):
        print("answer", json.dumps(answer(space, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
