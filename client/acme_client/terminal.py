"""Shared by the commands: common options, error output, and rows in the requested format."""

from __future__ import annotations

import math
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


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Stored in the event, with your name.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, such as 01k3v9q2m7t.")]
IdsArgument = Annotated[
    list[str] | None, typer.Argument(help="Ids of jobs or arrays, or ranges of tasks such as ID_[0-7].")
]
FilterOption = Annotated[
    list[str] | None, typer.Option("--filter", "-f", help="Instead of ids: state=PENDING, user=ada, name__contains=x.")
]


def number(value: Any) -> float:
    """Read a number of an option or argument. JSON has neither NaN nor infinity."""
    try:
        read = float(value)
    except ValueError:
        read = math.nan
    if not math.isfinite(read):
        raise typer.BadParameter(f"{value} is not a number.")
    return read


def print_message(sentence: str) -> None:
    error_console.print(f"acme: {table.clean_text(sentence)}")


def exit_with_usage_error(sentence: str) -> NoReturn:
    print_message(sentence)
    raise typer.Exit(2)


def client_from_context(ctx: typer.Context) -> Acme:
    """Return the client. In tests, the context carries another transport."""
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
    filters_by_name: dict[str, Any] = {}
    for text in filters:
        name, sign, value = text.partition("=")
        if not sign:
            exit_with_usage_error(f"{text} is not a filter. Write NAME=VALUE.")
        filters_by_name.setdefault(name, []).append(value)
    return filters_by_name


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float, float], None]]:
    """Show a progress bar on standard error, only on a terminal."""
    with Progress(
        *Progress.get_default_columns(), console=error_console, transient=True, disable=not error_console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
