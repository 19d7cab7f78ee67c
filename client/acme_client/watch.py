"""`acme watch`: the state and the log of a job, until it has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import typer

from acme_client import job_details, table
from acme_client.api import Acme, Refused
from acme_client.terminal import IdArgument, client_from_context

POLL_S = 2.0
FINAL_STATES = frozenset(table.STATE_CODES.values()) - {"PENDING", "RUNNING", "SUSPENDED"}


def state_line(job: table.TableRow, now: datetime) -> str:
    """`12:00:00 PENDING (Resources) Waits for a free node.`"""
    reason = f" ({job['reason']})" if job["reason"] not in ("", "None") and job["state"] == "PENDING" else ""
    place = f" on {job['nodelist']}" if job["state"] == "RUNNING" and job["nodelist"] else ""
    why = f" {job['why']}" if job["why"] else ""
    return table.clean_text(f"{now:%H:%M:%S} {job['title']}{reason}{place}{why}")


@dataclass(kw_only=True)
class JobWatcher:
    """Reports each change of a job's state, and the log of each of its attempts."""

    acme: Acme
    path: str
    show_state: Callable[[table.TableRow], None]
    show_log: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    last_attempt: int = 0  # number of the last attempt whose log was reported

    def follow(self) -> table.TableRow:
        """Return the job once it has ended."""
        shown: Any = None
        while True:
            job: table.TableRow = self.acme.get(self.path)
            if (state := (job["title"], job["reason"], job["why"])) != shown:
                self.show_state(job)
                shown = state
            has_ended = job["state"] in FINAL_STATES
            # An attempt may have started and ended between two looks
            has_log = (has_ended or job["state"] == "RUNNING") and self._follow_log()
            if has_ended:
                return job
            if not has_log:
                self.sleep(POLL_S)

    def _follow_log(self) -> bool:
        """Report the log of the next attempt until the attempt has ended. Return whether there is a log yet."""
        query = {"attempt": self.last_attempt + 1} if self.last_attempt else {}
        try:
            for event in self.acme.events(f"{self.path}log/follow/", query):
                if event.name == "start":
                    self.last_attempt = json.loads(event.data)["attempt"]
                elif not event.name:
                    self.show_log(event.data)
        except Refused as refused:
            if refused.status != 404:
                raise
            return False
        return True


def watch(ctx: typer.Context, id: IdArgument) -> None:
    """Follow a job until it ends: state changes on standard error, its log on standard output.

    Exits with 0 if the job completed, otherwise with 1. Ctrl-C stops watching; the job continues.
    """
    acme, path = client_from_context(ctx), f"jobs/{quote(id, safe='')}/"

    def show_state(job: table.TableRow) -> None:
        typer.echo(state_line(job, datetime.now(UTC)), err=True)

    try:
        watcher = JobWatcher(
            acme=acme, path=path, show_state=show_state, show_log=lambda text: typer.echo(text, nl=False)
        )
        job = watcher.follow()
    except KeyboardInterrupt:
        typer.echo(f"\nStopped watching. {id} continues.", err=True)
        raise typer.Exit(130) from None
    if job["state"] != "COMPLETED":
        details = job_details.fetch_job_details(acme, path)
        typer.echo(f"\n{job_details.format_job(details, datetime.now(UTC))}", err=True)
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(watch)
