"""The command `acme`: what sbatch, squeue, scancel, scontrol and sinfo users expect, over the REST API.

Exit codes: 0 done · 1 refused by the server · 2 wrong usage · 3 server not reachable · 4 not allowed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote

import httpx
import typer
from rich.console import Console
from typer.completion import get_completion_script

from acme_client import (
    __version__,
    clusters,
    config,
    evaluate,
    explained,
    keys,
    offline,
    rules,
    script,
    simulate,
    table,
    verbs,
)
from acme_client import top as live_view
from acme_client import wrapped as wrapping
from acme_client.api import Acme, AcmeError, Refused
from acme_client.terminal import DryRunOption, OutputFormat, OutputOption, ReasonOption
from acme_client.terminal import client_from_context as _server
from acme_client.terminal import exit_with_usage_error as _usage
from acme_client.terminal import parse_filters as _pairs
from acme_client.terminal import print_message as _say
from acme_client.terminal import print_rows as _print

EPILOG = "Exit codes: 0 done, 1 refused by the server, 2 wrong usage, 3 server not reachable, 4 not allowed."
TEST_POLL_S = 1.0
UNFINISHED_STATES = ("PENDING", "RUNNING", "SUSPENDED")
# What all wrong words are; typer gives out its kinds only
TyperUsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    help="Acme: submit jobs, follow them, look after nodes.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def run() -> None:
    try:
        sys.exit(app(standalone_mode=False))
    except TyperUsageError as error:
        _print_usage_error(error)
        sys.exit(2)
    except AcmeError as error:
        _say(_error_message(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read us has seen enough; nothing may be written any more, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _error_message(error: AcmeError) -> str:
    """The server knows fields; here they are options."""
    said = error.errors.get("team") if isinstance(error, Refused) else None
    return f"{error}. Name one with -A." if "is missing" in str(said) else str(error)


def _print_usage_error(error: Any) -> None:
    """One sentence, and where the words are explained; without any words the help was the answer."""
    if sentence := " ".join(error.format_message().split()):
        where = error.ctx.command_path if error.ctx else "acme"
        _say(f"{sentence.rstrip('.')}; see {where} --help")


@app.command()
def version() -> None:
    """The version of this command."""
    typer.echo(__version__)


@app.command()
def login(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(help="https://acme.example.org; asked for if left out.")] = "",
) -> None:
    """Keep the server's address and your token, which is asked for, or read from standard input."""
    if not url and sys.stdin.isatty():
        url = typer.prompt("Address", default="http://127.0.0.1:8000")
    if not url:
        _usage("give the server's address: acme login https://acme.example.org")
    if not url.startswith(("http://", "https://")):
        _usage(f"{url} is no address; write https://{url}")
    token = typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not token:
        _usage("no token was given")
    transport = ctx.obj if isinstance(ctx.obj, httpx.BaseTransport) else None
    me = Acme(url, token, transport).get("me/")
    place = config.save(config.Config(url=url, token=token))
    typer.echo(f"You are {me['user']}, with scope {me['scope']}; kept in {place}.")


SUBMIT_OPTIONS = ", ".join(sorted({*script.OPTIONS, "--begin", "--export"}))
SUBMIT_SHORT_OPTIONS = ", ".join(sorted(script.SHORT_OPTIONS))
SUBMIT_HELP = f"""Submit a script with its #SBATCH and #ACME lines, or a command with --wrap; '-' reads the script from
standard input. Takes sbatch's options: {SUBMIT_OPTIONS}, and their short forms {SUBMIT_SHORT_OPTIONS}.
Prints 'Submitted batch job ID'; with --parsable only the id."""


