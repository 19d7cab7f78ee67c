"""The command `acme`: the counterparts of sbatch, squeue, scancel, scontrol and sinfo, over the REST API.

Exit codes: 0 success · 1 refused by the server · 2 usage error · 3 server not reachable · 4 not allowed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
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
    exec_wrapper,
    explanation,
    job_details,
    keyboard,
    rules,
    script,
    simulate,
    submit_help,
    table,
    verbs,
    watch,
)
from acme_client import top as live_view
from acme_client.api import Acme, AcmeError, Refused
from acme_client.terminal import (
    DryRunOption,
    IdArgument,
    OutputFormat,
    OutputOption,
    ReasonOption,
    client_from_context,
    exit_with_usage_error,
    parse_filters,
    print_message,
    print_rows,
)

EPILOG = "Exit codes: 0 success, 1 refused by the server, 2 usage error, 3 server not reachable, 4 not allowed."
TEST_POLL_S = 1.0
UNFINISHED_STATES = ("PENDING", "RUNNING", "SUSPENDED")
# The base class of all usage errors; typer exports only subclasses
TyperUsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    help="Acme: submit jobs, follow them, and operate nodes.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def run(transport: httpx.BaseTransport | None = None) -> None:
    """Run the command in `sys.argv`, and exit. `transport` is for tests."""
    try:
        sys.exit(app(standalone_mode=False, obj=transport))
    except TyperUsageError as error:
        _print_usage_error(error)
        sys.exit(2)
    except AcmeError as error:
        print_message(_error_message(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader closed the pipe; write nothing more, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _error_message(error: AcmeError) -> str:
    """Return the message; fields of the server are options here."""
    team_error = error.errors.get("team") if isinstance(error, Refused) else None
    return f"{error}. Set it with -A." if "is missing" in str(team_error) else str(error)


def _print_usage_error(error: Any) -> None:
    """Print one sentence and where to find help; without a command the help was printed already."""
    if sentence := " ".join(error.format_message().split()):
        where = error.ctx.command_path if error.ctx else "acme"
        print_message(f"{sentence.rstrip('.')}. See {where} --help.")


@app.command()
def version() -> None:
    """Print the version of this command."""
    typer.echo(__version__)


@app.command()
def login(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(help="https://acme.example.org; prompted for if missing.")] = "",
) -> None:
    """Save the server's URL and your token. The token is prompted for, or read from standard input."""
    if not url and sys.stdin.isatty():
        url = typer.prompt("URL", default="http://127.0.0.1:8000")
    if not url:
        exit_with_usage_error("The server's URL is missing: acme login https://acme.example.org")
    if not url.startswith(("http://", "https://")):
        exit_with_usage_error(f"{url} is not a URL. Write https://{url}")
    token = typer.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not token:
        exit_with_usage_error("The token is missing.")
    transport = ctx.obj if isinstance(ctx.obj, httpx.BaseTransport) else None
    account = Acme(url, token, transport).get("me/")
    path = config.save(config.Config(url=url, token=token))
    typer.echo(f"Logged in as {account['user']} with scope {account['scope']}. Saved in {path}.")


@app.command(
    cls=submit_help.SubmitCommand,
    help="Submit a script with #SBATCH and #ACME lines, or a command with --wrap.",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def submit(
    ctx: typer.Context, words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] SCRIPT [ARGS]")] = None
) -> None:
    client_options = _split_client_options([*(words or []), *ctx.args])
    try:
        body, ignored = _submit_body(client_options)
    except script.BadOption as error:
        exit_with_usage_error(str(error))
    if ignored:
        print_message(f"Options without effect in Acme were ignored: {', '.join(dict.fromkeys(ignored))}.")
    acme = client_from_context(ctx)
    if client_options.dry_run:
        typer.echo(explanation.format_preview(acme.post("jobs/preview/", body), datetime.now(UTC)))
        return
    done = acme.post("jobs/", body)
    if client_options.parsable:
        typer.echo(done["id"])
        return
    # Standard output is that of sbatch, which scripts parse
    typer.echo(f"Submitted batch job {done['id']}")
    typer.echo(_submitted_url(acme, done), err=True)
    if deadline := done.get("deadline"):
        print_message("\n".join(explanation.deadline_lines(deadline, datetime.now(UTC))))


