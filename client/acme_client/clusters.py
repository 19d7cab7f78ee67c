"""`acme cluster`: list clusters, add one, change how it is reached and how far Acme goes on it, test a connection."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from acme_client import table
from acme_client.terminal import (
    OutputFormat,
    OutputOption,
    ReasonOption,
    client_from_context,
    exit_with_usage_error,
    print_message,
    print_rows,
)

DRIVE_WARNING = (
    "Acme will start, stop and requeue jobs, and drain and resume nodes on this cluster. Jobs that others submitted are"
    " never changed."
)
CLUSTER_COLUMNS: list[table.TableColumn] = [
    ("CLUSTER", lambda row: row["name"]),
    ("MODE", lambda row: row["mode"]),
    ("POLICY", lambda row: row["policy"]),
    ("PRODUCT", lambda row: row["product"]),
    ("LAST ANSWER", lambda row: row["heard_at"] or "never"),
    ("TROUBLE", lambda row: row["trouble"]),
]
STEP_MARKS = {True: "ok", False: "FAILED", None: "-"}


class ModeChoice(StrEnum):
    OBSERVE = "observe"
    ADVISE = "advise"
    DRIVE = "drive"


class SubmitAsChoice(StrEnum):
    SERVICE = "service"
    USER_HEADER = "user_header"
    USER_TOKENS = "user_tokens"


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The cluster.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The server's answer as JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a cluster is driven.")]
AddressOption = Annotated[str | None, typer.Option("--address", help="http://host:6820 or unix:///run/slurmrestd.sock")]
UserOption = Annotated[str | None, typer.Option("--user", help="Sent as X-SLURM-USER-NAME.")]
TokenOption = Annotated[
    str | None, typer.Option("--token-file", help="Path on the server to the file with the JWT, never the JWT.")
]
SubmitAsOption = Annotated[
    SubmitAsChoice | None,
    typer.Option(
        "--submit-as", help="Jobs run as the token's user (service) or as the person who submitted (the other two)."
    ),
]
UserTokensOption = Annotated[
    str | None, typer.Option("--user-tokens", help="Directory on the server with one token file for each user.")
]
MetricsOption = Annotated[str | None, typer.Option("--metrics", help="GPU telemetry, as http://host:9400/metrics.")]
LogRootOption = Annotated[str | None, typer.Option("--log-root", help="Directory of job logs, as the server sees it.")]
CheckpointRootOption = Annotated[
    str | None, typer.Option("--checkpoint-root", help="Directory of checkpoints, as the server sees it.")
]
TitleOption = Annotated[str | None, typer.Option("--title")]
PriceOption = Annotated[float | None, typer.Option("--gpu-hour-price", help="In the currency of the server.")]
ModeOption = Annotated[
    ModeChoice | None, typer.Option("--mode", help=f"observe, advise or drive. In drive: {DRIVE_WARNING}")
]

app = typer.Typer(invoke_without_command=True, help="List clusters, add, change and test them.")


@app.callback()
def list_clusters(ctx: typer.Context, output: OutputOption = OutputFormat.TABLE, as_json: JsonOption = False) -> None:
    """List clusters, add, change and test them."""
    if ctx.invoked_subcommand is None:
        rows = list(client_from_context(ctx).pages("clusters/", {}, 10_000))
        print_rows(CLUSTER_COLUMNS, rows, OutputFormat.JSON if as_json else output)


@app.command()
def show(ctx: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Everything about one cluster."""
    row = client_from_context(ctx).get(_cluster_path(name))
    typer.echo(table.format_json(row) if as_json else table.format_details(row))


@app.command()
def add(
    ctx: typer.Context,
    name: NameArgument,
    address: Annotated[str, typer.Option("--address", help="http://host:6820 or unix:///run/slurmrestd.sock")],
    token_file: TokenOption = None,
    user: UserOption = None,
    submit_as: SubmitAsOption = None,
    user_tokens: UserTokensOption = None,
    metrics: MetricsOption = None,
    log_root: LogRootOption = None,
    checkpoint_root: CheckpointRootOption = None,
    title: TitleOption = None,
    price: PriceOption = None,
    mode: ModeOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add a cluster, in mode observe if nothing else is said."""
    body = _without_none(
        name=name,
        address=address,
        token_file=token_file,
        api_user=user,
        submit_as=submit_as,
        user_token_directory=user_tokens,
        metrics_address=metrics,
        log_root=log_root,
        checkpoint_root=checkpoint_root,
        title=title,
        gpu_hour_price=price,
        mode=mode,
        reason=reason or None,
    )
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
    checkpoint_root: CheckpointRootOption = None,
    title: TitleOption = None,
    price: PriceOption = None,
    mode: ModeOption = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change a cluster. With a new address name its --token-file again: the token is sent there from then on."""
    body = _without_none(
        address=address,
        token_file=token_file,
        api_user=user,
        submit_as=submit_as,
        user_token_directory=user_tokens,
        metrics_address=metrics,
        log_root=log_root,
        checkpoint_root=checkpoint_root,
        title=title,
        gpu_hour_price=price,
        mode=mode,
    )
    if not body:
        exit_with_usage_error("give at least one option to change; see acme cluster set --help")
    _confirm_drive_mode(mode, yes)
    row = client_from_context(ctx).patch(_cluster_path(name), body | _without_none(reason=reason or None))
    typer.echo(table.format_json(row) if as_json else f"{row['name']}: changed {', '.join(sorted(body))}.")


@app.command()
def test(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A saved cluster; else give --address.")] = "",
    address: AddressOption = None,
    token_file: TokenOption = None,
    user: UserOption = None,
    submit_as: SubmitAsOption = None,
    user_tokens: UserTokensOption = None,
    metrics: MetricsOption = None,
    log_root: LogRootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Test a connection, of a saved cluster or one that is not saved. Exit code 1 if a step fails."""
    body = _without_none(
        address=address,
        token_file=token_file,
        api_user=user,
        submit_as=submit_as,
        user_token_directory=user_tokens,
        metrics_address=metrics,
        log_root=log_root,
    )
    if bool(name) == bool(body):
        exit_with_usage_error("give the name of a saved cluster, or --address and what belongs to it, one of the two")
    told = client_from_context(ctx).post(f"{_cluster_path(name)}test/" if name else "clusters/test/", body)
    if as_json:
        typer.echo(table.format_json(told))
    else:
        _print_steps(told["steps"])
    if not told["works"]:
        raise typer.Exit(1)


def _print_steps(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        said = f"{step['says']} {step['advice']}".rstrip()
        typer.echo(f"{STEP_MARKS[step['good']]:<6}  {step['name']:<9}  {table.clean_text(said)}")


def _cluster_path(name: str) -> str:
    return f"clusters/{quote(name, safe='')}/"


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _confirm_drive_mode(mode: ModeChoice | None, yes: bool) -> None:
    if mode != ModeChoice.DRIVE:
        return
    print_message(DRIVE_WARNING)
    try:
        if yes or typer.confirm("Drive it?", err=True):
            return
    except typer.Abort:
        exit_with_usage_error("nobody answered; add --yes to go on without being asked")
    print_message("Nothing was changed.")
    raise typer.Exit(1)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="cluster")
