"""The verb commands, such as `acme cancel`: on ids, on ranges of tasks, or on filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from acme_client import bulk_verbs, table
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
    acme: Acme,
    verb: dict[str, Any],
    ids: list[str] | None,
    filters: list[str] | None,
    output: OutputFormat,
    dry_run: bool,
) -> None:
    if bool(ids) == bool(filters):
        exit_with_usage_error("Give either ids or --filter.")
    with progress_bar(verb["action"]) as progress:
        if ids:
            try:
                done = bulk_verbs.run_verb_on_ids(acme, verb, table.expand_task_ids(ids), progress)
            except ValueError as error:
                exit_with_usage_error(str(error))
        else:
            done = bulk_verbs.run_verb_on_filter(acme, verb, parse_filters(filters or []), progress)
    if output in (OutputFormat.JSON, OutputFormat.CSV):
        print_rows(table.OUTCOME_COLUMNS, done.outcomes, output)
    else:
        for outcome in done.refused:
            print_message(
                outcome["error"] if outcome["id"] in outcome["error"] else f"{outcome['id']}: {outcome['error']}"
            )
        if dry_run:
            typer.echo(f"Dry run: {verb['action']} would change {done.success_count} of {done.matched} jobs.")
    if done.remaining:
        print_message(f"{done.remaining} more jobs match but were not {'tried' if dry_run else 'changed'}.")
    if done.error:
        print_message(done.error)
    if done.refused or done.error:
        raise typer.Exit(1)


VERB_HELP = {
    "cancel": "Cancel jobs.",
    "hold": "Prevent pending jobs from starting.",
    "release": "Let held jobs start again.",
    "requeue": "Stop running jobs and return them to their place in the queue.",
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
        body = {"action": verb, "dry_run": dry_run} | ({"reason": reason} if reason else {})
        _run_verb(client_from_context(ctx), body, ids, filters, output, dry_run)

    return verb_command


def priority(
    ctx: typer.Context,
    number: Annotated[
        int, typer.Argument(min=-1_000_000, max=1_000_000, help="Jobs with a higher number start first.")
    ],
    ids: IdsArgument = None,
    filters: FilterOption = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change the priority of waiting jobs: acme priority -100 ID."""
    body = {"action": "priority", "priority": number, "dry_run": dry_run} | ({"reason": reason} if reason else {})
    _run_verb(client_from_context(ctx), body, ids, filters, output, dry_run)


def register(app: typer.Typer) -> None:
    for name, help_text in VERB_HELP.items():
        app.command(name, help=help_text)(_make_verb_command(name))
    # A priority may start with a minus sign
    app.command(context_settings={"ignore_unknown_options": True})(priority)
