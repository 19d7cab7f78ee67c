"""`acme evaluate`: evaluate checkpoints with a suite, follow the campaign, and print its results."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from acme_client import rules, table
from acme_client.api import Acme
from acme_client.terminal import (
    OutputFormat,
    OutputOption,
    client_from_context,
    exit_with_usage_error,
    number,
    print_message,
    print_rows,
    progress_bar,
)

POLL_S = 2.0
UNFINISHED_STATES = ("PENDING", "RUNNING")
MAX_ROWS = 100_000
DATETIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d[T ].*")

EVALUATION_COLUMNS: list[table.TableColumn] = [
    ("CHECKPOINT", lambda row: row["checkpoint"]),
    ("DATASET", lambda row: row["dataset"]),
    ("STATE", lambda row: row["state"] + (" (reused)" if row["reused"] else "")),
    ("RESULT", lambda row: "  ".join(f"{name} {value:g}" for name, value in (row["scores"] or {}).items())),
]
WIDE_COLUMNS: list[table.TableColumn] = [("SAMPLES", lambda row: row["samples"]), ("WHY", lambda row: row["why"])]


def evaluate(
    ctx: typer.Context,
    checkpoint: Annotated[list[str] | None, typer.Argument(help="Absolute paths, as seen by the nodes.")] = None,
    suite: Annotated[str, typer.Option("--suite", "-s", help="NAME for the newest version, or NAME@2.")] = "",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the campaign. Default: the run, its steps and the suite.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", "-N", help="Maximum number of nodes at a time.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", help="Instead of --nodes: a time, or a duration from now such as 2:00:00."),
    ] = None,
    checkpoint_gb: Annotated[
        float | None, typer.Option("--checkpoint-gb", parser=number, help="Size of a checkpoint in GB. Default: 14.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M", help="The cluster.")] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team that the campaign belongs to.")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat evaluations whose results exist already.")] = False,
    id: Annotated[str, typer.Option("--id", help="Follow an existing campaign.")] = "",
    watch: Annotated[
        str,
        typer.Option("--watch", metavar="DIR", help="Evaluate every new checkpoint in this directory; see acme rules."),
    ] = "",
    which: rules.WhichOption = None,
    pattern: rules.PatternOption = None,
    interval: rules.IntervalOption = None,
    per_day: rules.PerDayOption = None,
    wait: Annotated[bool, typer.Option(help="Wait for the results; otherwise only print the id.")] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Evaluate checkpoints with a suite of datasets and show the results."""
    if [bool(checkpoint), bool(id), bool(watch)].count(True) != 1:
        exit_with_usage_error("Give either checkpoints, the --id of a campaign, or a directory to --watch.")
    if watch and (deadline or rerun or name):
        exit_with_usage_error("--deadline, --rerun and --name apply to existing checkpoints, not to --watch.")
    rule_options = {"which": which, "pattern": pattern, "interval": interval, "per_day": per_day}
    if not watch and any(value is not None for value in rule_options.values()):
        exit_with_usage_error("--which, --pattern, --interval and --per-day require --watch.")
    if not (id or suite):
        exit_with_usage_error("--suite is missing.")
    if nodes and deadline:
        exit_with_usage_error("--nodes and --deadline exclude each other.")
    acme = client_from_context(ctx)
    if watch:
        target = {"directory": watch, "suite": suite, "cluster": cluster, "team": team}
        typer.echo(rules.create_rule(acme, {**target, **rule_options, "nodes": nodes, "checkpoint_gb": checkpoint_gb}))
        return
    if checkpoint:
        request: dict[str, Any] = {"checkpoints": checkpoint, "suite": suite, "name": name, "nodes": nodes}
        request |= {"checkpoint_gb": checkpoint_gb, "cluster": cluster, "team": team, "rerun": rerun or None}
        request |= _deadline_fields(deadline)
        id = acme.post("campaigns/", {name: value for name, value in request.items() if value is not None})["id"]
    if not wait:
        typer.echo(id)
        return
    _print_results(acme, _wait_for_campaign(acme, id), output)


