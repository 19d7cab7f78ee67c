"""`acme simulate`: replay a trace on the server under other policies, wait for the results, and compare them."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from acme_client import table
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

POLL_S = 1.0
UNFINISHED_STATES = ("PENDING", "RUNNING")


def _run_name(row: Mapping[str, Any]) -> str:
    """The policy, the load if it is not that of the trace, and the power budget."""
    load, budget_kw = row.get("load", 100), (row.get("power") or {}).get("budget_kw")
    named = (f"{load}% load" if load != 100 else "", f"{budget_kw:,g} kW" if budget_kw else "")
    conditions = " and ".join(filter(None, named))
    return str(row["policy"]) + (f" at {conditions}" if conditions else "")


SIMULATION_COLUMNS: list[table.TableColumn] = [
    ("POLICY", _run_name),
    ("JOBS", lambda row: row["jobs"]),
    ("JCT_MEAN", lambda row: table.format_duration(row["jct_s"]["mean"])),
    ("QUEUE_MEAN", lambda row: table.format_duration(row["queue_s"]["mean"])),
    ("QUEUE_P99", lambda row: table.format_duration(row["queue_s"]["p99"])),
    ("MAKESPAN", lambda row: table.format_duration(row["makespan_s"])),
    ("UTIL%", lambda row: f"{100 * row['utilisation']:.1f}"),
    ("FRAG%", lambda row: "-" if row["fragmentation"] is None else f"{100 * row['fragmentation']:.1f}"),
    ("PREEMPTED", lambda row: row["preemptions"]),
]
WIDE_COLUMNS: list[table.TableColumn] = [
    ("JCT_P50", lambda row: table.format_duration(row["jct_s"]["p50"])),
    ("JCT_P99", lambda row: table.format_duration(row["jct_s"]["p99"])),
    ("QUEUE_P50", lambda row: table.format_duration(row["queue_s"]["p50"])),
    ("QUEUE_P90", lambda row: table.format_duration(row["queue_s"]["p90"])),
    ("SLOWDOWN", lambda row: f"{row['fairness']['mean_slowdown']:.2f}"),
    ("JAIN", lambda row: f"{row['fairness']['jain']:.3f}"),
    ("BROKEN", lambda row: "-" if row["faults"]["jobs"] is None else row["faults"]["jobs"]),
]


# Title of the column, section of `power` that has the value, its name, and decimals
POWER_FIGURES = (
    ("KWH", "", "kwh", 0),
    ("PEAK_KW", "", "peak_kw", 1),
    ("ABOVE_S", "", "above_budget_s", 0),
    ("COST", "", "cost", 2),
    ("KWH_SLEEP", "sleep", "kwh", 0),
    ("COST_SLEEP", "sleep", "cost", 2),
    ("WAKES", "sleep", "node_wakes", 0),
    ("UNPLANNED", "sleep", "unplanned_wakes", 0),
)


def _power_figure(row: Mapping[str, Any], section: str, name: str) -> float | None:
    power = row.get("power") or {}
    figure: float | None = ((power.get(section) or {}) if section else power).get(name)
    return figure


def _power_columns(rows: Sequence[Mapping[str, Any]]) -> list[table.TableColumn]:
    """The columns of power that have a value in any row."""

    def column(title: str, section: str, name: str, decimals: int) -> table.TableColumn:
        def text(row: Mapping[str, Any]) -> str:
            figure = _power_figure(row, section, name)
            return "-" if figure is None else f"{figure:.{decimals}f}"

        return title, text

    shown = [one for one in POWER_FIGURES if any(_power_figure(row, *one[1:3]) is not None for row in rows)]
    return [column(*one) for one in shown]


@dataclass(frozen=True)
class ProfileFile:
    """The columns of a file: names, numbers, and whole numbers that may be left out."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        return ",".join((*self.names, *self.numbers, *(f"[{name}]" for name in self.optional)))


PROFILES = ProfileFile(("name",), ("gpu_percent", "memory_mb"), ("score",))
PAIR_SPEEDS = ProfileFile(("name1", "name2"), ("speed1", "speed2"))