def _submit_body(given: ClientOptions) -> tuple[dict[str, Any], list[str]]:
    """Return the body of the submission, and the ignored options."""
    options, positional = script.split_options(given.options)
    if (given.wrapped is None) == (not positional):
        raise script.BadOption("Give either a script or --wrap COMMAND.")
    now = datetime.now(UTC)
    if given.wrapped is not None:
        return script.build_wrapped_body(options, given.wrapped, now=now, environment=os.environ)
    text = _read_script(positional[0])
    body, ignored = script.build_submit_body(options, text, positional[1:], now=now, environment=os.environ)
    if positional[0] != "-":
        body.setdefault("name", Path(positional[0]).name)
    return body, ignored


def _submitted_url(acme: Acme, done: table.TableRow) -> str:
    is_array = done["jobs"] != [done["id"]]
    return f"{acme.url}/jobs/?array={done['id']}" if is_array else f"{acme.url}/jobs/{done['id']}/"


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def exec_command(command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]")]) -> None:
    """Run COMMAND inside a job so that Acme can request the stacks of its ranks before it ends a hang."""
    raise typer.Exit(exec_wrapper.run_wrapped_command(command))


@dataclass(kw_only=True)
class ClientOptions:
    """The options of `acme submit` that the client handles, and the remaining words."""

    options: list[str] = field(default_factory=list)
    wrapped: str | None = None
    parsable: bool = False
    dry_run: bool = False


def _split_client_options(words: list[str]) -> ClientOptions:
    given = ClientOptions()
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("-") and (not given.options or not _takes_value(given.options[-1])):
            given.options += [word, *remaining]
            return given
        if word == "--parsable":
            given.parsable = True
        elif word in ("--dry-run", "--test-only"):
            given.dry_run = True
        elif word == "--wrap" and remaining:
            given.wrapped = remaining.pop(0)
        elif word.startswith("--wrap="):
            given.wrapped = word.removeprefix("--wrap=")
        else:
            given.options.append(word)
    return given


def _takes_value(word: str) -> bool:
    """Whether the next word is the value of this option."""
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
        raise script.BadOption(f"{name} is not a text file") from None


