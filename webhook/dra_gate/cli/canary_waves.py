"""`dra-gate canary status | enroll | step | pause | on-stop | rollback`: namespaces on their way, by labels.

The plan of waves is read again before each namespace: who pauses it stops a step that is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import click

from dra_gate.cli.canary_text import NOTE, moves_text, on_stop_text, paused_text, status_body, status_text
from dra_gate.cli.canary_world import Policies, RefusedFailure, World, gate_of
from dra_gate.cli.failure import Failure
from dra_gate.cli.options import LONGEST_REASON, failures_option, kubeconfig_options, output_option, why_option
from dra_gate.cli.text import printed
from dra_gate.migration.waves import (
    ACTS,
    SETTLE,
    Act,
    Left,
    Move,
    Moves,
    OnStop,
    Paused,
    Plan,
    PlanError,
    Space,
    enroll,
    read_wave,
    rollback,
    step,
)
from dra_gate.policy.switch import DRA, PLUGIN
from dra_gate.policy.words import listed, many, some

F = TypeVar("F", bound=Callable[..., Any])

_why = why_option("the namespace and its Event")
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Say what would happen. The API server checks, and keeps nothing."
)
_policies = click.option(
    "--policies", metavar="DIR", help="Whose tenants, where the gate has its policies from a folder."
)
MOST_REFUSED = 3  # on the way back, before anybody was moved: then nobody will be
_CODES = "Exit codes: 0 done, 1 some were left alone, 2 refused, or the input is wrong."


def _settling(function: F) -> F:
    """`--settle MINUTES` and `--force`."""
    function = click.option("--force", is_flag=True, help="Move also those whose lane changed a moment ago.")(function)
    return click.option(
        "--settle",
        metavar="MINUTES",
        type=click.IntRange(min=0),
        default=SETTLE // 60,
        show_default=True,
        help="Leave a namespace alone for so long after its lane changed.",
    )(function)


@click.command(name="status", epilog="Exit codes: 0 told, 2 the cluster or the plan can't be read.")
@kubeconfig_options
@_policies
@output_option
def status_command(kubeconfig: str | None, context: str | None, policies: str | None, output: str) -> None:
    """Show each namespace's lane by wave and tenant: since when, by whom, and its Pods with devices by lane.

    Also the tenants some of whose namespaces get another policy version (canary), and their Pods by version.

    \b
    Example:
      dra-gate canary status --kubeconfig admin.conf
    """
    world = World.read(kubeconfig, context, Policies(policies))
    plan = world.plan()
    body = status_body(world, plan, world.pods(), gate_of(world.client))
    if output == "text":
        click.echo("\n".join(status_text(body, world.now)))
    else:
        printed(body, output)


@click.command(name="enroll", epilog=_CODES)
@click.argument("namespaces", metavar="NAMESPACE…", nargs=-1, required=True)
@_why
@_settling
@_dry_run
@kubeconfig_options
@_policies
@output_option
def enroll_command(
    namespaces: tuple[str, ...],
    why: str,
    settle: int,
    force: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    output: str,
) -> None:
    """Move these namespaces to lane dra, whatever wave they are in, and also after a rollback.

    \b
    Example:
      dra-gate canary enroll lilac-dev --why "lilac wants to try"
    """
    world = World.read(kubeconfig, context, Policies(policies))
    spaces = world.named(namespaces)
    homeless = [space.name for space in spaces if not space.tenant]
    if homeless:
        raise Failure(
            f"{listed(homeless)}: of no tenant in the active policies, so Pods with devices would be refused there; "
            "list it in a Tenant's spec.namespaces and publish that first. Nothing was moved"
        )
    plan = world.plan()
    if plan.paused is not None:
        _refuse_paused(plan.paused, world.clock())
    decided = enroll(spaces, world.now, settle=settle * 60, force=force)
    _finish(world, decided, DRA, why, dry_run=dry_run, output=output)


@click.command(name="step", epilog=_CODES)
@click.option(
    "--wave", "words", metavar="WAVE", multiple=True, help="Add to the plan: 10%, tenant:NAME,… or NAMESPACE,…"
)
@_why
@click.option("--again", is_flag=True, help="Also those that were rolled back.")
@_settling
@_dry_run
@kubeconfig_options
@_policies
@output_option
def step_command(
    words: tuple[str, ...],
    why: str,
    again: bool,
    settle: int,
    force: bool,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
    policies: str | None,
    output: str,
) -> None:
    """Move the rest of the present wave to lane dra, or where nothing of it is left, the next wave.

    A percentage is of the namespaces that are gated or a tenant's; 50% has everybody in it that 10% has.

    \b
    Examples:
      dra-gate canary step --wave 10% --wave tenant:lilac --wave 100% --why "first wave"
      dra-gate canary step --why "a day without failures" --dry-run
    """
    world = World.read(kubeconfig, context, Policies(policies))
    try:
        waves = [read_wave(word) for word in words]
    except PlanError as error:
        raise Failure(str(error)) from None
    for wave in waves:
        world.named(wave.namespaces)
        unknown = [name for name in wave.tenants if name not in world.tenants]
        if unknown:
            raise Failure(f"wave {wave}: the policies have no tenant {listed(unknown, 'or')}")

    def change(plan: Plan) -> tuple[Plan, Moves]:
        if plan.paused is not None:
            _refuse_paused(plan.paused, world.clock())
        plan = plan.with_waves(waves)
        if not plan.waves:
            raise Failure("the plan has no waves: give them in their order, such as --wave 10% --wave 50% --wave 100%")
        decided = step(plan, world.spaces, world.now, settle=settle * 60, force=force, again=again)
        return replace(plan, begun=decided.wave), decided

    before, after, decided = world.replan(change, dry_run=dry_run)
    word = "the rest of wave" if decided.wave == before.begun else "wave"
    said = f"{word} {decided.wave} of {len(after.waves)} ({after.waves[decided.wave - 1]})"
    if decided.wave == len(after.waves) and not decided.moves and not decided.left:
        said = f"{said}: all of it is in lane {DRA}, and the plan has no other (--wave adds one)"
    _finish(world, decided, DRA, why, dry_run=dry_run, output=output, said=said)


@click.command(name="pause", epilog="Exit codes: 0 done, 2 the plan can't be read or written.")
@click.option("--off", is_flag=True, help="Go on.")
@click.option("--why", metavar="TEXT", default="", help="The reason, for the plan.")
@kubeconfig_options
def pause_command(off: bool, why: str, kubeconfig: str | None, context: str | None) -> None:
    """Let nobody move to lane dra, by step or enroll, until the pause is over. Rolling back goes on working.

    After --off Pods that were there before count for no hard stop any more (dra-gate canary on-stop).

    \b
    Examples:
      dra-gate canary pause --why "prepare failures on gpu-7"
      dra-gate canary pause --off
    """
    world = World.read(kubeconfig, context)
    paused = None if off else Paused(world.who, world.now, why[:LONGEST_REASON])
    before, _, _ = world.replan(
        lambda plan: (
            plan if (plan.paused is None) is off else plan.resumed(world.now) if off else replace(plan, paused=paused),
            None,
        ),
        dry_run=False,
    )
    if (before.paused is None) is off:
        click.echo("it is not paused" if off else f"it is paused already, {paused_text(before.paused, world.now)}")
    else:
        click.echo("the plan goes on" if off else "the plan is paused: nobody is moved to lane dra")


@click.command(name="on-stop", epilog="Exit codes: 0 done, 2 the plan can't be read or written.")
@click.argument("act", type=click.Choice(ACTS))
@failures_option
@kubeconfig_options
def on_stop_command(act: Act, failures: float, kubeconfig: str | None, context: str | None) -> None:
    """Say what the controller does on a hard stop: alert, pause the plan, or roll back as well.

    A hard stop is a tenant above its cap, a device that two Pods hold, or failures above the rate. `rollback` is what
    `dra-gate canary rollback` does without names: pause the plan, and move back all that commands moved. It acts once,
    and again only after `pause --off`. Pods count that are created from now on.

    \b
    Examples:
      dra-gate canary on-stop rollback
      dra-gate canary on-stop pause --failures 2
      dra-gate canary on-stop alert
    """
    world = World.read(kubeconfig, context)
    rule = OnStop(act, failures / 100, world.now)
    _, plan, _ = world.replan(lambda plan: (replace(plan, on_stop=rule), None), dry_run=False)
    click.echo(on_stop_text(plan.on_stop))
    if act == "rollback" and world.controller_may_move() is False:
        click.echo(
            "warning: the controller may not patch namespaces, so that it would only pause: install the component "
            "deploy/components/canary-rollback",
            err=True,
        )


@click.command(name="rollback", epilog=_CODES)
@click.argument("namespaces", metavar="[NAMESPACE…]", nargs=-1)
@_why
@_dry_run
@kubeconfig_options
@output_option
def rollback_command(
    namespaces: tuple[str, ...],
    why: str,
    dry_run: bool,
    kubeconfig: str | None,
    context: str | None,
    output: str,
) -> None:
    """Move these namespaces back to lane device-plugin, at once.

    Without a name pause the plan, and move back all that commands moved; those that others labelled have to be named.
    Pods with devices keep them; what becomes of Pods that wait is their policy's onRollback.

    \b
    Examples:
      dra-gate canary rollback lilac-dev --why "driver 580.82 fails to prepare"
      dra-gate canary rollback --why "hard stop" --dry-run
    """
    world = World.read(kubeconfig, context)  # without the policies: the way back must not hang on them
    spaces = world.named(namespaces) if namespaces else world.spaces
    decided = rollback(spaces, named=bool(namespaces))
    said = ""
    if not namespaces:
        paused = Paused(world.who, world.now, why)
        try:
            world.replan(lambda plan: (plan if plan.paused else replace(plan, paused=paused), None), dry_run=dry_run)
            said = "the plan is paused (dra-gate canary pause --off ends that)"
        except Failure as error:  # no reason to leave anybody where they are
            click.echo(f"warning: the plan is not paused: {error.message}", err=True)
    _finish(world, decided, PLUGIN, why, dry_run=dry_run, output=output, said=said)


# -- moving -----------------------------------------------------------------------------------------------------------


def _refuse_paused(paused: Paused, now: int) -> NoReturn:
    click.echo(f"nobody is moved: the plan is paused, {paused_text(paused, now)}", err=True)
    click.echo("dra-gate canary pause --off ends that", err=True)
    raise click.exceptions.Exit(1)


def _finish(world: World, decided: Moves, to: str, why: str, *, dry_run: bool, output: str, said: str = "") -> None:
    """Move what was decided, one after the other, and tell what became of each. Ends with the command's exit code."""
    moved: list[Space] = []
    left = list(decided.left)
    failed, refused = "", 0
    gate = gate_of(world.client) if to == DRA else None
    kept = [one.name for one in decided.moves if gate is not None and gate.switch.lane_of(one.tenant, to) != to]
    if kept:
        click.echo(f"warning: {some(kept)} stay in lane {PLUGIN} by the switch, whatever the label says", err=True)
    for number, space in enumerate(decided.moves):
        move = Move(space.lane, to, world.clock(), world.who, why)
        try:
            if to == DRA and world.plan().paused is not None:
                left += [Left(rest, "the plan was paused meanwhile") for rest in decided.moves[number:]]
                break
            problem = world.move(space, move, dry_run=dry_run)
        except RefusedFailure as error:
            refused += 1
            # The way back stops at no namespace that somebody's webhook keeps; only where the right is lacking.
            if to == DRA or (refused > MOST_REFUSED and not moved):
                failed = error.message
                left += [Left(rest, "not reached") for rest in decided.moves[number:]]
                break
            problem = error.message.removeprefix(f"{space.name}: ")
        except Failure as error:
            failed = error.message
            left += [Left(rest, "not reached") for rest in decided.moves[number:]]
            break
        if problem:
            left.append(Left(space, problem))
            continue
        moved.append(space)
        if not dry_run:
            world.tell(space, move)
    if output == "text":
        click.echo("\n".join(moves_text(moved, left, to, said, dry_run=dry_run)))
    else:
        body = {
            "kind": "CanaryMoves",
            "dryRun": dry_run,
            "to": to,
            "wave": decided.wave or None,
            "moved": [{"namespace": one.name, "tenant": one.tenant or None, "from": one.lane or None} for one in moved],
            "left": [{"namespace": one.space.name, "why": one.why} for one in left],
            "note": NOTE if to == PLUGIN and moved else "",
        }
        printed(body, output)
    if failed:
        raise Failure(
            f"{failed}\n{many(len(moved), 'namespace')} moved before that; the same command goes on from there"
        )
    if any(one.space.lane != to for one in left):
        raise click.exceptions.Exit(1)