@app.command(
    help=SUBMIT_HELP,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def submit(
    ctx: typer.Context, words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] SCRIPT [ARGS]")] = None
) -> None:
    options, wrapped, parsable = _split_client_options([*(words or []), *ctx.args])
    try:
        options, rest = script.split_options(options)
        if (wrapped is None) == (not rest):
            raise script.BadOption("give a script or --wrap COMMAND, one of the two")
        text = f"#!/bin/sh\n{wrapped}\n" if wrapped is not None else _read_script(rest[0])
        body, ignored = script.build_submit_body(options, text, rest[1:], now=datetime.now(UTC), environment=os.environ)
    except script.BadOption as error:
        _usage(str(error))
    if ignored:
        _say(f"Acme has no use for {', '.join(dict.fromkeys(ignored))}, and leaves it out.")
    if "name" not in body and wrapped is None and rest[0] != "-":
        body["name"] = Path(rest[0]).name
    done = _server(ctx).post("jobs/", body)
    typer.echo(done["id"] if parsable else f"Submitted batch job {done['id']}")


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec_command(command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]")]) -> None:
    """Inside a job: run COMMAND so that it can be asked where its ranks stand before a hang is ended."""
    raise typer.Exit(wrapping.run_wrapped_command(command))


def _split_client_options(words: list[str]) -> tuple[list[str], str | None, bool]:
    """--wrap and --parsable are ours to act on, not the job's."""
    kept: list[str] = []
    wrapped, parsable = None, False
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") and (not kept or not _takes_value(kept[-1])):
            return [*kept, word, *left], wrapped, parsable
        if word == "--parsable":
            parsable = True
        elif word == "--wrap" and left:
            wrapped = left.pop(0)
        elif word.startswith("--wrap="):
            wrapped = word.removeprefix("--wrap=")
        else:
            kept.append(word)
    return kept, wrapped, parsable


def _takes_value(word: str) -> bool:
    """Whether the next word is this option's value."""
    if not word.startswith("-") or "=" in word:
        return False
    if word.startswith("--"):
        return word not in script.SWITCHES
    return len(word) == 2 and script.SHORT_OPTIONS.get(word) not in script.SWITCHES


