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
from acme_client.terminal import Form, FormOption, bar, print_rows, say, server_of, usage

POLL_S = 2.0
UNFINISHED = ("PENDING", "RUNNING")
MOST_ROWS = 100_000
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ].*")

COLUMNS: list[table.Column] = [
    ("CHECKPOINT", lambda row: row["checkpoint"]),
    ("DATASET", lambda row: row["dataset"]),
    ("STATE", lambda row: row["state"] + (" (known)" if row["reused"] else "")),
    ("RESULT", lambda row: "  ".join(f"{name} {value:g}" for name, value in (row["scores"] or {}).items())),
]
MORE: list[table.Column] = [("SAMPLES", lambda row: row["samples"]), ("WHY", lambda row: row["why"])]


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
    output: FormOption = Form.TABLE,
) -> None:
    """Evaluate checkpoints with a suite of datasets, and show the results."""
    if [bool(checkpoint), bool(id), bool(watch)].count(True) != 1:
        usage("give checkpoints, the --id of a campaign, or a directory to --watch, one of them")
    if watch and (deadline or again):
        usage("--deadline and --again are about checkpoints that are there; a rule has neither")
    of_rule = {"which": which, "pattern": pattern, "interval": interval, "per_day": per_day}
    if not watch and any(value is not None for value in of_rule.values()):
        usage("--which, --pattern, --interval and --per-day are about a directory to --watch")
    if not (id or suite):
        usage("--suite is missing")
    if nodes and deadline:
        usage("--nodes and --deadline are two ways to say the same; give one of them")
    acme = server_of(ctx)
    if watch:
        where = {"directory": watch, "suite": suite, "cluster": cluster, "team": team}
        typer.echo(rules.make(acme, {**where, **of_rule, "nodes": nodes, "weights_gb": weights_gb}))
        return
    if checkpoint:
        asked = {"checkpoints": checkpoint, "suite": suite, "nodes": nodes, "weights_gb": weights_gb}
        asked |= {"cluster": cluster, "team": team, "again": again or None, **_deadline(deadline)}
        id = acme.post("campaigns/", {name: value for name, value in asked.items() if value is not None})["id"]
    if not wait:
        typer.echo(id)
        return
    _show(acme, _ended(acme, id), output)


def _deadline(text: str | None) -> dict[str, str]:
    """A moment without a zone is one of this machine's clock, as people mean it."""
    if text is None:
        return {}
    try:
        if not MOMENT.fullmatch(text):
            int(text[:1])  # how long from now begins with a number; which ones there are knows the server
            return {"within": text}
        return {"deadline_at": datetime.fromisoformat(text).astimezone().isoformat()}
    except (ValueError, OverflowError):
        usage(f"--deadline: {text[:40]!r} is no time; write 2026-01-31T08:00, or how long from now as 2:00:00")


def _ended(acme: Acme, id: str) -> dict[str, Any]:
    """Whoever stops waiting has not stopped it."""
    try:
        with bar("evaluate") as progress:
            while (said := acme.get(f"campaigns/{id}/"))["state"] in UNFINISHED:
                progress(said["standing"]["percent"], 100)
                time.sleep(POLL_S)
            return dict(said)
    except KeyboardInterrupt:
        say(f"{id} goes on; acme evaluate --id {id} follows it again.")
        raise typer.Exit(130) from None


def _show(acme: Acme, said: dict[str, Any], output: Form) -> None:
    rows = list(acme.pages(f"campaigns/{said['id']}/evaluations/", {}, MOST_ROWS))
    if output == Form.JSON:
        typer.echo(table.as_json({**said, "results": rows}))
    else:
        print_rows(COLUMNS + (MORE if output in (Form.WIDE, Form.CSV) else []), rows, output)
        say(_summary(said))
    if said["state"] != "COMPLETED":
        raise typer.Exit(1)


def _summary(said: dict[str, Any]) -> str:
    standing = said["standing"]
    words = [f"{said['id']} is {said['state']}", f"{standing['done']} of {standing['evaluations']} have their result"]
    if said["started_at"] and said["ended_at"]:
        took = datetime.fromisoformat(said["ended_at"]) - datetime.fromisoformat(said["started_at"])
        words.append(f"{table.clock(took.total_seconds())} and {said['gpu_hours']:.2f} GPU-hours")
    if said["plan"]:
        plan = said["plan"]
        words.append(f"planned {table.clock(plan['makespan_s'])}, at best {table.clock(plan['lower_bound_s'])}")
    return ", ".join(words) + "."


def suite(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="JSON as of POST /suites/; without it suites are listed.")] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team it belongs to.")] = None,
    output: FormOption = Form.TABLE,
) -> None:
    """Define a suite of datasets, or list those there are."""
    acme = server_of(ctx)
    if file is None:
        print_rows(SUITES, list(acme.pages("suites/", {}, 1000)), output)
        return
    try:
        asked = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        usage(f"{file}: {error}")
    if not isinstance(asked, dict):
        usage(f"{file}: is no JSON object")
    said = acme.post("suites/", {**asked, **({"team": team} if team else {})})
    typer.echo(table.as_json(said) if output == Form.JSON else f"{said['name']}@{said['version']}")


SUITES: list[table.Column] = [
    ("NAME", lambda row: row["name"]),
    ("VERSION", lambda row: row["version"]),
    ("TEAM", lambda row: row["team"]),
    ("FRAMEWORK", lambda row: row["framework"]),
    ("TITLE", lambda row: row["title"]),
]


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
    app.command()(suite)
