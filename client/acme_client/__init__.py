"""Python API of Acme: submit jobs and wait for them.

import acme_client
id = acme_client.submit("python train.py", nodes=2, gpus_per_node=8, time_limit="2-00:00:00")
job = acme_client.wait(id)
assert job["state"] == "COMPLETED"

Inside a job, `Run` reports progress: see acme_client.run.
"""

from __future__ import annotations

import time
from typing import Any

from acme_client.api import Acme, AcmeError, NotAllowed, Refused, Unreachable
from acme_client.run import Run

__all__ = ["Acme", "AcmeError", "NotAllowed", "Refused", "Run", "Unreachable", "submit", "wait"]

__version__ = "0.1.0"

UNFINISHED_STATES = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def submit(command: str, *, acme: Acme | None = None, **fields: Any) -> str:
    """Submit a job; return its id, for an array the id of the array. The fields are those of the REST API."""
    submitted: dict[str, Any] = (acme or Acme.configured()).post("jobs/", {"command": command, **fields})
    return str(submitted["id"])


def wait(id: str, *, acme: Acme | None = None, timeout_s: float | None = None, every_s: float = 5.0) -> dict[str, Any]:
    """Return the job once it has ended. Unavailable servers are polled again; TimeoutError after `timeout_s`."""
    acme = acme or Acme.configured()
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            job: dict[str, Any] | None = acme.get(f"jobs/{id}/")
        except Unreachable:
            job = None
        if job is not None and job["state"] not in UNFINISHED_STATES:
            return job
        if ends_at is not None and time.monotonic() + every_s > ends_at:
            raise TimeoutError(f"{id} has not ended after {timeout_s:g} s.")
        time.sleep(every_s)
