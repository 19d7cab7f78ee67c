"""`acme rules`: list, enable, disable, change and remove rules that evaluate each new checkpoint of a directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from acme_client import table
from acme_client.api import Acme
from acme_client.terminal import OutputFormat, OutputOption, client_from_context, exit_with_usage_error, print_rows

WhichOption = Annotated[str | None, typer.Option("--which", help="Which new checkpoints to evaluate: newest or every.")]
PatternOption = Annotated[
    str | None, typer.Option("--pattern", help="Pattern of names in the directory, such as 'run-*'.")
]
IntervalOption = Annotated[
    str | None, typer.Option("--interval", help="Minimum time between campaigns, such as 1:00:00.")
]
PerDayOption = Annotated[int | None, typer.Option("--per-day", help="Maximum number of campaigns in 24 hours.")]

RULE_COLUMNS: list[table.TableColumn] = [
    ("ID", lambda row: row["id"]),
    ("STATE", lambda row: "on" if row["is_enabled"] else "off"),
    ("DIRECTORY", lambda row: row["directory"]),
    ("SUITE", lambda row: row["suite"]),
    ("EVALUATES", lambda row: row["which"]),
    ("CAMPAIGNS", lambda row: row["started"]),
    ("WHY", lambda row: row["why"]),
]
WIDE_COLUMNS: list[table.TableColumn] = [
    ("PATTERN", lambda row: row["pattern"]),
    ("PER DAY", lambda row: row["per_day"]),
    ("NODES", lambda row: row["nodes"] or "no limit"),
]


def create_rule(acme: Acme, options: Mapping[str, Any]) -> str:
    body = {name: value for name, value in options.items() if value is not None}
    return str(acme.post("evaluation-rules/", body)["id"])


def rules(
    ctx: typer.Context,
    id: Annotated[int | None, typer.Argument(help="Id of a rule; without it all rules are listed.")] = None,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Enable or disable the rule.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the rule; its campaigns stay.")] = False,
    which: WhichOption = None,
    pattern: PatternOption = None,
    interval: IntervalOption = None,
    per_day: PerDayOption = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-N", min=0, help="Maximum number of nodes of a campaign; 0: no limit.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the rules that evaluate new checkpoints, or change one. `acme evaluate --watch DIR` creates a rule."""
    options = {"is_enabled": on, "which": which, "pattern": pattern, "interval": interval, "per_day": per_day}
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if nodes is not None:
        changes["nodes"] = nodes or None
    if (changes or remove) and id is None:
        exit_with_usage_error("The id of the rule is missing. acme rules lists them.")
    if changes and remove:
        exit_with_usage_error("--remove and a change exclude each other.")
    columns = (
        RULE_COLUMNS[:-1] + (WIDE_COLUMNS if id is not None or output != OutputFormat.TABLE else []) + RULE_COLUMNS[-1:]
    )
    print_rows(columns, _fetch_or_change_rules(client_from_context(ctx), id, changes, remove), output)


def _fetch_or_change_rules(
    acme: Acme, id: int | None, changes: Mapping[str, Any], remove: bool
) -> list[dict[str, Any]]:
    if id is None:
        return list(acme.pages("evaluation-rules/", {}, 1000))
    address = f"evaluation-rules/{id}/"
    if remove:
        return [acme.post(f"{address}remove/")]
    return [acme.patch(address, changes) if changes else acme.get(address)]


def register(app: typer.Typer) -> None:
    app.command()(rules)
