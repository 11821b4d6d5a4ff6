"""Reading a list of machines: ``512,512,256,256`` or ``m3ultra-512*2``.

A bare ``512`` is a Mac sold as 512 GB, which is 512 GiB; ``512GiB`` says the same, ``512GB`` is 512·10⁹ bytes.
"""

from __future__ import annotations

import re

import msgspec

from tbkit.errors import UsageError

LEAST_GB = 8  # no Mac with Apple silicon has less
MOST_MACHINES = 1000
_ITEM = re.compile(
    r"(?:(?P<chip>m\d+(?:pro|max|ultra)?)-)?(?P<size>\d+)(?P<unit>GiB|GB)?(?:\*(?P<times>\d+))?", re.I
)


class Machine(msgspec.Struct, frozen=True):
    """One node: the chip's name, or "" where it was not said, and memory in bytes."""

    chip: str
    memory_bytes: int


def read_machines(text: str) -> list[Machine]:
    """The machines of a list, in order. UsageError names the item that cannot be read."""
    machines: list[Machine] = []
    for item in text.split(","):
        found = _ITEM.fullmatch(item.strip())
        if found is None or int(found["times"] or 1) < 1:
            rule = "a list of machines such as 512,512,256,256 or m3ultra-512*2"
            raise UsageError(
                "--nodes", rule, item.strip() or "nothing", "For equal nodes on this machine: --local 2"
            )
        size = int(found["size"])
        if size < LEAST_GB:
            remedy = f"It describes machines by their memory; for {size} equal nodes on this machine: --local {size}"
            raise UsageError("--nodes", f"a Mac has at least {LEAST_GB} GB", item.strip(), remedy)
        if len(machines) + int(found["times"] or 1) > MOST_MACHINES:
            raise UsageError("--nodes", f"at most {MOST_MACHINES} machines", item.strip())
        unit = 10**9 if (found["unit"] or "").upper() == "GB" else 2**30
        machines += [Machine((found["chip"] or "").lower(), size * unit)] * int(found["times"] or 1)
    return machines
