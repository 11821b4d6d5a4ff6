"""The magics: ``%tbcluster``, ``%tbplan``, ``%tbshard``, ``%tbscale``, ``%tbexplain``, ``%tb``.

Each is a thin spelling of a verb (:mod:`tbkit.verbs`) and returns its object. IPython expands ``$x``
and ``{x}`` before a magic sees its line.
"""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced

from tbkit.errors import TbkitError
from tbkit.verbs import CLUSTER_VERBS, COMMAND_VERBS, EXAMPLES, VERBS, Parser, Session, perform, single, tree

_MAGICS = {"tbplan": "plan", "tbshard": "shard", "tbscale": "scale", "tbexplain": "explain"}
_SHELL_ATTRIBUTE = "_tbkit_magics"


@magics_class
class TbkitMagics(Magics):
    """The instance holds the current cluster; there is no state in globals."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.session = Session()

    def _do(self, parser: Parser, line: str) -> Any:
        try:
            return perform(parser, line, self.session)
        except TbkitError as error:
            raise IPythonUsageError(str(error)) from None
        except ValueError as error:  # an open quote
            raise IPythonUsageError(f"{parser.prog}: {error}") from None
        except SystemExit:  # --help has printed
            return None

    @output_can_be_silenced
    @line_magic
    def tbcluster(self, line: str) -> Any:
        """The cluster. Verbs, each with an example:

        ::

            %tbcluster connect --local 2
            %tbcluster status
            %tbcluster disconnect
            %tbcluster help connect
        """
        verb, _, rest = line.strip().partition(" ")
        if verb in ("", "help"):
            return _help(rest.strip() or None, "%tbcluster", CLUSTER_VERBS)
        answer = self._do(tree("%tbcluster", CLUSTER_VERBS, json=False), line)
        if verb == "connect" and answer is not None:
            self._activate(answer)
        return answer

    @output_can_be_silenced
    @line_magic
    def tb(self, line: str) -> Any:
        """Any verb of the command line: ``%tb quickstart``, ``%tb explain last``."""
        verb, _, rest = line.strip().partition(" ")
        if verb in ("", "help"):
            return _help(rest.strip() or None, "%tb", COMMAND_VERBS)
        return self._do(tree("%tb", COMMAND_VERBS, json=False), line)

    @output_can_be_silenced
    @line_magic
    def tbplan(self, line: str) -> Any:
        """Every placement of a model: ``%tbplan --model smollm2-135m-instruct --local 2``."""
        return self._do(single("%tbplan", "plan"), line)

    @output_can_be_silenced
    @line_magic
    def tbshard(self, line: str) -> Any:
        """Load a model over the cluster: ``%tbshard --kind tensor-uneven``."""
        return self._do(single("%tbshard", "shard"), line)

    @output_can_be_silenced
    @line_magic
    def tbscale(self, line: str) -> Any:
        """Time a workload on 1, 2, 4 nodes: ``%tbscale decode --on 1,2``."""
        return self._do(single("%tbscale", "scale"), line)

    @output_can_be_silenced
    @line_magic
    def tbexplain(self, line: str) -> Any:
        """Why N nodes are not N times faster: ``%tbexplain last``."""
        return self._do(single("%tbexplain", "explain"), line)

    def _activate(self, cluster: Any) -> None:
        """Register ``%px`` for the engines of the cluster, in rank order."""
        cluster.activate()

    def before_cell(self, info: Any) -> None:
        """A cell with %px first replaces what has died, so that it runs on every rank."""
        cluster = self.session.cluster
        if cluster is not None and not cluster.closed and info.raw_cell and "%px" in info.raw_cell:
            try:
                cluster.heal()
            except TbkitError as error:
                print(error)


def _help(verb: str | None, prog: str, verbs: tuple[str, ...]) -> None:
    if verb is None:
        lines = [f"{prog} {EXAMPLES[name]:<44} {VERBS[name][0]}" for name in verbs]
        print("\n".join([*lines, f"{prog} help VERB shows its flags"]))
    elif verb not in verbs:
        raise IPythonUsageError(f"{prog} help: there is no verb {verb!r}. Known: {', '.join(verbs)}")
    else:
        single(f"{prog} {verb}", verb).print_help()


def complete(_shell: Any, event: Any) -> list[str]:
    """Verbs, then flags, of the magic at the start of the line."""
    magic, *given = event.line.lstrip("%").split(" ")
    if magic in ("tbcluster", "tb"):
        verbs = CLUSTER_VERBS if magic == "tbcluster" else COMMAND_VERBS
        if len(given) < 2:
            return [*verbs, "help"]
        verb = given[0] if given[0] in verbs else None
    else:
        verb = _MAGICS[magic]
    if verb is None:
        return []
    parser = single(magic, verb)
    return [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tbkit``: registers the magics; no network, no mlx, no output. Twice is harmless."""
    if getattr(shell, _SHELL_ATTRIBUTE, None) is not None:
        return
    magics = TbkitMagics(shell)
    shell.register_magics(magics)
    shell.events.register("pre_run_cell", magics.before_cell)
    for name in ("tbcluster", "tb", *_MAGICS):
        shell.set_hook("complete_command", complete, str_key=f"%{name}")
    setattr(shell, _SHELL_ATTRIBUTE, magics)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext tbkit``: closes the cluster and takes the magics away."""
    magics = getattr(shell, _SHELL_ATTRIBUTE, None)
    if magics is None:
        return
    magics.session.close()
    shell.events.unregister("pre_run_cell", magics.before_cell)
    for name in ("tbcluster", "tb", *_MAGICS):
        shell.magics_manager.magics["line"].pop(name, None)
    setattr(shell, _SHELL_ATTRIBUTE, None)
