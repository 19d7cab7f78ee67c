"""The verbs of the command line: on ids, on ranges of tasks, or on what filters find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from acme_client import acting, table
from acme_client.api import Acme
from acme_client.terminal import (
    DryRun,
    Filters,
    Form,
    FormOption,
    Ids,
    ReasonOption,
    bar,
    pairs,
    print_rows,
    say,
    server_of,
    usage,
)


def _act(
    acme: Acme, verb: dict[str, Any], ids: list[str] | None, filters: list[str] | None, output: Form, dry: bool
) -> None:
    if bool(ids) == bool(filters):
        usage("give ids, or --filter, one of the two")
    with bar(verb["verb"]) as progress:
        if ids:
            try:
                done = acting.on_ids(acme, verb, table.expand(ids), progress)
            except ValueError as error:
                usage(str(error))
        else:
            done = acting.on_filter(acme, verb, pairs(filters or []), progress)
    if output in (Form.JSON, Form.CSV):
        print_rows(table.OUTCOME_COLUMNS, done.outcomes, output)
    else:
        for one in done.refused:
            say(one["error"] if one["id"] in one["error"] else f"{one['id']}: {one['error']}")
        if dry:
            typer.echo(f"{verb['verb']} would reach {done.done} of {done.matched} jobs.")
    if done.left:
        say(f"{done.left} more match, and were not tried.")
    if done.refused:
        raise typer.Exit(1)


VERBS = {
    "cancel": "End jobs.",
    "hold": "Keep waiting jobs from starting.",
    "release": "Let held jobs start again.",
    "requeue": "Stop running jobs and put them back at their place in the queue.",
    "mark-succeeded": "Record that jobs whose outcome is unknown succeeded.",
    "mark-failed": "Record that jobs whose outcome is unknown failed.",
    "run-again": "Run jobs again although their outcome is unknown.",
    "adopt": "Take over running jobs of another Acme installation.",
}


def _command(verb: str) -> Callable[..., None]:
    def command(
        ctx: typer.Context,
        ids: Ids = None,
        filters: Filters = None,
        reason: ReasonOption = "",
        dry_run: DryRun = False,
        output: FormOption = Form.TABLE,
    ) -> None:
        body = {"verb": verb, "dry_run": dry_run} | ({"reason": reason} if reason else {})
        _act(server_of(ctx), body, ids, filters, output, dry_run)

    return command


def priority(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(min=-1_000_000, max=1_000_000, help="Higher starts first.")],
    ids: Ids = None,
    filters: Filters = None,
    reason: ReasonOption = "",
    dry_run: DryRun = False,
    output: FormOption = Form.TABLE,
) -> None:
    """Change the priority of waiting jobs: acme priority -100 ID."""
    body = {"verb": "priority", "priority": number, "dry_run": dry_run} | ({"reason": reason} if reason else {})
    _act(server_of(ctx), body, ids, filters, output, dry_run)


def register(app: typer.Typer) -> None:
    for name, says in VERBS.items():
        app.command(name, help=says)(_command(name))
    # A priority may begin with a minus
    app.command(context_settings={"ignore_unknown_options": True})(priority)