def _deadline_fields(text: str | None) -> dict[str, str]:
    """Return the deadline for the API. A time without a zone is in the zone of this machine."""
    if text is None:
        return {}
    try:
        if not DATETIME_PATTERN.fullmatch(text):
            int(text[:1])  # durations start with a digit; the server checks the rest
            return {"within": text}
        return {"deadline_at": datetime.fromisoformat(text).astimezone().isoformat()}
    except (ValueError, OverflowError):
        exit_with_usage_error(
            f"--deadline: {text[:40]!r} is not a time. Write 2026-01-31T08:00, or a duration from now such as 2:00:00."
        )


def _wait_for_campaign(acme: Acme, id: str) -> dict[str, Any]:
    """Wait for a campaign and return it. Ctrl-C stops only the waiting."""
    try:
        with progress_bar("evaluate") as progress:
            while (campaign := acme.get(f"campaigns/{id}/"))["state"] in UNFINISHED_STATES:
                progress(campaign["progress"]["percent"], 100)
                time.sleep(POLL_S)
            return dict(campaign)
    except KeyboardInterrupt:
        print_message(f"{id} continues. Follow it with acme evaluate --id {id}.")
        raise typer.Exit(130) from None


def _print_results(acme: Acme, campaign: dict[str, Any], output: OutputFormat) -> None:
    rows = list(acme.pages(f"campaigns/{campaign['id']}/evaluations/", {}, MAX_ROWS))
    if output == OutputFormat.JSON:
        typer.echo(table.format_json({**campaign, "results": rows}))
    else:
        print_rows(
            EVALUATION_COLUMNS + (WIDE_COLUMNS if output in (OutputFormat.WIDE, OutputFormat.CSV) else []), rows, output
        )
        print_message(_campaign_summary(campaign))
    if campaign["state"] != "COMPLETED":
        raise typer.Exit(1)


def _campaign_summary(campaign: dict[str, Any]) -> str:
    progress = campaign["progress"]
    words = [
        f"{campaign['name']} ({campaign['id']}) is {campaign['state']}",
        f"{progress['done']} of {progress['evaluations']} evaluations are done",
    ]
    if campaign["started_at"] and campaign["ended_at"]:
        took = datetime.fromisoformat(campaign["ended_at"]) - datetime.fromisoformat(campaign["started_at"])
        words.append(f"{table.format_duration(took.total_seconds())} and {campaign['gpu_hours']:.2f} GPU-hours")
    if plan := campaign["plan"]:
        words.append(
            f"planned {table.format_duration(plan['makespan_s'])},"
            f" lower bound {table.format_duration(plan['lower_bound_s'])}"
        )
    return ", ".join(words) + "."


def suite(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="JSON as for POST /suites/; without it suites are listed.")
    ] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team that the suite belongs to.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Define a suite of datasets, or list the existing ones."""
    acme = client_from_context(ctx)
    if file is None:
        print_rows(SUITE_COLUMNS, list(acme.pages("suites/", {}, 1000)), output)
        return
    try:
        request = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        exit_with_usage_error(f"{file}: {error}")
    if not isinstance(request, dict):
        exit_with_usage_error(f"{file}: not a JSON object.")
    campaign = acme.post("suites/", {**request, **({"team": team} if team else {})})
    typer.echo(
        table.format_json(campaign) if output == OutputFormat.JSON else f"{campaign['name']}@{campaign['version']}"
    )


SUITE_COLUMNS: list[table.TableColumn] = [
    ("NAME", lambda row: row["name"]),
    ("VERSION", lambda row: row["version"]),
    ("TEAM", lambda row: row["team"]),
    ("FRAMEWORK", lambda row: row["framework"]),
    ("TITLE", lambda row: row["title"]),
]


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
    app.command()(suite)