@app.command()
def jobs(
    ctx: typer.Context,
    user: Annotated[str, typer.Option("--user", "-u", help="Only jobs of this user.")] = "",
    states: Annotated[str, typer.Option("--states", "-t", help="PD,R or PENDING,RUNNING; all for every state.")] = "",
    account: Annotated[str, typer.Option("--account", "-A", help="Only jobs of this team.")] = "",
    name: Annotated[str, typer.Option("--name", "-n", help="Only jobs with this name.")] = "",
    cluster: Annotated[str, typer.Option("--clusters", "-M", help="Only jobs on this cluster.")] = "",
    sort: Annotated[str, typer.Option("--sort", "-S", help="Sort by id, -id, priority, submitted_at …")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs.")] = 1000,
    labels: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE; repeat to require several.")
    ] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", "-f", help="Any filter of the API: kind=pretrain, nodes__gte=8.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the queue, like squeue."""
    query: dict[str, Any] = {"user": user, "team": account, "name": name, "cluster": cluster, "ordering": sort}
    if states.lower() != "all":
        query["state__in"] = (
            ",".join(_parse_state(word) for word in states.split(",")) if states else ",".join(UNFINISHED_STATES)
        )
    query |= {f"labels__{name}": value for name, value in parse_filters(labels or []).items()} | parse_filters(
        filters or []
    )
    rows = list(client_from_context(ctx).pages("jobs/", {key: value for key, value in query.items() if value}, limit))
    print_rows(table.job_columns(datetime.now(UTC), output in (OutputFormat.WIDE, OutputFormat.CSV)), rows, output)


def _parse_state(word: str) -> str:
    upper = word.strip().upper()
    return table.STATE_CODES.get(upper, upper)


@app.command()
def job(
    ctx: typer.Context,
    id: IdArgument,
    output: OutputOption = OutputFormat.TABLE,
    as_json: Annotated[
        bool, typer.Option("--json", help="All fields of the API, for programs; same as -o json.")
    ] = False,
) -> None:
    """Show a job: its request, times, cause of failure, progress and attempts."""
    acme, path = client_from_context(ctx), f"jobs/{quote(id, safe='')}/"
    output = OutputFormat.JSON if as_json else output
    if output == OutputFormat.TABLE:
        typer.echo(job_details.format_job(job_details.fetch_job_details(acme, path), datetime.now(UTC)))
    else:
        columns = table.job_columns(datetime.now(UTC), wide=True)
        print_rows(columns, [acme.get(path)], output, alone=True)


@app.command()
def logs(
    ctx: typer.Context,
    id: IdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the attempt ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, max=100_000, help="Only the last N lines.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Number of the attempt; default: the newest.")
    ] = None,
) -> None:
    """Print the log of a job. On a terminal without control sequences; into a file or pipe unchanged."""
    acme = client_from_context(ctx)
    query: dict[str, Any] = {"attempt": attempt} if attempt else {}
    offset = None
    if lines is not None or not follow:
        try:
            response = acme.raw(
                f"jobs/{quote(id, safe='')}/log/", query | ({"tail": f"{lines}lines"} if lines is not None else {})
            )
        except Refused as refused:
            if not follow or refused.status != 404:
                raise
        else:
            _print_log(response.content)
            offset = int(response.headers["X-Log-Offset"]) + len(response.content)
            # A newer attempt may start meanwhile; follow the one that was printed
            query["attempt"] = response.headers["X-Log-Attempt"]
    if follow:
        for event in acme.events(f"jobs/{quote(id, safe='')}/log/follow/", query, offset):
            if not event.name:
                typer.echo(event.data, nl=False)
            elif event.name == "end":
                print_message(json.loads(event.data)["why"])


def _print_log(raw: bytes) -> None:
    if sys.stdout.isatty():
        typer.echo(table.clean_log_text(raw.decode("utf-8", errors="replace")), nl=False)
    else:
        typer.echo(raw, nl=False)


@app.command()
def why(ctx: typer.Context, id: IdArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show why a job waits, what would start it now, and when it is expected to start."""
    response = client_from_context(ctx).get(f"jobs/{quote(id, safe='')}/explain/")
    typer.echo(table.format_json(response) if output == OutputFormat.JSON else explanation.format_explanation(response))


@app.command()
def top(
    ctx: typer.Context,
    user: Annotated[str, typer.Option("--user", "-u", help="Only jobs of this user.")] = "",
    account: Annotated[str, typer.Option("--account", "-A", help="Only jobs of this team.")] = "",
    cluster: Annotated[str, typer.Option("--clusters", "-M", help="Only this cluster.")] = "",
    every: Annotated[float, typer.Option("--every", "-d", min=1, max=3600, help="Refresh interval in seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = False,
) -> None:
    """Show the clusters live: GPUs, running jobs, pending jobs and why they wait."""
    query = {name: value for name, value in (("user", user), ("team", account), ("cluster", cluster)) if value}
    reader, console = live_view.LiveStatusReader(acme=client_from_context(ctx), query=query), Console(highlight=False)
    if once or not console.is_terminal:
        console.print(live_view.render_snapshot(reader.look(console.height), console.height))
        return
    with keyboard.cbreak_mode(), suppress(KeyboardInterrupt):
        live_view.show_live_view(reader, every, console, lambda seconds: keyboard.wait_for_key("qQ", seconds))


class ShellChoice(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[ShellChoice, typer.Argument(help="The shell.")] = ShellChoice.BASH) -> None:
    """Print the completion script. For bash: ~/.local/share/bash-completion/completions/acme."""
    typer.echo(get_completion_script(prog_name="acme", complete_var="_ACME_COMPLETE", shell=shell.value))


@app.command()
def nodes(
    ctx: typer.Context,
    cluster: Annotated[str, typer.Option("--clusters", "-M", help="Only this cluster.")] = "",
    each: Annotated[bool, typer.Option("--node", "-N", help="One line per node.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the nodes, like sinfo."""
    rows = list(client_from_context(ctx).pages("nodes/", {"cluster": cluster} if cluster else {}, 100_000))
    if each or output != OutputFormat.TABLE:
        print_rows(table.NODE_COLUMNS, rows, output)
    else:
        print_rows(table.GROUP_COLUMNS, table.group_nodes(rows), output)


@app.command()
def diagnose(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Log files, also compressed; - is standard input.")
    ],
    exit_code: Annotated[int | None, typer.Option("--exit-code", help="Exit code of the process, if known.")] = None,
    signal: Annotated[str | None, typer.Option("--signal", help="Signal that ended it: a number or a name.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per file, one per line, in order.")
    ] = False,
) -> None:
    """Diagnose why a job failed, from its log alone. Works offline: nothing is sent."""
    try:
        unread = _diagnose_files(files, exit_code, signal, as_json)
    except ValueError as error:
        exit_with_usage_error(str(error))
    except ImportError as error:
        exit_with_usage_error(f"The diagnosis engine's scanner is not installed: {error}")
    if unread:
        exit_with_usage_error(f"{unread} of {len(files)} files could not be read.")


def _diagnose_files(files: list[str], exit_code: int | None, signal: str | None, as_json: bool) -> int:
    """Print each diagnosis as soon as it is known; return how many files could not be read.

    `acme_client/diagnosis` is the directory `failures/diagnosis`: a link in the repository, a copy in the wheel.
    """
    from acme_client.diagnosis import commandline  # compiling the patterns takes a second, so only this command does it
    from acme_client.diagnosis.values import ExitStatus

    ending = ExitStatus(exit_code=exit_code, signal=commandline.signal_number(signal) if signal else None)
    unread = 0
    for text, read in commandline.diagnose_files(files, ending, as_json):
        typer.echo(text)
        unread += not read
    return unread


NodeArgument = Annotated[str, typer.Argument(help="CLUSTER/NODE, or NODE if it is unique.")]


class DrainChoice(StrEnum):
    """What happens to the jobs that run on the node."""

    FINISH = "finish"
    CHECKPOINT = "checkpoint"
    NOW = "now"


@app.command()
def drain(
    ctx: typer.Context,
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", help="Shown in the list of nodes.")],
    mode: Annotated[
        DrainChoice,
        typer.Option("--mode", help="Let running jobs finish, or requeue them after their next checkpoint, or now."),
    ] = DrainChoice.FINISH,
    dry_run: DryRunOption = False,
) -> None:
    """Stop new jobs from starting on a node. Running jobs finish or are requeued."""
    acme = client_from_context(ctx)
    response = acme.post(
        f"nodes/{_resolve_node_id(acme, node)}/drain/", {"reason": reason, "mode": mode.value, "dry_run": dry_run}
    )
    typer.echo(f"{response['node']}: {'would be drained' if dry_run else 'drained'}. {response['effect']}")
    for job_row in response["jobs"]:
        risk = f", {job_row['gpu_hours_at_risk']:.1f} GPU-hours since it last saved its work"
        typer.echo(f"  {job_row['id']} of {job_row['user']} ({job_row['team']}), {job_row['gpus']} GPUs{risk}")


@app.command()
def resume(ctx: typer.Context, node: NodeArgument, reason: ReasonOption = "") -> None:
    """Return a drained node to service."""
    acme = client_from_context(ctx)
    response = acme.post(f"nodes/{_resolve_node_id(acme, node)}/resume/", {"reason": reason} if reason else {})
    typer.echo(f"{response['id']}: resumed.")


@app.command()
def test(
    ctx: typer.Context,
    node: NodeArgument,
    reason: ReasonOption = "",
    wait: Annotated[bool, typer.Option(help="Wait for the result; exit code 1 if the node failed.")] = True,
) -> None:
    """Test a drained node without jobs."""
    acme = client_from_context(ctx)
    path = f"nodes/{_resolve_node_id(acme, node)}/test/"
    response = acme.post(path, {"reason": reason} if reason else {})
    while wait and not response["finished"]:
        time.sleep(TEST_POLL_S)
        response = acme.get(path)
    typer.echo(
        f"{response['node']}: {response['outcome']}" + (f" Output: {response['log']}" if response["log"] else "")
    )
    if response["passed"] is False:
        raise typer.Exit(1)


def _resolve_node_id(acme: Acme, name: str) -> str:
    """Return CLUSTER/NODE for a name that is unique; otherwise exit with an error."""
    if "/" in name:
        return name.strip("/")
    ids = [row["id"] for row in acme.pages("nodes/", {"name": name, "fields": "id"}, 10)]
    if len(ids) != 1:
        exit_with_usage_error(
            f"{name} is in {len(ids)} clusters. Write CLUSTER/NODE." if ids else f"Node {name} does not exist."
        )
    return str(ids[0])


# Titles of the command list, in this order; commands without one are listed first
COMMAND_GROUPS = {
    "Jobs": ("submit", "jobs", "job", "why", "watch", "logs", "diagnose", "exec"),
    "Change jobs": (*verbs.VERB_HELP, "priority"),
    "Nodes and clusters": ("top", "nodes", "drain", "resume", "test", "cluster"),
    "Evaluate and simulate": ("evaluate", "suite", "rules", "simulate"),
}


def _group_commands() -> None:
    """Sort the commands by group, so that `acme --help` shows related commands together."""
    names = [name for group in COMMAND_GROUPS.values() for name in group]
    panels = {name: title for title, group in COMMAND_GROUPS.items() for name in group}

    def name_of(command: Any) -> str:
        return command.name or command.callback.__name__

    commands: list[Any] = [*app.registered_commands, *app.registered_groups]
    for command in commands:
        command.rich_help_panel = panels.get(name_of(command))
    app.registered_commands.sort(key=lambda command: names.index(name_of(command)) if name_of(command) in names else -1)


watch.register(app)
verbs.register(app)
simulate.register(app)
evaluate.register(app)
rules.register(app)
clusters.register(app)
_group_commands()


if __name__ == "__main__":
    run()
