"""Groups over several nodes: what comes up between them, in the steps that the control plane walks through.

The control plane is whatever already joins the ranks (an ipyparallel client, ssh's standard input, a folder). It
carries two all-gathers of a few hundred bytes; no port is open for it. Then connections come up on the cables'
own addresses, known to each other by a token made of random bytes of every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from tbkit import _kernels
from tbkit.errors import LinkFailed, TbkitError, from_dict
from tbkit.fabric.cabling import Cabling
from tbkit.fabric.group import Group, Policy
from tbkit.fabric.notes import pack, unpack
from tbkit.fabric.shape import Shape, on_cables

Exchange = Callable[[bytes], Sequence[bytes]]
SILENCE_S = 5.0


class Mesh:
    """One rank's part of a group that comes up: ``card``, ``connect``, ``card`` again, ``start``, ``group``.

    Made with listeners open on this node's addresses and its RDMA devices held. Any failure closes it; then a new
    one is made, never the same tried again. ``silence_s``: a rank that is not heard of for so long is lost.
    ``large_frames``: 4 KiB frames of a large verbs slot, 0 the default of 16, 1 for macOS 26.2.

    Raises LinkFailed, which names step, cable and the system's error; UsageError for arguments that cannot be.
    """

    def __init__(
        self, cabling: Cabling, rank: int, *, silence_s: float = SILENCE_S, large_frames: int = 0
    ) -> None:
        self.cabling, self.rank = cabling, rank
        self._mesh = _kernels.Mesh(rank, list(cabling.nodes), cabling.rows(), silence_s, large_frames)

    @property
    def card(self) -> bytes:
        """What the other ranks need of this one: at first to connect; once connected, to send."""
        return self._mesh.card

    def connect(self, cards: Sequence[bytes], deadline_s: float) -> None:
        """Bring up what leads to the others, from the first cards of all ranks, within ``deadline_s`` seconds."""
        self._mesh.connect(list(cards), deadline_s)

    def start(self, cards: Sequence[bytes]) -> None:
        """Take the second cards of all ranks: from now on frames may be sent."""
        self._mesh.start(list(cards))

    def group(
        self,
        name: str = "mesh",
        deadline_s: float = 30.0,
        policy: Policy = "auto",
        shape: Shape | None = None,
    ) -> Group:
        """The group over it; the mesh belongs to the group and ends with it. ``shape``: of its cables."""
        return Group.over(self._mesh, name, deadline_s, policy, on_cables(shape, self.cabling))

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        self._mesh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def form(
    cabling: Cabling,
    rank: int,
    exchange: Exchange,
    *,
    deadline_s: float = 30.0,
    policy: Policy = "auto",
    silence_s: float = SILENCE_S,
    large_frames: int = 0,
    shape: Shape | None = None,
) -> Group:
    """The group of all ranks of a cabling; all call it. ``exchange`` gives every rank the bytes of all, by rank.

    ``shape``: of all cables, or by pair of ranks, on one machine; the same on every rank.
    A rank that fails tells the others in the same exchange, so that each raises LinkFailed at once with the cause.
    """
    mesh: Mesh | None = None

    def made() -> bytes:
        nonlocal mesh
        on_cables(shape, cabling)
        mesh = Mesh(cabling, rank, silence_s=silence_s, large_frames=large_frames)
        return mesh.card

    try:
        cards = _round(made, cabling, exchange)
        assert mesh is not None
        whole = mesh

        def connected() -> bytes:
            whole.connect(cards, deadline_s)
            return whole.card

        whole.start(_round(connected, cabling, exchange))
        return whole.group("-".join(cabling.nodes), deadline_s, policy, shape)
    except BaseException:
        if mesh is not None:
            mesh.close()
        raise


def _round(step: Callable[[], bytes], cabling: Cabling, exchange: Exchange) -> list[bytes]:
    """All ranks' cards after a step; where one failed, its error, on every rank."""
    failed: TbkitError | None = None
    try:
        note = pack(step())
    except TbkitError as error:
        failed, note = error, pack(error)
    answers = [unpack(answer) for answer in exchange(note)]
    if failed is not None:
        raise failed
    for other, answer in enumerate(answers):
        if isinstance(answer, dict):
            told = from_dict(answer)
            subject = f"{cabling.nodes[other]}: {told.subject}"
            raise LinkFailed(subject, told.rule, told.got, told.remedy, **told.facts | {"failed": other})
    return [answer for answer in answers if isinstance(answer, bytes)]
