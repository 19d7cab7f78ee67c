"""The storm: a running instance, thousands of short jobs, and something killed every few seconds.

    make chaos [SEED=N] [ARGS="--minutes 10"]

Some of the jobs are trainings that fail once: they report heartbeats and checkpoints, and recovery may act. Beside it a
person says yes or no to what recovery only proposes, resumes nodes that it closed and releases what it holds.

A wish counts as accepted once its answer was read; until then it is sent again with the same Idempotency-Key. After
the storm everything is left alone until the jobs have come to their end, and then the judge reads the record.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import psycopg
import redis
from celery import Celery
from django.utils.crypto import salted_hmac

from acmeweb.env import ROOT, read_file
from acmeweb.services import leash
from tests.acceptance.instance import Instance
from tests.chaos import judge
from tests.chaos.record import Record
from tests.patience import until

VICTIMS = ("worker", "second", "beat", "web", "cluster", "valkey", "postgres")
OTHER_DEEDS = ("flush", "duplicate", "cut")
BATCH = 20
MOST_UNFINISHED = 300  # more than that only makes the rest after the storm longer
ENDS = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED:1", "OUT_OF_MEMORY")
# Causes with different remedies: started again at once, elsewhere, after a roll back, or not at all
TRAINING_FAILS = ("cuda_error", "ecc_error", "dataloader_killed", "checkpoint_corrupt", "value_error")
TRAININGS = 0.15
# GPUs per node of gangs and trainings: whole nodes, and parts of nodes that others share
WIDTHS = (2, 4, 8)
STORMY = 0.8  # of the time after the start; the rest is for jobs that are under way when the storm is over
STILL_TURNS = 120  # a second each at least: longer than the claim of a dead worker and the pause before another try
LONGEST_REST_S = 1200.0
STOPPED_S = 33.0  # longer than the lease
PROPOSED = "SELECT id, incident_id FROM failures_decision WHERE course = 'proposed'"
CLOSED = """
SELECT c.name, n.name FROM jobs_node n JOIN jobs_cluster c ON c.id = n.cluster_id
WHERE n.drain_asked AND NOT EXISTS (SELECT 1 FROM jobs_deed d WHERE d.node_id = n.id AND d.done_at IS NULL)
AND NOT EXISTS (SELECT 1 FROM failures_decision WHERE course IN ('approved', 'acting'))
"""
UNENDED = "SELECT public_id FROM jobs_job WHERE ended_at IS NULL"
HELD = "SELECT public_id FROM jobs_job WHERE state = 'PENDING' AND hold <> '' AND recover_by IS NULL"
TRAINING = """
SELECT a.key FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
WHERE a.ended_at IS NULL AND a.confirmed_at IS NOT NULL AND j.name LIKE 'storm-%-train'
"""
LEASE_HOLDER = "SELECT holder, term FROM scheduling_lease WHERE expires_at > clock_timestamp()"


@dataclass(kw_only=True)
class Storm:
    """What was done, and what was promised to whoever submitted."""

    instance: Instance
    seed: int
    most_unfinished: int = MOST_UNFINISHED
    trainings: float = TRAININGS  # the share of jobs that recovery is asked about
    kills: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, str] = field(default_factory=dict)
    final_once: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.dice = Random(f"storm:{self.seed}")
        self.token = self._token()
        self.record = Record(self.instance)
        self.people = People(self.instance, self.token, Random(f"people:{self.seed}"))
        self.second = Second(self.instance)
        self.trouble: list[BaseException] = []
        self._still = ("", 0)  # the record when it last moved, and the turn of that moment

    def blow(self, seconds: float, jobs: int, pause_s: tuple[float, float] = (1.5, 4.0)) -> None:
        """Until the time is up; the stop of a worker that holds the lease runs beside all else."""
        self._prepare()
        tasks = [lambda: self._submit(jobs), self._watch, self._freeze]
        if self.trainings:
            tasks += [lambda: self.people.decide_until(self.over), lambda: self.people.train_until(self.over)]
        threads = [threading.Thread(target=self._guarded, args=(task,)) for task in tasks]
        for thread in threads:
            thread.start()
        limit = time.monotonic() + seconds
        try:
            while time.monotonic() < limit and not self.trouble:
                self.second.revive()
                self._strike(self.dice.choice((*VICTIMS, *VICTIMS, *OTHER_DEEDS)))
                self.over.wait(self.dice.uniform(*pause_s))
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        if self.trouble:
            raise self.trouble[0]

    def settle(self, still_turns: int = STILL_TURNS, limit_s: float = LONGEST_REST_S) -> None:
        """Nothing is killed any more: wait until every accepted job has come to its end. Who is left over is stuck only
        if so many turns in a row moved nothing at all; a slow machine turns slowly, and that is no violation. The limit
        is for a machine on which nothing would ever end."""
        until(lambda: self._is_over(still_turns), limit_s, f"jobs still move after {limit_s:.0f} s of rest")

    def _is_over(self, still_turns: int) -> bool:
        with suppress(psycopg.Error, OSError):
            if not self.record.unfinished(set(self.accepted)):
                return True
            if self.trainings:
                self.people.decide()
            seen, term = self.record.digest(), self.record.term()
            if seen != self._still[0]:
                self._still = (seen, term)
            time.sleep(0.3)  # the question itself costs a busy database something
            return term - self._still[1] >= still_turns
        return False

    def verdict(self) -> list[str]:
        evidence = self.record.evidence(self.accepted, self.final_once)
        return [*judge.violations(evidence), *self._unsteady()]

    def line(self, violations: list[str]) -> str:
        kills = " ".join(f"{name}={count}" for name, count in sorted(self.kills.items()))
        if self.trainings:
            kills += f" decisions={self.record.decisions()}"
        return f"chaos seed={self.seed} jobs={len(self.accepted)} {kills} violations={len(violations)}"

    def close(self) -> None:
        self.over.set()
        self.second.close()

    # Submitting

    def _token(self) -> str:
        said = subprocess.run(
            [sys.executable, "manage.py", "token", "admin", "--scope", "admin"],
            cwd=ROOT,
            env=self.instance.surroundings(),
            capture_output=True,
            text=True,
            check=True,
        )
        return said.stdout.strip()

    def _submit(self, jobs: int) -> None:
        dice, number = Random(f"jobs:{self.seed}"), 0
        while not self.over.is_set() and len(self.accepted) < jobs:
            if len(self.accepted) - len(self.final_once) > self.most_unfinished:
                self.over.wait(0.2)
                continue
            wishes = [self._wish(dice, number + i) for i in range(BATCH)]
            number += BATCH
            answer = self._ask("/api/v1/jobs/bulk/", {"jobs": wishes}, key=f"{self.seed}-{number}")
            if answer is None:
                return
            if answer.is_error:
                raise AssertionError(f"a submission was answered with {answer.status_code}: {answer.text[:500]}")
            shown = answer.json()["results"]
            self.accepted |= {one["id"]: wish["name"] for one, wish in zip(shown, wishes, strict=True)}
            if dice.random() < 0.3:
                withdrawn = [one["id"] for one in dice.sample(shown, 2)]
                self._ask("/api/v1/jobs/verbs/", {"verb": "cancel", "ids": withdrawn}, key=f"{self.seed}-c{number}")

    def _wish(self, dice: Random, number: int) -> dict[str, object]:
        if self.trainings and dice.random() < self.trainings:
            return self._training(dice, number)
        gang = dice.random() < 0.1
        play = {"SIM_DURATION_S": f"{dice.uniform(0.2, 4):.1f}", "SIM_END": dice.choice(ENDS)}
        return {
            "name": f"storm-{number}",
            "command": "#!/bin/sh\ntrue\n",
            "kind": "debug",
            "environment": play,
            "nodes": 2 if gang else 1,
            "gpus_per_node": dice.choice(WIDTHS) if gang else dice.choice((1, 1, 1, 2)),
            "time_limit": 600,
            "team": "platform",
        }

    def _training(self, dice: Random, number: int) -> dict[str, object]:
        fails = f"FAILED:1:{dice.choice(TRAINING_FAILS)}"
        return {
            "name": f"storm-{number}-train",
            "command": "#!/bin/sh\ntrue\n",
            "kind": "pretrain",
            "environment": {"SIM_DURATION_S": f"{dice.uniform(1, 5):.1f}", "SIM_END": f"{fails},COMPLETED"},
            "labels": {"acme-recovery": "on"},
            "nodes": dice.choice((1, 2)),
            "gpus_per_node": dice.choice(WIDTHS),
            "time_limit": 600,
            "checkpoint_dir": "/checkpoints/storm",
            "team": "platform",
        }

    def _ask(self, path: str, body: object, *, key: str) -> httpx.Response | None:
        """Until it is answered, with the same key each time; None once the storm is over before that."""
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": key}
        address = f"http://127.0.0.1:{self.instance.port}{path}"
        while not self.over.is_set():
            with suppress(httpx.HTTPError):
                answer = httpx.post(address, json=body, headers=headers, timeout=20, trust_env=False)
                if answer.status_code < 500 and answer.status_code not in (409, 429):
                    return answer
            self.over.wait(0.3)
        return None

    def _watch(self) -> None:
        """Note each final state when it is first seen: it must be the last."""
        while not self.over.wait(0.7):
            for job, state in self.record.finals().items():
                self.final_once.setdefault(job, state)

    def _prepare(self) -> None:
        """The demo's people would go on submitting, and their jobs hold the whole cluster for minutes.

        kill -9 takes nothing that the kernel already has, so PostgreSQL need not wait for the disk: a busy one would
        turn the storm into a calm. Power cuts are not part of it.
        """
        self.instance.halt("demo")
        # Before its first look at the cluster the instance refuses jobs, as it should: it knows no node to size them by
        until(lambda: self.instance.sql("SELECT 1 FROM jobs_node LIMIT 1").fetchone(), 120, "no node was reported")
        if theirs := [job for (job,) in self.instance.sql(UNENDED).fetchall()]:
            assert self._ask("/api/v1/jobs/verbs/", {"verb": "cancel", "ids": theirs}, key=f"{self.seed}-theirs")
        if self.trainings:
            assert self._ask("/api/v1/recovery/modes/", {"mode": "act"}, key=f"{self.seed}-act"), "nobody answered"
        self.instance.sql("ALTER SYSTEM SET fsync = off")
        self.instance.sql("SELECT pg_reload_conf()")

    # Striking

    def _strike(self, what: str) -> None:
        deeds: dict[str, Callable[[], bool]] = {
            "flush": self._flush,
            "duplicate": self._duplicate,
            "cut": self._cut,
            "second": self.second.kill,
        }
        if deeds.get(what, lambda: self._kill(what))():
            self.kills[what] += 1

    def _kill(self, program: str) -> bool:
        pid = self.instance.pids().get(program)
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def _flush(self) -> bool:
        with suppress(redis.RedisError), self._valkey() as valkey:
            return bool(valkey.flushall())
        return False

    def _duplicate(self) -> bool:
        """The same message three times, with one id, as a broker does that hands it out again too early."""
        broker = read_file(self.instance.place.env)["VALKEY_URL"]
        options = {"max_retries": 0, "socket_connect_timeout": 2}
        with Celery("storm", broker=broker, broker_transport_options=options, set_as_current=False) as app:
            cluster, name = self.record.cluster(), f"storm-{self.dice.random()}"
            try:
                for _ in range(3):
                    app.send_task("scheduling.turn", [cluster], task_id=name, retry=False)
            except Exception:  # whatever the broker's library calls it when nobody is there
                return False
        return True

    def _cut(self) -> bool:
        """Every session that is in the middle of something, so that some commit is cut off from its answer."""
        with suppress(psycopg.Error):
            for _ in range(40):
                if self.instance.sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                    " AND (state <> 'idle' OR query ILIKE 'COMMIT%')"
                ).fetchall():
                    return True
                time.sleep(0.02)
        return False

    def _freeze(self) -> None:
        """Stop the process that holds the lease until it has run out, and wake it when another has taken it."""
        while not self.over.wait(1.0):
            pid = self._stop_the_holder()
            if pid:
                self.over.wait(STOPPED_S)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                self.kills["stopped"] += 1
                self.over.wait(4 * STOPPED_S)  # nothing moves while the holder sleeps; the storm is more than that

    def _stop_the_holder(self) -> int:
        """Its pid, if it still holds the lease now that it stands still; turns are short, so mostly it does not."""
        for _ in range(400):
            with suppress(psycopg.Error, OSError, ProcessLookupError):
                held = self.instance.sql(LEASE_HOLDER).fetchone()
                if held:
                    pid = int(held[0].rpartition(":")[2])
                    os.kill(pid, signal.SIGSTOP)
                    if self.instance.sql(LEASE_HOLDER).fetchone() == held:
                        return pid
                    os.kill(pid, signal.SIGCONT)
            if self.over.wait(0.005):
                break
        return 0

    @contextmanager
    def _valkey(self) -> Iterator[redis.Redis]:
        client = redis.Redis.from_url(read_file(self.instance.place.env)["VALKEY_URL"], socket_timeout=3)
        try:
            yield client
        finally:
            client.close()

    def _unsteady(self) -> list[str]:
        before, term = self.record.digest(), self.record.term()
        until(lambda: self.record.term() >= term + 2, 120, "no turn came")
        return list(judge.unsteady(before, self.record.digest()))

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self.trouble.append(error)
            self.over.set()


class People:
    """Who is there beside the loops: trainers that report, and an operator who decides what recovery leaves to him."""

    def __init__(self, instance: Instance, token: str, dice: Random) -> None:
        self.instance, self.token, self.dice = instance, token, dice
        self._secret = ""

    def decide_until(self, over: threading.Event) -> None:
        while not over.wait(2.0):
            self.decide()

    def decide(self) -> None:
        """Once around; whatever cannot be asked now is asked the next time."""
        with suppress(psycopg.Error, OSError):
            for number, incident in self.instance.sql(PROPOSED).fetchall():
                say = self.dice.choice(("approve", "approve", "decline"))
                self._post(f"incidents/{incident}/decisions/{number}/{say}/", {"reason": "chaos"})
            for cluster, node in self.instance.sql(CLOSED).fetchall():
                self._post(f"nodes/{cluster}/{node}/resume/", {"reason": "chaos"})
            for (job,) in self.instance.sql(HELD).fetchall():
                self._post(f"jobs/{job}/release/", {"reason": "chaos"})

    def train_until(self, over: threading.Event) -> None:
        step = 0
        while not over.wait(0.5):
            step += 10
            with suppress(psycopg.Error, OSError):
                for (key,) in self.instance.sql(TRAINING).fetchall():
                    self._report(key, step)

    def _report(self, key: str, step: int) -> None:
        saved = {"path": f"/checkpoints/storm/{key}-{step}", "step": step, "durable": True}
        told = {"heartbeats": [{"step": step, "loss": 2.0}], "checkpoints": [saved]}
        self._post("progress/", told, token=self._run_token(key))

    def _run_token(self, key: str) -> str:
        """As the job finds it in its environment."""
        self._secret = self._secret or read_file(self.instance.place.env)["SECRET_KEY"]
        signature = salted_hmac("acme.progress", key, secret=self._secret, algorithm="sha256").hexdigest()[:40]
        return f"acme_run_{key}.{signature}"

    def _post(self, path: str, body: object, *, token: str = "") -> None:
        """What is refused was decided meanwhile by somebody else; who does not answer was just killed."""
        address = f"http://127.0.0.1:{self.instance.port}/api/v1/{path}"
        headers = {"Authorization": f"Bearer {token or self.token}"}
        with suppress(httpx.HTTPError):
            httpx.post(address, json=body, headers=headers, timeout=20, trust_env=False)


class Second:
    """A second worker on the same instance; killed, it is back at once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.process = self._start()

    def kill(self) -> bool:
        self.process.kill()
        self.process.wait()
        self.revive()
        return True

    def revive(self) -> None:
        """What the process runner does for the others."""
        if self.process.poll() is not None:
            self.process = self._start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        place = self.instance.place
        words = [sys.executable, "-m", "celery", "-A", "acmeweb.celery:app", "worker", "-c", "2"]
        words += ["--without-gossip", "--without-mingle", "-n", "second@acme"]
        with (place.log / "second.log").open("ab") as out:
            return subprocess.Popen(
                leash.command(words, stop="KILL", parent=os.getpid(), hold=place.alive),
                cwd=ROOT,
                env=self.instance.surroundings(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )


def chaos(
    var: Path,
    *,
    seed: int,
    storm_s: float,
    jobs: int,
    whole_s: float = 0.0,
    most_unfinished: int = MOST_UNFINISHED,
    trainings: float = TRAININGS,
) -> tuple[str, list[str]]:
    """One storm from start to stop: its line, and what it broke. It blows for `storm_s` at least, and for most of what
    the start has left of `whole_s`."""
    began = time.monotonic()
    instance = Instance(var).start()
    try:
        instance.ready()
        storm_s = max(storm_s, STORMY * (whole_s - (time.monotonic() - began)))
        storm = Storm(instance=instance, seed=seed, most_unfinished=most_unfinished, trainings=trainings)
        try:
            storm.blow(storm_s, jobs)
            storm.settle()
            broken = storm.verdict()
        finally:
            storm.close()
        return storm.line(broken), broken
    finally:
        instance.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=10.0, help="start, storm and rest together")
    parser.add_argument("--jobs", type=int, default=5_000, help="no more than these are submitted")
    parser.add_argument("--unfinished", type=int, default=MOST_UNFINISHED, help="no more than these at a time")
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="acme-chaos-"))
    home.chmod(0o755)
    whole_s = given.minutes * 60
    try:
        line, broken = chaos(
            home / "var",
            seed=given.seed,
            storm_s=whole_s / 2,
            whole_s=whole_s,
            jobs=given.jobs,
            most_unfinished=given.unfinished,
        )
    except BaseException:
        print(f"chaos seed={given.seed} ended in an error; everything is kept in {home}", file=sys.stderr)
        raise
    for sentence in broken[:50]:
        print(sentence)
    print(line)
    if broken:
        print(f"again with: make chaos SEED={given.seed}; the instance is kept in {home}")
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
