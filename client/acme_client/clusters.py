"""`acme cluster`: list, add and change clusters, set their control mode and power budgets, and test connections."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from acme_client import table
from acme_client.api import Acme
from acme_client.terminal import (
    OutputFormat,
    OutputOption,
    ReasonOption,
    client_from_context,
    exit_with_usage_error,
    number,
    print_message,
    print_rows,
)

DRIVE_WARNING = (
    "Acme will start, stop and requeue jobs, and drain and resume nodes on this cluster. Jobs submitted outside of Acme"
    " are never changed."
)
CLUSTER_COLUMNS: list[table.TableColumn] = [
    ("CLUSTER", lambda row: row["name"]),
    ("MODE", lambda row: row["mode"]),
    ("POLICY", lambda row: row["policy"]),
    ("PRODUCT", lambda row: row["product"]),
    ("LAST ANSWER", lambda row: row["last_contact_at"] or "never"),
    ("LAST ERROR", lambda row: row["last_error"]),
]


class CapMode(StrEnum):
    """What happens when the measured power approaches a budget."""

    OFF = "off"
    OBSERVE = "observe"
    ACT = "act"


BUDGET_COLUMNS: list[table.TableColumn] = [
    ("SCOPE", lambda row: row["scope"]),
    ("PLACE", lambda row: row["place"] or "-"),
    ("NODES", lambda row: row["nodes"]),
    ("IDLE KW", lambda row: _kw_text(row["idle_kw"])),
    ("PREDICTED KW", lambda row: _kw_text(row["predicted_kw"])),
    ("BUDGET KW", lambda row: _kw_text(row["limit_kw"])),
    ("WAITING", lambda row: row["jobs_waiting"]),
    ("MEASURED KW", lambda row: _kw_text(row["measured_kw"])),
    ("CAPS", lambda row: row["cap_mode"]),
    ("THRESHOLDS %", lambda row: ",".join(map(str, row["cap_percents"]))),
]
QUOTA_COLUMNS: list[table.TableColumn] = [
    ("TEAM", lambda row: row["team"]),
    ("KIND", lambda row: row["kind"] or "-"),
    ("GPU MODEL", lambda row: row["gpu_model"] or "-"),
    ("GPUS", lambda row: row["gpus"]),
    ("USED", lambda row: f"{row['used']:g}"),
    ("LEFT", lambda row: f"{row['remaining']:g}"),
]
SPEED_COLUMNS: list[table.TableColumn] = [
    ("JOB NAME", lambda row: row["pattern"]),
    ("GPU MODEL", lambda row: row["gpu_model"]),
    ("SPEED", lambda row: f"{row['speed']:g}"),
]
STEP_MARKS = {True: "ok", False: "FAILED", None: "-"}


class ModeChoice(StrEnum):
    OBSERVE = "observe"
    ADVISE = "advise"
    DRIVE = "drive"


class SleepChoice(StrEnum):
    OFF = "off"
    OBSERVE = "observe"
    PROPOSE = "propose"
    ACT = "act"


class SubmitAsChoice(StrEnum):
    SERVICE = "service"
    USER_HEADER = "user_header"
    USER_TOKENS = "user_tokens"


ADDRESS_HELP = "http://host:6820, unix:///run/slurmrestd.sock, or kubernetes:///path of a kubeconfig on the server."

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the server's response as JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation of mode drive.")]
AddressOption = Annotated[str | None, typer.Option("--address", help=ADDRESS_HELP)]
UserOption = Annotated[str | None, typer.Option("--user", help="User name, sent as X-SLURM-USER-NAME.")]
TokenOption = Annotated[
    str | None, typer.Option("--token-file", help="Path on the server to a file with the JWT, not the JWT itself.")
]
SubmitAsOption = Annotated[
    SubmitAsChoice | None,
    typer.Option(
        "--submit-as", help="Jobs run as the token's user (service) or as the submitting user (the other two)."
    ),
]
UserTokensOption = Annotated[
    str | None, typer.Option("--user-tokens", help="Directory on the server with one token file for each user.")
]
MetricsOption = Annotated[
    str | None, typer.Option("--metrics", help="URL of GPU telemetry, such as http://host:9400/metrics.")
]
LogRootOption = Annotated[str | None, typer.Option("--log-root", help="Directory of job logs, as the server sees it.")]
PodTemplateOption = Annotated[
    str | None,
    typer.Option("--pod-template", metavar="FILE", help="JSON file with the settings of pods on Kubernetes."),
]
CheckpointRootOption = Annotated[
    str | None, typer.Option("--checkpoint-root", help="Directory of checkpoints, as the server sees it.")
]
TitleOption = Annotated[str | None, typer.Option("--title", help="Title shown on pages.")]
PriceOption = Annotated[
    float | None, typer.Option("--gpu-hour-price", parser=number, help="Price of a GPU-hour, in the server's currency.")
]
KwhPriceOption = Annotated[
    float | None, typer.Option("--kwh-price", parser=number, help="Price of a kWh, in the server's currency.")
]
CarbonOption = Annotated[
    float | None, typer.Option("--co2", parser=number, help="Grams of CO2 per kWh of the cluster's electricity.")
]
SleepOption = Annotated[
    SleepChoice | None, typer.Option("--sleep", help="Whether nodes that are not needed sleep; needs mode drive.")
]
ModeOption = Annotated[
    ModeChoice | None, typer.Option("--mode", help=f"observe, advise or drive. In drive: {DRIVE_WARNING}")
]
PlaceOption = Annotated[str, typer.Option(help="Only the nodes of this place.")]

FIELD_OF_PARAMETER = {
    "address": "address",
    "token_file": "token_file",
    "user": "api_user",
    "submit_as": "submit_as",
    "user_tokens": "user_token_directory",
    "metrics": "metrics_address",
    "log_root": "log_root",
    "pod_template": "pod_template",
    "checkpoint_root": "checkpoint_root",
    "title": "title",
    "price": "gpu_hour_price",
    "kwh_price": "kwh_price",
    "co2": "co2_g_per_kwh",
    "mode": "mode",
    "sleep": "sleep_mode",
    "reason": "reason",
}

app = typer.Typer(invoke_without_command=True, help="List, add, change and test clusters.")


@app.callback()
def list_clusters(ctx: typer.Context, output: OutputOption = OutputFormat.TABLE, as_json: JsonOption = False) -> None:
    """List, add, change and test clusters."""
    if ctx.invoked_subcommand is None:
        rows = list(client_from_context(ctx).pages("clusters/", {}, 10_000))
        print_rows(CLUSTER_COLUMNS, rows, OutputFormat.JSON if as_json else output)


@app.command()
def show(ctx: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Show all details of a cluster."""
    row = client_from_context(ctx).get(_cluster_path(name))
    typer.echo(table.format_json(row) if as_json else table.format_details(row))