def simulate(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(help="acme:seren, acme:kalos, or history: past jobs of a cluster.")] = "",
    policy: Annotated[str, typer.Option("--policy", "-p", help="One or more policies, separated by commas.")] = "fifo",
    jobs: Annotated[int | None, typer.Option("--jobs", help="For acme: number of sampled jobs.")] = None,
    days: Annotated[int | None, typer.Option("--days", help="For history: number of days.")] = None,
    cluster: Annotated[str | None, typer.Option("--clusters", "-M", help="For history: the cluster.")] = None,
    team: Annotated[
        str | None, typer.Option("--account", "-A", help="The team that the simulation belongs to.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-N", help="Number of nodes; default: those of the cluster.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of a node.")] = None,
    placement: Annotated[str | None, typer.Option("--placement", help="Placement strategy.")] = None,
    preemption_cost: Annotated[
        str | None, typer.Option("--preemption-cost", help="Cost of a preemption: none or helios.")
    ] = None,
    faults: Annotated[str | None, typer.Option("--faults", help="rates, or name=number separated by commas.")] = None,
    noise: Annotated[
        str | None, typer.Option("--noise", help="Error of expected run times: none, helios, or a number such as 0.5.")
    ] = None,
    load: Annotated[
        int | None, typer.Option("--load", help="Arrival rate in percent of the trace's; default: 100.")
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(
            "--profiles",
            metavar="FILE",
            help=f"CSV {PROFILES.header}: how jobs of a name use a GPU. For policies that let jobs share GPUs.",
        ),
    ] = None,
    pair_speeds: Annotated[
        Path | None,
        typer.Option(
            "--pair-speeds",
            metavar="FILE",
            help=f"CSV {PAIR_SPEEDS.header}: speeds of two jobs on the same GPUs; default: estimated.",
        ),
    ] = None,
    draw_profiles: Annotated[
        bool, typer.Option("--draw-profiles", help="Give each job a random profile. --seed makes it repeatable.")
    ] = False,
    energy: Annotated[bool, typer.Option("--energy", help="Report energy and peak power.")] = False,
    power_budget_kw: Annotated[
        float | None,
        typer.Option("--power-budget-kw", parser=number, help="Power that jobs must stay below; implies --energy."),
    ] = None,
    price_per_kwh: Annotated[
        float | None,
        typer.Option("--price-per-kwh", parser=number, help="Report the cost of energy; implies --energy."),
    ] = None,
    sleep: Annotated[
        bool, typer.Option("--sleep", help="Report what sleeping nodes would save; implies --energy.")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the random numbers.")] = None,
    id: Annotated[str, typer.Option("--id", help="Wait for an existing simulation.")] = "",
    wait: Annotated[bool, typer.Option(help="Wait for the result; otherwise only print the id.")] = True,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Replay a trace under other policies and compare them."""
    if bool(trace) == bool(id):
        exit_with_usage_error("Give either a trace such as acme:seren, or the --id of a simulation.")
    acme = client_from_context(ctx)
    if trace:
        request: dict[str, Any] = {
            "trace": trace,
            "policies": [name.strip() for name in policy.split(",")],
            "jobs": jobs,
            "days": days,
        }
        request |= {"cluster": cluster, "team": team, "nodes": nodes, "gpus_per_node": gpus_per_node, "seed": seed}
        request |= {
            "placement": placement,
            "load": load,
            "preemption_cost": preemption_cost,
            "faults": faults,
            "noise": noise,
        }
        request |= {"power_budget_kw": power_budget_kw, "price_per_kwh": price_per_kwh}
        request |= {"energy": energy or None, "sleep": sleep or None, "draw_profiles": draw_profiles or None}
        request |= {
            "profiles": _profile_rows(profiles, PROFILES) if profiles else None,
            "pair_speeds": _profile_rows(pair_speeds, PAIR_SPEEDS) if pair_speeds else None,
        }
        simulation = acme.post("simulations/", {name: value for name, value in request.items() if value is not None})
    else:
        simulation = acme.get(f"simulations/{id}/")
    if not wait:
        typer.echo(table.format_json(simulation) if output == OutputFormat.JSON else simulation["id"])
        return
    _print_simulation(_wait_for_simulation(acme, simulation["id"]), output)


def _profile_rows(path: Path, columns: ProfileFile) -> list[dict[str, str | float]]:
    """The rows. Ends the program with one sentence if the file is not such a table."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, restval="", strict=True)
            if not {*columns.names, *columns.numbers} <= set(rows.fieldnames or ()):
                exit_with_usage_error(f"{path}: must be a CSV with the columns {columns.header}.")
            return [_entry(row, columns, f"{path} line {rows.line_num}") for row in rows]
    except OSError as error:
        exit_with_usage_error(f"{path}: {error.strerror}.")
    except UnicodeError:
        exit_with_usage_error(f"{path} is not a text file in UTF-8.")
    except csv.Error as error:
        exit_with_usage_error(f"{path}: {error}.")


def _entry(row: Mapping[str, str], columns: ProfileFile, where: str) -> dict[str, str | float]:
    entry: dict[str, str | float] = {name: row[name].strip() for name in columns.names}
    entry |= {name: _number(row[name], name, where) for name in columns.numbers}
    given: Sequence[str] = [name for name in columns.optional if (row.get(name) or "").strip()]
    return entry | {name: _whole_number(row[name], name, where) for name in given}


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _refuse(text, name, where, "number")
    return value


def _whole_number(text: str, name: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        _refuse(text, name, where, "whole number")


def _refuse(text: str, name: str, where: str, kind: str) -> NoReturn:
    exit_with_usage_error(f"{where}: {name} {text.strip()[:40]!r} is not a {kind}.")


def _wait_for_simulation(acme: Acme, id: str) -> dict[str, Any]:
    """Wait for a simulation and return it. Ctrl-C stops only the waiting, because others may share the simulation."""
    try:
        with progress_bar("simulate") as progress:
            while (simulation := acme.get(f"simulations/{id}/"))["state"] in UNFINISHED_STATES:
                progress(simulation["progress"], 100)
                time.sleep(POLL_S)
            return dict(simulation)
    except KeyboardInterrupt:
        print_message(f"{id} continues. Wait for it with acme simulate --id {id}.")
        raise typer.Exit(130) from None


def _print_simulation(simulation: dict[str, Any], output: OutputFormat) -> None:
    if output == OutputFormat.JSON:
        typer.echo(table.format_json(simulation))
    elif result := simulation["result"]:
        rows = [result["recorded"]] * bool(result.get("recorded")) + result["runs"]
        wide = WIDE_COLUMNS if output in (OutputFormat.WIDE, OutputFormat.CSV) else []
        print_rows(SIMULATION_COLUMNS + _power_columns(rows) + wide, rows, output)
    if not simulation["result"]:
        error = f": {simulation['error']}" if simulation["error"] else "."
        print_message(f"{simulation['id']} is {simulation['state']}{error}")
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(simulate)
