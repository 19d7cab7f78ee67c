"""`acme evaluate`: checkpoints measured by a suite, followed to the end, and their results in a table."""

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
    ("STATE", lambda row: row["state"] + (" (known)" if row["reused"] else "")),
    ("RESULT", lambda row: "  ".join(f"{name} {value:g}" for name, value in (row["scores"] or {}).items())),
]
WIDE_COLUMNS: list[table.TableColumn] = [("SAMPLES", lambda row: row["samples"]), ("WHY", lambda row: row["why"])]


def evaluate(
    ctx: typer.Context,
    checkpoint: Annotated[list[str] | None, typer.Argument(help="Absolute paths, as the nodes see them.")] = None,
    suite: Annotated[str, typer.Option("--suite", "-s", help="NAME for its newest version, or NAME@2.")] = "",
    nodes: Annotated[int | None, typer.Option("--nodes", "-N", help="At most so many at once.")] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", help="Instead of nodes: a time, or how long from now as 2:00:00.")
    ] = None,
    weights_gb: Annotated[float | None, typer.Option("--gb", help="Size of a checkpoint; 14 if not given.")] = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M")] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team it is asked for.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Evaluate what is known already once more.")] = False,
    id: Annotated[str, typer.Option("--id", help="Follow one that was asked for before.")] = "",
    watch: Annotated[
        str,
        typer.Option("--watch", metavar="DIR", help="Evaluate what appears there from now on; see acme rules."),
    ] = "",
    which: rules.WhichOption = None,
    pattern: rules.PatternOption = None,
    interval: rules.IntervalOption = None,
    per_day: rules.PerDayOption = None,
    wait: Annotated[bool, typer.Option(help="Without it only the id is printed.")] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Evaluate checkpoints with a suite of datasets, and show the results."""
    if [bool(checkpoint), bool(id), bool(watch)].count(True) != 1:
        exit_with_usage_error("give checkpoints, the --id of a campaign, or a directory to --watch, one of them")
    if watch and (deadline or again):
        exit_with_usage_error("--deadline and --again are about checkpoints that are there; a rule has neither")
    of_rule = {"which": which, "pattern": pattern, "interval": interval, "per_day": per_day}
    if not watch and any(value is not None for value in of_rule.values()):
        exit_with_usage_error("--which, --pattern, --interval and --per-day are about a directory to --watch")
    if not (id or suite):
        exit_with_usage_error("--suite is missing")
    if nodes and deadline:
        exit_with_usage_error("--nodes and --deadline are two ways to say the same; give one of them")
    acme = client_from_context(ctx)
    if watch:
        where = {"directory": watch, "suite": suite, "cluster": cluster, "team": team}
        typer.echo(rules.create_rule(acme, {**where, **of_rule, "nodes": nodes, "weights_gb": weights_gb}))
        return
    if checkpoint:
        asked = {"checkpoints": checkpoint, "suite": suite, "nodes": nodes, "weights_gb": weights_gb}
        asked |= {"cluster": cluster, "team": team, "again": again or None, **_deadline_fields(deadline)}
        id = acme.post("campaigns/", {name: value for name, value in asked.items() if value is not None})["id"]
    if not wait:
        typer.echo(id)
        return
    _print_results(acme, _wait_for_campaign(acme, id), output)


def _deadline_fields(text: str | None) -> dict[str, str]:
    """A moment without a zone is one of this machine's clock, as people mean it."""
    if text is None:
        return {}
    try:
        if not DATETIME_PATTERN.fullmatch(text):
            int(text[:1])  # how long from now begins with a number; which ones there are knows the server
            return {"within": text}
        return {"deadline_at": datetime.fromisoformat(text).astimezone().isoformat()}
    except (ValueError, OverflowError):
        exit_with_usage_error(
            f"--deadline: {text[:40]!r} is no time; write 2026-01-31T08:00, or how long from now as 2:00:00"
        )


def _wait_for_campaign(acme: Acme, id: str) -> dict[str, Any]:
    """Whoever stops waiting has not stopped it."""
    try:
        with progress_bar("evaluate") as progress:
            while (said := acme.get(f"campaigns/{id}/"))["state"] in UNFINISHED_STATES:
                progress(said["standing"]["percent"], 100)
                time.sleep(POLL_S)
            return dict(said)
    except KeyboardInterrupt:
        print_message(f"{id} goes on; acme evaluate --id {id} follows it again.")
        raise typer.Exit(130) from None


def _print_results(acme: Acme, said: dict[str, Any], output: OutputFormat) -> None:
    rows = list(acme.pages(f"campaigns/{said['id']}/evaluations/", {}, MAX_ROWS))
    if output == OutputFormat.JSON:
        typer.echo(table.format_json({**said, "results": rows}))
    else:
        print_rows(
            EVALUATION_COLUMNS + (WIDE_COLUMNS if output in (OutputFormat.WIDE, OutputFormat.CSV) else []), rows, output
        )
        print_message(_campaign_summary(said))
    if said["state"] != "COMPLETED":
        raise typer.Exit(1)


def _campaign_summary(said: dict[str, Any]) -> str:
    standing = said["standing"]
    words = [f"{said['id']} is {said['state']}", f"{standing['done']} of {standing['evaluations']} have their result"]
    if said["started_at"] and said["ended_at"]:
        took = datetime.fromisoformat(said["ended_at"]) - datetime.fromisoformat(said["started_at"])
        words.append(f"{table.format_duration(took.total_seconds())} and {said['gpu_hours']:.2f} GPU-hours")
    if said["plan"]:
        plan = said["plan"]
        words.append(
            f"planned {table.format_duration(plan['makespan_s'])},"
            f" at best {table.format_duration(plan['lower_bound_s'])}"
        )
    return ", ".join(words) + "."


def suite(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="JSON as of POST /suites/; without it suites are listed.")] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team it belongs to.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Define a suite of datasets, or list those there are."""
    acme = client_from_context(ctx)
    if file is None:
        print_rows(SUITE_COLUMNS, list(acme.pages("suites/", {}, 1000)), output)
        return
    try:
        asked = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        exit_with_usage_error(f"{file}: {error}")
    if not isinstance(asked, dict):
        exit_with_usage_error(f"{file}: is no JSON object")
    said = acme.post("suites/", {**asked, **({"team": team} if team else {})})
    typer.echo(table.format_json(said) if output == OutputFormat.JSON else f"{said['name']}@{said['version']}")


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
