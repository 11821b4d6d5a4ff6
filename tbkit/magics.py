"""The magics: ``%tbcluster``, ``%tbplan``, ``%tbshard``, ``%tbscale``, ``%tbexplain``, ``%tb``.

Each is a thin spelling of a verb (:mod:`tbkit.verbs`) and returns its object. IPython expands ``$x``
and ``{x}`` before a magic sees its line.
"""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced

from tbkit.errors import TbkitError
from tbkit.verbs import (
    CLUSTER_VERBS,
    COMMAND_VERBS,
    EXAMPLES,
    VERBS,
    Parser,
    Session,
    nearest,
    perform,
    single,
    tree,
)

_MAGICS = {"tbplan": "plan", "tbshard": "shard", "tbscale": "scale", "tbexplain": "explain"}
_LINE = re.compile(
    rf"\s*(?:[^=%]+=\s*(?=%))?%?(?P<magic>{'|'.join(('tbcluster', 'tb', *_MAGICS))})\s(?P<given>.*)"
)
_SHELL_ATTRIBUTE = "_tbkit_magics"


@magics_class
class TbkitMagics(Magics):
    """The instance holds the current cluster; there is no state in globals."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.session = Session()

    def _do(self, parser: Parser, line: str) -> Any:
        try:
            given = shlex.split(line)
        except ValueError as error:  # an open quote
            raise IPythonUsageError(f"{parser.prog}: {error}") from None
        try:
            return perform(parser, given, self.session)
        except TbkitError as error:
            raise IPythonUsageError(str(error)) from None
        except SystemExit:  # --help has printed
            return None

    @output_can_be_silenced
    @line_magic
    def tbcluster(self, line: str) -> Any:
        """The cluster. Verbs, each with an example:

        ::

            %tbcluster connect --local 2
            %tbcluster status
            %tbcluster links lat
            %tbcluster disconnect
            %tbcluster help connect
        """
        line = _bare(line)
        verb, _, rest = line.partition(" ")
        if verb in ("", "help"):
            return _help(rest.strip() or None, "%tbcluster", CLUSTER_VERBS)
        before = self.session.cluster
        answer = self._do(tree("%tbcluster", CLUSTER_VERBS, json=False), line)
        if before is not None and before.closed:
            self._deactivate(before)
        if verb == "connect" and answer is not None:
            self._activate(answer)
        return answer

    @output_can_be_silenced
    @line_magic
    def tb(self, line: str) -> Any:
        """Any verb of the command line: ``%tb quickstart``, ``%tb explain last``."""
        line = _bare(line)
        verb, _, rest = line.partition(" ")
        if verb in ("", "help"):
            return _help(rest.strip() or None, "%tb", COMMAND_VERBS)
        return self._do(tree("%tb", COMMAND_VERBS, json=False), line)

    @output_can_be_silenced
    @line_magic
    def tbplan(self, line: str) -> Any:
        """Every placement of a model: ``%tbplan --model smollm2-135m-instruct --local 2``."""
        return self._do(single("%tbplan", "plan"), _bare(line))

    @output_can_be_silenced
    @line_magic
    def tbshard(self, line: str) -> Any:
        """Load a model over the cluster: ``%tbshard --kind tensor-uneven``."""
        return self._do(single("%tbshard", "shard"), _bare(line))

    @output_can_be_silenced
    @line_magic
    def tbscale(self, line: str) -> Any:
        """Time a workload on 1, 2, 4 nodes: ``%tbscale decode --on 1,2``."""
        return self._do(single("%tbscale", "scale"), _bare(line))

    @output_can_be_silenced
    @line_magic
    def tbexplain(self, line: str) -> Any:
        """Why N nodes are not N times faster: ``%tbexplain last``."""
        return self._do(single("%tbexplain", "explain"), _bare(line))

    def _activate(self, cluster: Any) -> None:
        """Register ``%px`` for the engines of the cluster, in rank order."""
        cluster.activate()

    def _deactivate(self, cluster: Any) -> None:
        """Take ``%px`` and its kin away with the cluster: on a closed one they end in a traceback."""
        for magics in self.shell.magics_manager.magics.values():
            views = {
                name: getattr(getattr(magic, "__self__", None), "view", None)
                for name, magic in magics.items()
            }
            for name, view in views.items():
                if getattr(view, "client", None) is cluster.client:
                    del magics[name]

    def before_cell(self, info: Any) -> None:
        """A cell with %px first replaces what has died, so that it runs on every rank."""
        cluster = self.session.cluster
        if cluster is not None and not cluster.closed and info.raw_cell and "%px" in info.raw_cell:
            try:
                cluster.heal()
            except TbkitError as error:
                print(error)


def _bare(line: str) -> str:
    """The line without the ``;`` that silences a cell: IPython reads it, and leaves it in the line."""
    return line.strip().removesuffix(";").rstrip()


def _help(verb: str | None, prog: str, verbs: tuple[str, ...]) -> None:
    if verb is None:
        lines = [f"{prog} {EXAMPLES[name]:<44} {VERBS[name][0]}" for name in verbs]
        print("\n".join([*lines, f"{prog} help VERB shows its flags"]))
    elif verb not in verbs:
        raise IPythonUsageError(f"{prog} help: there is no verb {verb!r}. {nearest(verb, verbs)}")
    else:
        single(f"{prog} {verb}", verb).print_help()


@context_matcher(identifier="tbkit", priority=200)
def complete(context: CompletionContext) -> SimpleMatcherResult:
    """Verbs, then flags, then values, of the magic on the line of the cursor; then nothing else is offered."""
    line = _LINE.fullmatch(context.text_until_cursor)
    before, _, word = line["given"].rpartition(" ") if line else ("", "", "")
    offered = _offered(line["magic"], before.split()) if line else []
    found = [SimpleCompletion(text, type="magic") for text in offered if text.startswith(word)]
    return {"completions": found, "matched_fragment": word, "suppress": True, "ordered": True}


def _offered(magic: str, before: list[str]) -> list[str]:
    """What may come after these words of a magic."""
    if magic in _MAGICS:
        return _values_or_flags(single(magic, _MAGICS[magic]), before)
    verbs = CLUSTER_VERBS if magic == "tbcluster" else COMMAND_VERBS
    if not before or before == ["help"]:
        return [*verbs, *([] if before else ["help"])]
    return _values_or_flags(single(magic, before[0]), before[1:]) if before[0] in verbs else []


def _values_or_flags(parser: Parser, before: list[str]) -> list[str]:
    """The values of a flag that has just been given and of a word that is due, else the flags."""
    last = before[-1] if before else ""
    flags = {flag: action for action in parser._actions for flag in action.option_strings}
    if last in flags and flags[last].nargs != 0:
        return _values(flags[last])
    due = [action for action in parser._actions if not action.option_strings]
    return [*(_values(due[0]) if due and not before else []), *(flag for flag in flags if flag[:2] == "--")]


def _values(action: argparse.Action) -> list[str]:
    """The values that a flag or word may have, where they can be listed at once."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest in ("model", "model_first"):
        from tbkit.model.catalog import names

        return list(names())
    if action.dest == "run":
        from tbkit.record import run_folders

        return ["last", *(folder.name for folder in run_folders())]
    return []


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext tbkit``: registers the magics; no network, no mlx, no output. Twice is harmless."""
    if getattr(shell, _SHELL_ATTRIBUTE, None) is not None:
        return
    magics = TbkitMagics(shell)
    shell.register_magics(magics)
    shell.events.register("pre_run_cell", magics.before_cell)
    shell.Completer.custom_matchers.append(complete)
    setattr(shell, _SHELL_ATTRIBUTE, magics)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext tbkit``: closes the cluster and takes the magics away."""
    magics = getattr(shell, _SHELL_ATTRIBUTE, None)
    if magics is None:
        return
    if (cluster := magics.session.cluster) is not None:
        magics.session.close()
        magics._deactivate(cluster)
    shell.events.unregister("pre_run_cell", magics.before_cell)
    shell.Completer.custom_matchers.remove(complete)
    for name in ("tbcluster", "tb", *_MAGICS):
        shell.magics_manager.magics["line"].pop(name, None)
    setattr(shell, _SHELL_ATTRIBUTE, None)
