"""The compiled module. Arrays are dense, row-major, with the buffer protocol: numpy or mlx. Times are in
seconds unless the name says otherwise. Faults are raised as the classes of tbkit.errors."""

from typing import Any, Literal, TypedDict, TypeVar, overload

_A = TypeVar("_A")

class _Count(TypedDict):
    calls: int
    bytes: int

class Mesh:
    def __init__(
        self, rank: int, nodes: list[str], cables: list[tuple[Any, ...]], silence_s: float, large_frames: int
    ) -> None: ...
    @property
    def card(self) -> bytes: ...
    def connect(self, cards: list[bytes], deadline_s: float) -> None: ...
    def start(self, cards: list[bytes]) -> None: ...
    def close(self) -> None: ...

class Group:
    @overload
    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        deadline_s: float = 30.0,
        policy: str = "auto",
        links: list[tuple[int, int, int, float]] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        mesh: Mesh,
        name: str,
        deadline_s: float,
        policy: str,
        links: list[tuple[int, int, int, float]] = ...,
    ) -> None: ...
    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: Literal["sum", "max", "min"] = "sum",
        *,
        algorithm: Literal["auto", "direct", "scatter"] = "auto",
        dtype: Any = None,
        deadline_s: float | None = None,
    ) -> Any:
        """Reduce x over all ranks, elementwise; the same bits on every rank. Returns out.

        x has any shape, of float16, bfloat16, float32, float64 or int32; dtype="bfloat16" reads uint16 as
        that. out=None makes a new array, out=x works in place, else out has x's size and dtype. 16-bit types
        are summed in float32, in rank order, and rounded once; a NaN gives the one quiet NaN; max of zeros is
        +0, min -0. algorithm: direct, every rank sums all; scatter, each element has one owner; auto, by
        size.
        """
    def all_gather(self, x: Any, out: Any = None, *, deadline_s: float | None = None) -> Any:
        """All ranks' x in rank order: out of shape (size, *x.shape), new where None. x may be out[rank]."""
    def broadcast(self, x: _A, root: int = 0, *, deadline_s: float | None = None) -> _A:
        """Write root's x over everyone's, in place; returns x."""
    def send(self, x: Any, dst: int, *, deadline_s: float | None = None) -> None:
        """Send x to rank dst. Returns once it is in the channel, which holds 8 frames of up to 32 KiB."""
    def recv(self, out: _A, src: int, *, deadline_s: float | None = None) -> _A:
        """Receive out.nbytes from rank src into out; returns out."""
    def barrier(self, *, deadline_s: float | None = None) -> None:
        """Return once all ranks have called."""
    def fill_pingpong(self, peer: int, bytes: int, samples: Any, deadline_s: float | None = None) -> None: ...
    def fill_bare_pingpong(self, peer: int, samples: Any, deadline_s: float | None = None) -> None: ...
    def fill_window(
        self, peer: int, bytes: int, count: int, samples: Any, deadline_s: float | None = None
    ) -> None: ...
    def fill_clock(self, peer: int, pause_s: float, stamps: Any, deadline_s: float | None = None) -> None: ...
    def close(self) -> None:
        """Leave the group and unmap it; a second call does nothing."""
    def rank_facts(self, rank: int) -> dict[str, Any]: ...
    def interrupt_bits(self, ranks: int) -> None: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def oversubscribed(self) -> bool:
        """More ranks in the group than cores this process may run on."""
    @property
    def fd(self) -> int:
        """Descriptor of the segment."""
    @property
    def raw_counts(self) -> dict[str, _Count]:
        """Finished operations and this rank's payload bytes in them, by operation."""
    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def deadline_s(self) -> float: ...

class Window:
    def __init__(self, group: Group, memory: Any | None, deadline_s: float | None) -> None: ...
    def read_into(
        self, rank: int, offset: int, length: int, out: _A, deadline_s: float | None = None
    ) -> _A: ...
    def fill_times(
        self, rank: int, offset: int, out: Any, samples: Any, deadline_s: float | None = None
    ) -> None: ...
    def bytes_of(self, rank: int) -> int:
        """How many bytes a rank exposes."""
    def carrier(self, rank: int) -> str: ...
    def close_by(self, deadline_s: float | None) -> None: ...
    @property
    def is_open(self) -> bool: ...

class Observer:
    def __init__(self, *source: Any) -> None: ...
    def rank_facts(self, rank: int) -> dict[str, Any]: ...
    def interrupt_bits(self, ranks: int) -> None: ...
    def close(self) -> None: ...
    @property
    def broken(self) -> dict[str, Any] | None:
        """The fault that ended the group, None while it is whole."""
    @property
    def size(self) -> int: ...
    @property
    def attached(self) -> int:
        """Ranks that have joined so far."""

def start_heartbeat(
    fd: int, interval_s: float, watch_fd: int | None = None, grace_s: float = 2.0, message: bytes = b"\0"
) -> None:
    """Start the thread that writes message to fd each interval and exits the process (code 113, after
    grace_s) when watch_fd (default fd) comes to its end. It needs no GIL. It also keeps heartbeat_ns of
    joined groups."""

def stop_heartbeat() -> None: ...
def heartbeat_count() -> int:
    """Messages written so far."""

def die_with_parent(parent_pid: int, signal: int = 9) -> bool:
    """Have the system send signal when the parent thread ends, then exit at once if getppid() is not
    parent_pid. False where the system has no such thing (macOS): use start_heartbeat's end-of-file."""

def set_timer_slack_ns(ns: int) -> bool:
    """Timer slack of the calling thread."""

def cores_free() -> int:
    """Cores that this process may run on."""

def discard(name: str) -> None: ...
def testing_skew(group: Group, offset_ns: int, origin_ns: int, drift: float) -> None:
    """For tests only: in exchanges this rank's clock shows t + offset_ns + drift * (t - origin_ns)."""

def testing_corrupt_next_frame(group: Group) -> None:
    """For tests only: damage the head of the next frame that this rank sends."""