def _read_script(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except OSError as error:
        raise script.BadOption(f"{name} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise script.BadOption(f"{name} is no text") from None


@app.command()
def jobs(
    ctx: typer.Context,
    user: Annotated[str, typer.Option("--user", "-u")] = "",
    states: Annotated[str, typer.Option("--states", "-t", help="PD,R or PENDING,RUNNING; all for every state.")] = "",
    account: Annotated[str, typer.Option("--account", "-A", help="The team.")] = "",
    name: Annotated[str, typer.Option("--name", "-n")] = "",
    cluster: Annotated[str, typer.Option("--clusters", "-M")] = "",
    sort: Annotated[str, typer.Option("--sort", "-S", help="id, -id, priority, submitted_at …")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1)] = 1000,
    labels: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE; several must all hold.")
    ] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", "-f", help="Any filter of the API: kind=pretrain, nodes__gte=8.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The queue, as squeue shows it."""
    query: dict[str, Any] = {"user": user, "team": account, "name": name, "cluster": cluster, "ordering": sort}
    if states.lower() != "all":
        query["state__in"] = (
            ",".join(_parse_state(word) for word in states.split(",")) if states else ",".join(UNFINISHED_STATES)
        )
    query |= {f"labels__{name}": value for name, value in _pairs(labels or []).items()} | _pairs(filters or [])
    rows = list(_server(ctx).pages("jobs/", {key: value for key, value in query.items() if value}, limit))
    _print(table.job_columns(datetime.now(UTC), output in (OutputFormat.WIDE, OutputFormat.CSV)), rows, output)


def _parse_state(word: str) -> str:
    upper = word.strip().upper()
    return table.STATE_CODES.get(upper, upper)


@app.command()
def job(ctx: typer.Context, id: str, output: OutputOption = OutputFormat.TABLE) -> None:
    """Everything about one job."""
    acme, here = _server(ctx), f"jobs/{quote(id, safe='')}/"
    row = acme.get(here)
    if output == OutputFormat.TABLE:
        typer.echo(table.format_details(row | (_fetch_progress(acme, here) if row["started_at"] else {})))
    else:
        _print(table.job_columns(datetime.now(UTC), wide=True), [row], output, alone=True)


def _fetch_progress(acme: Acme, here: str) -> dict[str, str]:
    """How far it is, as far as anybody has told."""
    told = acme.get(f"{here}progress/", {"points": 2})
    return table.progress_fields(told, list(acme.pages(f"{here}checkpoints/", {"ordering": "-saved_at"}, 1)))


@app.command()
def logs(
    ctx: typer.Context,
    id: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, max=100_000, help="Only the last so many.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Its number; else the newest.")] = None,
) -> None:
    """What a job printed. On a terminal without its control sequences; into a file or pipe as it is."""
    acme = _server(ctx)
    query: dict[str, Any] = {"attempt": attempt} if attempt else {}
    at = None
    if lines is not None or not follow:
        try:
            answer = acme.raw(
                f"jobs/{quote(id, safe='')}/log/", query | ({"tail": f"{lines}lines"} if lines is not None else {})
            )
        except Refused as refused:
            if not follow or refused.status != 404:
                raise
        else:
            _print_log(answer.content)
            at = int(answer.headers["X-Log-Offset"]) + len(answer.content)
            # The newest may be another one a moment later
            query["attempt"] = answer.headers["X-Log-Attempt"]
    if follow:
        for event in acme.events(f"jobs/{quote(id, safe='')}/log/follow/", query, at):
            if not event.name:
                typer.echo(event.data, nl=False)
            elif event.name == "end":
                _say(json.loads(event.data)["why"])


def _print_log(raw: bytes) -> None:
    if sys.stdout.isatty():
        typer.echo(table.clean_log_text(raw.decode("utf-8", errors="replace")), nl=False)
    else:
        typer.echo(raw, nl=False)


@app.command()
def why(ctx: typer.Context, id: str, output: OutputOption = OutputFormat.TABLE) -> None:
    """Why a job waits, what would start it now, and when it will start."""
    said = _server(ctx).get(f"jobs/{quote(id, safe='')}/explain/")
    typer.echo(table.format_json(said) if output == OutputFormat.JSON else explained.format_explanation(said))


@app.command()
def top(
    ctx: typer.Context,
    user: Annotated[str, typer.Option("--user", "-u")] = "",
    account: Annotated[str, typer.Option("--account", "-A", help="The team.")] = "",
    cluster: Annotated[str, typer.Option("--clusters", "-M")] = "",
    every: Annotated[float, typer.Option("--every", "-d", min=1, max=3600, help="Seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once; so it is where there is no terminal.")] = False,
) -> None:
    """The clusters live: GPUs, what runs, what waits and why."""
    query = {name: value for name, value in (("user", user), ("team", account), ("cluster", cluster)) if value}
    looking, console = live_view.LiveStatusReader(acme=_server(ctx), query=query), Console(highlight=False)
    if once or not console.is_terminal:
        console.print(live_view.render_snapshot(looking.look(console.height), console.height))
        return
    with keys.cbreak_mode(), suppress(KeyboardInterrupt):
        live_view.show_live_view(looking, every, console, lambda seconds: keys.wait_for_key("qQ", seconds))


class ShellChoice(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[ShellChoice, typer.Argument(help="For which shell.")] = ShellChoice.BASH) -> None:
    """What makes the shell complete our words; for bash put it into ~/.local/share/bash-completion/completions/acme."""
    typer.echo(get_completion_script(prog_name="acme", complete_var="_ACME_COMPLETE", shell=shell.value))


@app.command()
def nodes(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Option("--clusters", "-M")] = "",
    each: Annotated[bool, typer.Option("--node", "-N", help="A line for each node.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The nodes, as sinfo shows them."""
    rows = list(_server(ctx).pages("nodes/", {"cluster": cluster} if cluster else {}, 100_000))
    if each or output != OutputFormat.TABLE:
        _print(table.NODE_COLUMNS, rows, output)
    else:
        _print(table.GROUP_COLUMNS, table.group_nodes(rows), output)


@app.command()
def diagnose(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Logs, packed or not; - is standard input.")],
    exit_code: Annotated[int | None, typer.Option("--exit-code", help="Exit code of the process, where known.")] = None,
    signal: Annotated[str | None, typer.Option("--signal", help="Signal that ended it: a number or a name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per file and line, in order.")] = False,
) -> None:
    """Why a job failed, from its log alone. Works offline: nothing is sent anywhere."""
    try:
        unread = offline.diagnose_files(files, exit_code, signal, as_json)
    except ValueError as error:
        _usage(str(error))
    except ImportError as error:
        _usage(f"the engine's scanner is not installed here: {error}")
    if unread:
        _usage(f"{unread} of {len(files)} files could not be read")


NodeArgument = Annotated[str, typer.Argument(help="CLUSTER/NODE, or NODE where only one cluster has it.")]


class DrainChoice(StrEnum):
    """What becomes of the jobs that run there."""

    FINISH = "finish"
    CHECKPOINT = "checkpoint"
    NOW = "now"


@app.command()
def drain(
    ctx: typer.Context,
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", help="Operators read it in the list of nodes.")],
    mode: Annotated[
        DrainChoice,
        typer.Option("--mode", help="Running jobs finish, or are requeued after their next checkpoint, or now."),
    ] = DrainChoice.FINISH,
    dry_run: DryRunOption = False,
) -> None:
    """Let a node take no new jobs; running ones finish, or are sent back to the queue."""
    acme = _server(ctx)
    said = acme.post(
        f"nodes/{_resolve_node_id(acme, node)}/drain/", {"reason": reason, "mode": mode.value, "dry_run": dry_run}
    )
    typer.echo(f"{said['node']}: {'would be drained' if dry_run else 'drained'}. {said['effect']}")
    for one in said["jobs"]:
        risk = f", {one['gpu_hours_at_risk']:.1f} GPU-hours since it last saved its work"
        typer.echo(f"  {one['id']} of {one['user']} ({one['team']}), {one['gpus']} GPUs{risk}")


@app.command()
def resume(ctx: typer.Context, node: NodeArgument, reason: ReasonOption = "") -> None:
    """Let a node take work again."""
    acme = _server(ctx)
    said = acme.post(f"nodes/{_resolve_node_id(acme, node)}/resume/", {"reason": reason} if reason else {})
    typer.echo(f"{said['id']}: resumed.")


@app.command()
def test(
    ctx: typer.Context,
    node: NodeArgument,
    reason: ReasonOption = "",
    wait: Annotated[bool, typer.Option(help="Wait until it has come out; exit code 1 if the node failed.")] = True,
) -> None:
    """Test a node that is drained and empty."""
    acme = _server(ctx)
    path = f"nodes/{_resolve_node_id(acme, node)}/test/"
    said = acme.post(path, {"reason": reason} if reason else {})
    while wait and not said["done"]:
        time.sleep(TEST_POLL_S)
        said = acme.get(path)
    typer.echo(f"{said['node']}: {said['outcome']}" + (f" Output: {said['log']}" if said["log"] else ""))
    if said["passed"] is False:
        raise typer.Exit(1)


def _resolve_node_id(acme: Acme, name: str) -> str:
    if "/" in name:
        return name.strip("/")
    found = [row["id"] for row in acme.pages("nodes/", {"name": name, "fields": "id"}, 10)]
    if len(found) != 1:
        _usage(f"{name} is in {len(found)} clusters; write CLUSTER/NODE" if found else f"there is no node {name}")
    return str(found[0])


verbs.register(app)
simulate.register(app)
evaluate.register(app)
rules.register(app)
clusters.register(app)


if __name__ == "__main__":
    run()
