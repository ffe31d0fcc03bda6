"""`dra-gate` and `kubectl dra-gate`: finds the verb, loads only its module, maps our errors to exit codes.

Exit codes: 0 done, nothing denied; 1 a verdict of no (denied, lint errors); 2 the input, a policy or the call is
wrong.
"""

from __future__ import annotations

import difflib
import importlib
import sys

import click

from dra_gate import __version__

_VERBS = {
    "serve": "Serve the two admission routes over TLS.",
    "controller": "Keep the tenants' claim templates in place, and the Gate's status true.",
    "webhooks": "Print both webhook configurations.",
    "guards": "Print the admission policies that guard what the gate stands on.",
    "certs": "Issue an own CA and a serving certificate.",
    "policy": "Check policy files; publish policy sets, activate them, go back.",
    "review": "Judge Pods, workloads and recorded AdmissionReviews offline.",
    "explain": "Say why a Pod got the devices it has, or why it waits.",
    "queue": "Say who waits for what and how long, and who holds how much of its share and quota.",
    "preflight": "Say what stands in the way of moving namespaces to DRA, or back.",
    "snapshot": "Save what explanations are made from, without anything personal or secret.",
    "what-if": "Say what Pods would get under other policies, or with other nodes and devices.",
    "rollback": "Send tenants back to device plugins at once, or forward again: the switch of all lanes.",
    "canary": "Move namespaces from device plugins to DRA in waves, and say how Pods fare there.",
    "replay": "Make decisions again, from the arbiter's log or from records and a snapshot, and say what differs.",
    "demo": "Show the gate at work on example Pods, without a cluster.",
}


class Verbs(click.Group):
    """One verb a module (`dra_gate.cli.<verb>.command`), imported when it is called: `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        command = importlib.import_module(f"dra_gate.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)  # noqa: S101 - a verb module without one is our mistake
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in _VERBS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], _VERBS, n=1)  # click guesses from what is imported already: none
            hint = f"Did you mean {close[0]!r}?" if close else "dra-gate --help lists all."
            ctx.fail(f"No such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Completion: eval "$(_DRA_GATE_COMPLETE=bash_source dra-gate)" (or zsh_source, fish_source).',
)
@click.version_option(__version__, prog_name="dra-gate")
def root() -> None:
    """Policy gate for accelerators under Dynamic Resource Allocation.

    \b
    Examples:
      dra-gate demo
      dra-gate policy lint policies/
      dra-gate review --policies policies/ --cluster cluster.yaml pod.yaml
    """


def main() -> None:
    """Entry point of the console scripts."""
    sys.exit(root.main(standalone_mode=True))
