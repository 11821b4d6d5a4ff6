"""The ipyparallel side: a private controller, one engine set a node so that one can be replaced."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tbkit.errors import ConnectFailed
from tbkit.rank.owner import Owner, owner_here
from tbkit.rank.supervisor import exit_words

CURVE = "--IPController.enable_curve=True"
STOP_DEADLINE_S = 10.0
REAP_DEADLINE_S = 2.0
POLL_S = 0.05


def _node_of_engine() -> tuple[str, int]:
    """On an engine: the node it was started for, and its pid."""
    import os

    return os.environ["TBKIT_NODE"], os.getpid()


class Engines:
    """Controller, engines and client of one cluster; ``ids[node]`` is the engine's id, -1 while it is gone."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes = folder, nodes
        self.cluster: Any = None
        self.client: Any = None
        self.ids = dict.fromkeys(nodes, -1)
        self.processes: dict[int, psutil.Process] = {}

    def start(self, deadline_s: float) -> None:
        """Start the controller (CurveZMQ on) and one engine a node; return when all have registered."""
        from ipyparallel import Cluster

        watch = f"from tbkit.rank import owner\nowner.watch(owner.{self.owner()!r})\n"
        (self.folder / "ipcontroller_config.py").write_text(watch)  # the controller runs it as it starts
        log = logging.getLogger("tbkit.engines")
        log.setLevel(logging.CRITICAL)
        self.cluster = Cluster(
            profile_dir=str(self.folder),
            cluster_id="",
            controller_args=[CURVE],
            controller_ip="127.0.0.1",
            load_profile=False,
            shutdown_atexit=False,
            log=log,
        )
        self.cluster.start_controller_sync()
        for node in self.nodes:
            self._launch(node)
        self.client = self.cluster.connect_client_sync()
        self._identify(self.nodes, deadline_s)

    def _launch(self, node: str) -> None:
        environment = {"TBKIT_NODE": node}
        self.cluster.start_engines_sync(n=1, engine_set_id=self._set_id(node), environment=environment)

    def _set_id(self, node: str) -> str:
        return f"tbkit-{node}"

    def _identify(self, nodes: list[str], deadline_s: float) -> None:
        """Learn which new engine stands for which node. ConnectFailed names the nodes that did not come."""
        end = time.monotonic() + deadline_s
        missing, known = set(nodes), set(self.ids.values())
        while missing:
            for engine in [i for i in self.client.ids if i not in known]:
                node, pid = self.client[engine].apply_async(_node_of_engine).get(timeout=deadline_s)
                known.add(engine)
                self.ids[node] = engine
                self._remember(pid)
                missing.discard(node)
            if dead := [node for node in missing if not self.launched(node)]:
                raise ConnectFailed("engine", "starts", f"{', '.join(dead)} ended: {self._end_of(dead[0])}")
            if missing and time.monotonic() > end:
                raise ConnectFailed(
                    "engine", f"registers within {deadline_s:g} s", f"none from {', '.join(sorted(missing))}"
                )
            if missing:
                time.sleep(POLL_S)

    def _remember(self, pid: int) -> None:
        """Keep an engine and its nanny, so that closing can wait for both."""
        try:
            engine = psutil.Process(pid)
            for process in [engine, *engine.children(recursive=True)]:
                self.processes[process.pid] = process
        except psutil.NoSuchProcess:
            return

    def _end_of(self, node: str) -> str:
        """How an engine that has ended did so, and the last line that it left."""
        logs = sorted((self.folder / "log").glob(f"*{self._set_id(node)}-*"))
        lines = logs[-1].read_text(errors="replace").split("\n") if logs else []
        code = self._exit_code(node)
        how = "exit code not known" if code is None else exit_words(code)
        return f"{how}, {next((line for line in reversed(lines) if line.strip()), 'no output')}"

    def _exit_code(self, node: str) -> int | None:
        """The exit code of an engine that has ended; None where the system no longer tells it."""
        engine_set = self.cluster.engines[self._set_id(node)]
        for one in list(engine_set.launchers.values()):
            one._wait_thread.join(
                REAP_DEADLINE_S
            )  # it takes the code; a second waiter would race with it for that
            return one.process.wait(0)  # type: ignore[no-any-return]
        return engine_set.stop_data.get("exit_code")  # type: ignore[no-any-return]

    def launched(self, node: str) -> bool:
        """Whether the engine process of a node runs. Asked of the system: ipyparallel's own state needs its loop."""
        engine_set = self.cluster.engines.get(self._set_id(node))
        return engine_set is not None and any(_runs(one.process) for one in engine_set.launchers.values())

    def alive(self, node: str) -> bool:
        """Whether a node's engine is registered and its process runs."""
        return self.ids[node] in self.client.ids and self.launched(node)

    def replace(self, node: str, deadline_s: float) -> None:
        """Start a new engine for a node whose engine is gone."""
        self.ids[node] = -1
        if self._set_id(node) in self.cluster.engines:
            self.cluster.stop_engines_sync(self._set_id(node))
        self._launch(node)
        self._identify([node], deadline_s)

    def apply(self, node: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on a node's engine; gives ipyparallel's AsyncResult."""
        return self.client[self.ids[node]].apply_async(function, *args)

    def interrupt(self, nodes: list[str]) -> None:
        """SIGINT to the engines of these nodes."""
        for node in nodes:
            if self.launched(node):
                self.cluster.signal_engines_sync(signal.SIGINT, self._set_id(node))

    def stop(self) -> list[str]:
        """Stop engines, nannies and controller, wait for all; gives the names of what had to be killed."""
        if self.cluster is None:
            return []
        if self.client is not None:
            self.client.close()
        self.cluster.stop_engines_sync()  # first, so that the nannies find a hub to report to, and end at once
        left = _ended(self.processes)
        controller = self.cluster.controller
        if controller is not None:
            self.processes = {}
            self._remember(controller.pid)
            self.cluster.stop_controller_sync()
            left += _ended(self.processes)
        self.cluster = None
        return [f"pid {process.pid}" for process in left]

    def remove_folder(self) -> None:
        """Delete the private folder with its keys and logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def owner(self) -> Owner:
        """This process, with which controller, engines and folder are to end."""
        return owner_here(str(self.folder))

    def environment(self) -> dict[str, str]:
        """For the rank processes: temporary files go to the private folder, which closing removes."""
        (self.folder / "files").mkdir(mode=0o700, exist_ok=True)
        return {
            "TMPDIR": str(self.folder / "files"),
            "PYTHONUNBUFFERED": "1",
            "PATH": os.environ.get("PATH", ""),
        }


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _ended(processes: dict[int, psutil.Process]) -> list[psutil.Process]:
    """Wait for these; gives those that had to be killed."""
    left: list[psutil.Process]
    _, left = psutil.wait_procs(list(processes.values()), timeout=STOP_DEADLINE_S)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=1.0)
    return left