@app.command()
def add(
    ctx: typer.Context,
    name: NameArgument,
    address: Annotated[str, typer.Option("--address", help=ADDRESS_HELP)],
    token_file: TokenOption = None,
    user: UserOption = None,
    submit_as: SubmitAsOption = None,
    user_tokens: UserTokensOption = None,
    metrics: MetricsOption = None,
    log_root: LogRootOption = None,
    pod_template: PodTemplateOption = None,
    checkpoint_root: CheckpointRootOption = None,
    title: TitleOption = None,
    price: PriceOption = None,
    kwh_price: KwhPriceOption = None,
    co2: CarbonOption = None,
    mode: ModeOption = None,
    sleep: SleepOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a cluster; the default mode is observe."""
    body = {"name": name} | _request_body(ctx)
    _confirm_drive_mode(mode, yes)
    row = client_from_context(ctx).post("clusters/", body)
    typer.echo(table.format_json(row) if as_json else f"{row['name']}: added in mode {row['mode']}.")


@app.command(name="set")
def change_cluster(
    ctx: typer.Context,
    name: NameArgument,
    address: AddressOption = None,
    token_file: TokenOption = None,
    user: UserOption = None,
    submit_as: SubmitAsOption = None,
    user_tokens: UserTokensOption = None,
    metrics: MetricsOption = None,
    log_root: LogRootOption = None,
    pod_template: PodTemplateOption = None,
    checkpoint_root: CheckpointRootOption = None,
    title: TitleOption = None,
    price: PriceOption = None,
    kwh_price: KwhPriceOption = None,
    co2: CarbonOption = None,
    mode: ModeOption = None,
    sleep: SleepOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change a cluster. A new address requires --token-file again, because the token is then sent there."""
    body = _request_body(ctx)
    changed = sorted(set(body) - {"reason"})
    if not changed:
        exit_with_usage_error("Give at least one option to change. See acme cluster set --help.")
    _confirm_drive_mode(mode, yes)
    row = client_from_context(ctx).patch(_cluster_path(name), body)
    typer.echo(table.format_json(row) if as_json else f"{row['name']}: changed {', '.join(changed)}.")


@app.command()
def test(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A saved cluster; otherwise give --address.")] = "",
    address: AddressOption = None,
    token_file: TokenOption = None,
    user: UserOption = None,
    submit_as: SubmitAsOption = None,
    user_tokens: UserTokensOption = None,
    metrics: MetricsOption = None,
    log_root: LogRootOption = None,
    pod_template: PodTemplateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test the connection of a saved cluster, or of one that is not saved. Exit code 1 if a step fails."""
    body = _request_body(ctx)
    if bool(name) == bool(body):
        exit_with_usage_error("Give either the name of a saved cluster, or --address with its options.")
    result = client_from_context(ctx).post(f"{_cluster_path(name)}test/" if name else "connection-tests/", body)
    if as_json:
        typer.echo(table.format_json(result))
    else:
        _print_steps(result["steps"])
    if not result["ok"]:
        raise typer.Exit(1)


@app.command(name="power-budget")
def power_budget(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")],
    kw: Annotated[
        float | None, typer.Option("--kw", parser=number, help="Set the budget to this many kW, with hosts.")
    ] = None,
    rack: PlaceOption = "",
    leaf: PlaceOption = "",
    pod: PlaceOption = "",
    caps: Annotated[
        CapMode | None, typer.Option("--caps", help="Whether clocks are capped when the measured power approaches it.")
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(
            "--thresholds",
            metavar="LOW,ALL,LOWEST",
            help="Percent of the budget above which evaluation and debug jobs are capped, then all jobs, and above "
            "which all run at the lowest clock, such as 80,89,100.",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the budget.")] = False,
    reason: ReasonOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the power budgets of a cluster, or set or remove one. Jobs start only while the predicted peak fits."""
    scope, place = _scope_and_place(rack=rack, leaf=leaf, pod=pod)
    client, path = client_from_context(ctx), f"clusters/{quote(name, safe='')}/power-budgets/"
    asked = {"limit_kw": kw, "cap_mode": caps, "cap_percents": None if thresholds is None else _percents(thresholds)}
    wanted: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if wanted and remove:
        exit_with_usage_error("Give either --kw, --caps and --thresholds or --remove.")
    if not wanted and not remove:
        query = {"scope": scope, "place": place} if place else {}
        print_rows(BUDGET_COLUMNS, list(client.pages(path, query, 10_000)), output)
        return
    found = next(iter(client.pages(path, {"scope": scope} | ({"place": place} if place else {}), 1)), None)
    why = {"reason": reason} if reason else {}
    where = " ".join((name, *((scope, place) if place else ())))
    if remove:
        _remove_budget(client, path, found, why)
        typer.echo(f"{where}: removed.")
    else:
        row = _set_budget(client, path, found, {"scope": scope, "place": place}, wanted | why)
        at = f" at {', '.join(map(str, row['cap_percents']))}%" if thresholds else ""
        typer.echo(f"{where}: {_kw_text(row['limit_kw'])} kW, caps {row['cap_mode']}{at}.")


def _percents(text: str) -> list[int]:
    """Read the thresholds before a budget is added, which would stay if only they were refused."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 3]
    is_valid = len(numbers) == len(words) == 3 and numbers == sorted(numbers)
    if not is_valid or numbers[0] < 50 or numbers[-1] > 100:
        rule = "three whole percentages from 50 to 100, none below the one before, such as 80,89,100"
        exit_with_usage_error(f"--thresholds: {text!r} is not {rule}.")
    return numbers


def _set_budget(
    client: Acme, path: str, found: dict[str, Any] | None, where: dict[str, Any], wanted: dict[str, Any]
) -> dict[str, Any]:
    if found is None:
        if "limit_kw" not in wanted:
            exit_with_usage_error("There is no such power budget. Give --kw to add it.")
        added = {name: value for name, value in wanted.items() if not name.startswith("cap_")}
        found = client.post(path, where | added)
        wanted = {name: value for name, value in wanted.items() if name.startswith("cap_")}
    return client.patch(f"{path}{found['id']}/", wanted) if wanted else found


def _remove_budget(client: Acme, path: str, found: dict[str, Any] | None, body: dict[str, Any]) -> None:
    if found is None:
        exit_with_usage_error("There is no such power budget.")
    client.post(f"{path}{found['id']}/remove/", body)


@app.command(name="quotas")
def quotas(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")],
    team: Annotated[str, typer.Option("--team", help="Only this team.")] = "",
    model: Annotated[str, typer.Option("--model", help="Only quotas for this GPU model.")] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the quotas of your teams on a cluster, with their use."""
    given = {"cluster": name, "team": team, "gpu_model": model}
    query = {field: value for field, value in given.items() if value}
    print_rows(QUOTA_COLUMNS, list(client_from_context(ctx).pages("quotas/", query, 10_000)), output)


@app.command(name="gpu-speeds")
def gpu_speeds(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")],
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="A job name; * stands for any text.")] = "",
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="The GPU model.")] = "",
    speed: Annotated[
        float | None,
        typer.Argument(metavar="[SPEED]", parser=number, help="Steps per second, or any unit; only ratios count."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the speed.")] = False,
    reason: ReasonOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List how fast jobs are on each GPU model, or set or remove a speed. Jobs with several models wait for a faster
    one if they end earlier then."""
    client, path = client_from_context(ctx), f"clusters/{quote(name, safe='')}/gpu-speeds/"
    key = {field: value for field, value in (("pattern", pattern), ("gpu_model", model)) if value}
    if speed is None and not remove:
        print_rows(SPEED_COLUMNS, list(client.pages(path, key, 10_000)), output)
        return
    if len(key) < 2 or (speed is not None and remove):
        exit_with_usage_error("Give PATTERN and MODEL, and either SPEED or --remove.")
    found = next(iter(client.pages(path, key, 1)), None)
    why = {"reason": reason} if reason else {}
    if remove:
        if found is None:
            exit_with_usage_error("There is no such speed.")
        client.post(f"{path}{found['id']}/remove/", why)
        typer.echo(f"{pattern} on {model}: removed.")
    else:
        body = {"speed": speed, **why}
        row = client.patch(f"{path}{found['id']}/", body) if found else client.post(path, key | body)
        typer.echo(f"{pattern} on {model}: {row['speed']:g}.")


def _scope_and_place(**places: str) -> tuple[str, str]:
    given = [(scope, place) for scope, place in places.items() if place]
    if len(given) > 1:
        exit_with_usage_error("Give only one of --rack, --leaf and --pod.")
    return given[0] if given else ("cluster", "")


def _kw_text(number: float | None) -> str:
    return "-" if number is None else f"{number:,.1f}"


def _print_steps(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        text = f"{step['message']} {step['advice']}".rstrip()
        typer.echo(f"{STEP_MARKS[step['ok']]:<6}  {step['name']:<9}  {table.clean_text(text)}")


def _cluster_path(name: str) -> str:
    return f"clusters/{quote(name, safe='')}/"


def _request_body(ctx: typer.Context) -> dict[str, Any]:
    """Return the fields of the options that were given. An empty text clears a field; a reason is never empty."""
    given = {name: value for name, value in ctx.params.items() if value is not None and (value or name != "reason")}
    if "pod_template" in given:
        given["pod_template"] = _read_json(given["pod_template"]) if given["pod_template"] else {}
    return {field: given[name] for name, field in FIELD_OF_PARAMETER.items() if name in given}


def _read_json(file: str) -> Any:
    try:
        return json.loads(Path(file).read_text())
    except OSError as error:
        exit_with_usage_error(f"{file} cannot be read: {error.strerror}.")
    except ValueError as error:
        exit_with_usage_error(f"{file} is not JSON: {error}.")


def _confirm_drive_mode(mode: ModeChoice | None, yes: bool) -> None:
    if mode != ModeChoice.DRIVE:
        return
    print_message(DRIVE_WARNING)
    try:
        if yes or typer.confirm("Switch to drive?", err=True):
            return
    except typer.Abort:
        exit_with_usage_error("No confirmation was given. Add --yes to skip it.")
    print_message("Nothing was changed.")
    raise typer.Exit(1)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="cluster")
