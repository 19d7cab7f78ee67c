"""`acme simulate`: a trace replayed by the server under other policies, waited for, and compared in a table."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from acme_client import table
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

POLL_S = 1.0
UNFINISHED_STATES = ("PENDING", "RUNNING")

SIMULATION_COLUMNS: list[table.TableColumn] = [
    ("POLICY", lambda row: row["policy"]),
    ("JOBS", lambda row: row["jobs"]),
    ("JCT_MEAN", lambda row: table.format_duration(row["jct_s"]["mean"])),
    ("QUEUE_MEAN", lambda row: table.format_duration(row["queue_s"]["mean"])),
    ("QUEUE_P99", lambda row: table.format_duration(row["queue_s"]["p99"])),
    ("MAKESPAN", lambda row: table.format_duration(row["makespan_s"])),
    ("UTIL%", lambda row: f"{100 * row['utilisation']:.1f}"),
    ("FRAG%", lambda row: f"{100 * row['fragmentation']:.1f}"),
    ("PREEMPTED", lambda row: row["preemptions"]),
]
WIDE_COLUMNS: list[table.TableColumn] = [
    ("JCT_P50", lambda row: table.format_duration(row["jct_s"]["p50"])),
    ("JCT_P99", lambda row: table.format_duration(row["jct_s"]["p99"])),
    ("QUEUE_P50", lambda row: table.format_duration(row["queue_s"]["p50"])),
    ("QUEUE_P90", lambda row: table.format_duration(row["queue_s"]["p90"])),
    ("SLOWDOWN", lambda row: f"{row['fairness']['mean_slowdown']:.2f}"),
    ("JAIN", lambda row: f"{row['fairness']['jain']:.3f}"),
    ("BROKEN", lambda row: row["faults"]["jobs"]),
]


def simulate(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(help="acme:seren, acme:kalos, or history: past jobs of a cluster.")] = "",
    policy: Annotated[str, typer.Option("--policy", "-p", help="One or more, by commas; each is replayed.")] = "fifo",
    jobs: Annotated[int | None, typer.Option("--jobs", help="Of acme: how many are drawn.")] = None,
    days: Annotated[int | None, typer.Option("--days", help="Of history: how far it goes back.")] = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M", help="Of history: whose.")] = None,
    team: Annotated[str | None, typer.Option("--account", "-A", help="The team it is asked for.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", "-N", help="Otherwise as many as there are.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node")] = None,
    placement: Annotated[str | None, typer.Option("--placement")] = None,
    preemption_cost: Annotated[str | None, typer.Option("--preemption-cost", help="none or helios.")] = None,
    faults: Annotated[str | None, typer.Option("--faults", help="rates, or name=number by commas.")] = None,
    noise: Annotated[
        str | None, typer.Option("--noise", help="Errors of expected run times: none, helios, 0.5.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    id: Annotated[str, typer.Option("--id", help="Wait for one that was asked for before.")] = "",
    wait: Annotated[bool, typer.Option(help="Without it only the id is printed.")] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Replay a trace under other policies, and compare them."""
    if bool(trace) == bool(id):
        exit_with_usage_error("give a trace such as acme:seren, or the --id of a simulation, one of the two")
    acme = client_from_context(ctx)
    if trace:
        asked = {"trace": trace, "policies": [name.strip() for name in policy.split(",")], "jobs": jobs, "days": days}
        asked |= {"cluster": cluster, "team": team, "nodes": nodes, "gpus_per_node": gpus_per_node, "seed": seed}
        asked |= {"placement": placement, "preemption_cost": preemption_cost, "faults": faults, "noise": noise}
        said = acme.post("simulations/", {name: value for name, value in asked.items() if value is not None})
    else:
        said = acme.get(f"simulations/{id}/")
    if not wait:
        typer.echo(table.format_json(said) if output == OutputFormat.JSON else said["id"])
        return
    _print_simulation(_wait_for_simulation(acme, said["id"]), output)


def _wait_for_simulation(acme: Acme, id: str) -> dict[str, Any]:
    """Whoever stops waiting has not stopped it: others may have asked for the same, and it can be looked at later."""
    try:
        with progress_bar("simulate") as progress:
            while (said := acme.get(f"simulations/{id}/"))["state"] in UNFINISHED_STATES:
                progress(said["progress"], 100)
                time.sleep(POLL_S)
            return dict(said)
    except KeyboardInterrupt:
        print_message(f"{id} goes on; acme simulate --id {id} waits for it again.")
        raise typer.Exit(130) from None


def _print_simulation(said: dict[str, Any], output: OutputFormat) -> None:
    if output == OutputFormat.JSON:
        typer.echo(table.format_json(said))
    elif said["result"]:
        print_rows(
            SIMULATION_COLUMNS + (WIDE_COLUMNS if output in (OutputFormat.WIDE, OutputFormat.CSV) else []),
            said["result"]["runs"],
            output,
        )
    if not said["result"]:
        print_message(f"{said['id']} is {said['state']}" + (f": {said['error']}" if said["error"] else "."))
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(simulate)
