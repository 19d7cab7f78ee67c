"""The users of an instance during a storm: API clients, training programs that report progress, and an operator.

The operator decides on proposed recoveries, resumes nodes, releases held jobs, and records the outcome of jobs with
unknown outcome. For the last the operator reads the clusters' files of effects, as one would read a job's output.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from random import Random

import httpx
import psycopg
from django.utils.crypto import salted_hmac

from acmeweb.common.env import read_file
from tests.acceptance.instance import Instance
from tests.chaos.effects import Effect
from tests.chaos.record import Record

PROPOSED = "SELECT id, incident_id FROM failures_decision WHERE state = 'proposed'"
CORDONED = """
SELECT c.name, n.name FROM jobs_node n JOIN jobs_cluster c ON c.id = n.cluster_id
WHERE n.drain_requested
AND NOT EXISTS (SELECT 1 FROM jobs_clustercommand d WHERE d.node_id = n.id AND d.done_at IS NULL)
AND NOT EXISTS (SELECT 1 FROM failures_decision WHERE state IN ('approved', 'acting'))
"""
HELD = """
SELECT public_id FROM jobs_job
WHERE state = 'PENDING' AND hold <> '' AND recover_by IS NULL AND NOT 'OUTCOME_UNKNOWN' = ANY(flags)
"""
OUTCOME_UNKNOWN = "SELECT public_id FROM jobs_job WHERE ended_at IS NULL AND 'OUTCOME_UNKNOWN' = ANY(flags)"
TRAINING = """
SELECT a.key FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
WHERE a.ended_at IS NULL AND a.confirmed_at IS NOT NULL AND j.name LIKE 'storm-%-train' AND j.foreign_id = ''
"""


class Caller:
    """An API client with an administrator's token."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.token = instance.command("token", "admin", "--scope", "admin")

    def ask(self, path: str, body: object, *, key: str, over: threading.Event) -> tuple[float, httpx.Response] | None:
        """Repeat a request with the same Idempotency-Key until it gets a response.

        Returns the time of sending and the response, or None if the storm ends first.
        """
        while not over.is_set():
            sent_at = time.monotonic()
            response = self.post(path, body, key=key)
            if response is not None and response.status_code < 500 and response.status_code not in (409, 429):
                return sent_at, response
            over.wait(0.3)
        return None

    def post(self, path: str, body: object, *, key: str = "", token: str = "") -> httpx.Response | None:
        """Send a request once; None if the server does not respond."""
        headers = {"Authorization": f"Bearer {token or self.token}"} | ({"Idempotency-Key": key} if key else {})
        address = f"http://127.0.0.1:{self.instance.port}/api/v1/{path}"
        with suppress(httpx.HTTPError):
            return httpx.post(address, json=body, headers=headers, timeout=20, trust_env=False)
        return None


class People:
    """`record` is that of their instance; `effects` reads the files of effects."""

    def __init__(
        self,
        caller: Caller,
        record: Record,
        effects: Callable[[], Sequence[Effect]],
        dice: Random,
        *,
        recovery: bool,
    ) -> None:
        self.caller, self.record, self.effects, self.dice = caller, record, effects, dice
        self.recovery = recovery  # whether they also decide on proposed recoveries
        self.resolved = 0  # number of jobs with unknown outcome that were resolved
        self._secret = ""

    def decide_until(self, over: threading.Event) -> None:
        while not over.wait(2.0):
            self.decide()

    def decide(self) -> None:
        """Decide everything that is open. Failed requests are repeated the next time."""
        with suppress(psycopg.Error, OSError):
            self._resolve_outcomes()
            if self.recovery:
                self._decide_recovery()

    def _resolve_outcomes(self) -> None:
        unknown = [job for (job,) in self.record.instance.sql(OUTCOME_UNKNOWN).fetchall()]
        effects = self.effects() if unknown else []
        for job in unknown:
            if verb := true_outcome(job, effects, self.dice):
                answer = self.caller.post(f"jobs/{job}/{verb}/", {"reason": "chaos"})
                self.resolved += answer is not None and answer.is_success

    def _decide_recovery(self) -> None:
        sql = self.record.instance.sql
        for number, incident in sql(PROPOSED).fetchall():
            decision = self.dice.choice(("approve", "approve", "decline"))
            self.caller.post(f"incidents/{incident}/decisions/{number}/{decision}/", {"reason": "chaos"})
        for cluster, node in sql(CORDONED).fetchall():
            self.caller.post(f"nodes/{cluster}/{node}/resume/", {"reason": "chaos"})
        for (job,) in sql(HELD).fetchall():
            self.caller.post(f"jobs/{job}/release/", {"reason": "chaos"})

    def train_until(self, over: threading.Event) -> None:
        step = 0
        while not over.wait(0.5):
            step += 10
            with suppress(psycopg.Error, OSError):
                for (key,) in self.record.instance.sql(TRAINING).fetchall():
                    self._report(key, step)

    def _report(self, key: str, step: int) -> None:
        saved = {"path": f"/checkpoints/storm/{key}-{step}", "step": step, "durable": True}
        progress = {"heartbeats": [{"step": step, "loss": 2.0}], "checkpoints": [saved]}
        self.caller.post("progress/", progress, token=self._run_token(key))

    def _run_token(self, key: str) -> str:
        """The progress token that the job has in its environment."""
        self._secret = self._secret or read_file(self.record.instance.place.env)["SECRET_KEY"]
        signature = salted_hmac("acme.progress", key, secret=self._secret, algorithm="sha256").hexdigest()[:40]
        return f"acme_run_{key}.{signature}"


def true_outcome(job: str, effects: Sequence[Effect], dice: Random) -> str:
    """The verb that records how the job really ended; "" while a command of it still runs.

    A job that never succeeded may also run again.
    """
    commands = [effect for effect in effects if effect.job == job]
    if any(effect.succeeded for effect in commands):
        return "mark-succeeded"
    if _ids(effect for effect in commands if effect.starts) - _ids(effect for effect in commands if not effect.starts):
        return ""
    return dice.choice(("mark-failed", "run-again")) if commands else "run-again"


def _ids(effects: Iterable[Effect]) -> set[int]:
    return {effect.job_id for effect in effects}
