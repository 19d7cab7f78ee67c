"""The verbs of the command line: on ids, on ranges of tasks, or on what filters find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from acme_client import acting, table
from acme_client.api import Acme
from acme_client.terminal import (
    DryRunOption,
    FilterOption,
    IdsArgument,
    OutputFormat,
    OutputOption,
    ReasonOption,
    client_from_context,
    exit_with_usage_error,
    parse_filters,
    print_message,
    print_rows,
    progress_bar,
)


def _run_verb(
    acme: Acme, verb: dict[str, Any], ids: list[str] | None, filters: list[str] | None, output: OutputFormat, dry: bool
) -> None:
    if bool(ids) == bool(filters):
        exit_with_usage_error("give ids, or --filter, one of the two")
    with progress_bar(verb["verb"]) as progress:
        if ids:
            try:
                done = acting.run_verb_on_ids(acme, verb, table.expand_task_ids(ids), progress)
            except ValueError as error:
                exit_with_usage_error(str(error))
        else:
            done = acting.run_verb_on_filter(acme, verb, parse_filters(filters or []), progress)
    if output in (OutputFormat.JSON, OutputFormat.CSV):
        print_rows(table.OUTCOME_COLUMNS, done.outcomes, output)
    else:
        for one in done.refused:
            print_message(one["error"] if one["id"] in one["error"] else f"{one['id']}: {one['error']}")
        if dry:
            typer.echo(f"{verb['verb']} would reach {done.done} of {done.matched} jobs.")
    if done.left:
        print_message(f"{done.left} more match, and were not tried.")
    if done.refused:
        raise typer.Exit(1)


VERB_HELP = {
    "cancel": "End jobs.",
    "hold": "Keep waiting jobs from starting.",
    "release": "Let held jobs start again.",
    "requeue": "Stop running jobs and put them back at their place in the queue.",
    "mark-succeeded": "Record that jobs whose outcome is unknown succeeded.",
    "mark-failed": "Record that jobs whose outcome is unknown failed.",
    "run-again": "Run jobs again although their outcome is unknown.",
    "adopt": "Take over running jobs of another Acme installation.",
}


def _make_verb_command(verb: str) -> Callable[..., None]:
    def verb_command(
        ctx: typer.Context,
        ids: IdsArgument = None,
        filters: FilterOption = None,
        reason: ReasonOption = "",
        dry_run: DryRunOption = False,
        output: OutputOption = OutputFormat.TABLE,
    ) -> None:
        body = {"verb": verb, "dry_run": dry_run} | ({"reason": reason} if reason else {})
        _run_verb(client_from_context(ctx), body, ids, filters, output, dry_run)

    return verb_command


def priority(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(min=-1_000_000, max=1_000_000, help="Higher starts first.")],
    ids: IdsArgument = None,
    filters: FilterOption = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change the priority of waiting jobs: acme priority -100 ID."""
    body = {"verb": "priority", "priority": number, "dry_run": dry_run} | ({"reason": reason} if reason else {})
    _run_verb(client_from_context(ctx), body, ids, filters, output, dry_run)


def register(app: typer.Typer) -> None:
    for name, says in VERB_HELP.items():
        app.command(name, help=says)(_make_verb_command(name))
    # A priority may begin with a minus
    app.command(context_settings={"ignore_unknown_options": True})(priority)
