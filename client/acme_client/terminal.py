"""What the commands share: their common options, one sentence for errors, and rows in the form that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from rich.progress import Progress

from acme_client import table
from acme_client.api import Acme

error_console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


class OutputFormat(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="How it is printed.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Kept in the record, with your name.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(help="Ids of jobs or arrays, or ranges of tasks: ID_[0-7].")]
FilterOption = Annotated[
    list[str] | None, typer.Option("--filter", "-f", help="Instead of ids: state=PENDING, user=ada, name__contains=x.")
]


def print_message(sentence: str) -> None:
    error_console.print(f"acme: {table.clean_text(sentence)}")


def exit_with_usage_error(sentence: str) -> NoReturn:
    print_message(sentence)
    raise typer.Exit(2)


def client_from_context(ctx: typer.Context) -> Acme:
    """The context carries another way to the server in tests."""
    return Acme.configured(ctx.obj if isinstance(ctx.obj, httpx.BaseTransport) else None)


def print_rows(
    columns: Sequence[table.TableColumn], rows: Sequence[table.TableRow], output: OutputFormat, alone: bool = False
) -> None:
    if output == OutputFormat.JSON:
        typer.echo(table.format_json(rows[0] if alone else rows))
    elif output == OutputFormat.CSV:
        typer.echo(table.format_csv(columns, rows))
    else:
        typer.echo(table.format_table(columns, rows))


def parse_filters(filters: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in filters:
        name, sign, value = one.partition("=")
        if not sign:
            exit_with_usage_error(f"{one} is no filter; write NAME=VALUE")
        found.setdefault(name, []).append(value)
    return found


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, float], None]]:
    """On a terminal only, and on standard error; short work shows none."""
    with Progress(
        *Progress.get_default_columns(), console=error_console, transient=True, disable=not error_console.is_terminal
    ) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)
