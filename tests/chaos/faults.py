"""The faults that a storm injects into a running instance. Each returns whether it happened.

Instant faults kill or cut something. Lasting faults cause a condition for some seconds and then end it; only one of
them is active at a time, while instant faults continue.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict

from acmeweb.common.env import read_file
from acmeweb.services import parent_guard, postgres
from acmeweb.services.supervisor import SupervisorUnavailable
from tests.acceptance.instance import Instance
from tests.chaos import proxy as answers
from tests.chaos.clusters import kubernetes_faults, slurm_faults
from tests.chaos.clusters.base import StormCluster
from tests.chaos.clusters.slurm import SlurmCluster
from tests.chaos.site import WORKERS, Fault, Site, Strike, lasting_strike, on, with_descendants
from tests.patience import until

Kinds = Sequence[type[StormCluster]]

LEASE_S = 33.0  # longer than a loop's lease
LOST_S = 10.0  # seconds of commits lost in a failover
DUPLICATE_LOOPS = "UPDATE jobs_loop SET due_at = clock_timestamp(), began_at = NULL"
LEASE_HOLDER = """
SELECT holder, term FROM scheduling_lease WHERE name LIKE 'cluster:%' AND expires_at > clock_timestamp()
"""
CUT_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
IN_THE_MIDDLE = " AND (state <> 'idle' OR query ILIKE 'COMMIT%')"


# Instant faults


def kill(program: str) -> Strike:
    def strike(site: Site, dice: Random) -> bool:
        if site.spared[program]:
            return False
        pids = site.pids(program)
        with suppress(ProcessLookupError):
            if pids:
                os.kill(dice.choice(pids), signal.SIGKILL)
                return True
        return False

    return strike


def kill_second(site: Site, dice: Random) -> bool:
    if site.spared[WORKERS]:
        return False
    site.second.kill()
    site.second.revive()
    return True


def flush(site: Site, dice: Random) -> bool:
    with suppress(redis.RedisError), _valkey(site.instance) as valkey:
        return bool(valkey.flushall())
    return False


@contextmanager
def _valkey(instance: Instance) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(read_file(instance.place.env)["VALKEY_URL"], socket_timeout=3)
    try:
        yield client
    finally:
        client.close()


def duplicate(site: Site, dice: Random) -> bool:
    """Take away the claims of the loops that are running and make all loops due, so that some run twice at once."""
    with suppress(psycopg.Error):
        return site.instance.sql(DUPLICATE_LOOPS).rowcount > 0
    return False


def cut(site: Site, dice: Random) -> bool:
    """Cut sessions in the middle of a transaction, so that some commit loses its response."""
    with suppress(psycopg.Error):
        for _ in range(40):
            if site.instance.sql(CUT_SESSIONS + IN_THE_MIDDLE).fetchall():
                return True
            time.sleep(0.02)
    return False


# Frozen processes


def freeze_lease_holder(site: Site, dice: Random) -> bool:
    """Stop the process that holds the lease until the lease has expired and another process has taken it."""
    with site.workers:
        pid = _stop_lease_holder(site)
        if not pid:
            return False
        site.over.wait(LEASE_S)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return True


def _stop_lease_holder(site: Site) -> int:
    """The pid of a stopped process that still holds the lease. Turns are short, so most tries fail."""
    for _ in range(400):
        with suppress(psycopg.Error, OSError):
            if holder := site.instance.sql(LEASE_HOLDER).fetchone():
                pid = int(holder[0].rpartition(":")[2])
                os.kill(pid, signal.SIGSTOP)
                if site.instance.sql(LEASE_HOLDER).fetchone() == holder:
                    return pid
                os.kill(pid, signal.SIGCONT)
        if site.over.wait(0.005):
            break
    return 0


def freeze_workers(site: Site, dice: Random) -> bool:
    """Freeze all workers for longer than the cluster remembers ended jobs."""
    with site.workers, site.sparing(WORKERS):
        stopped = with_descendants([*site.pids(WORKERS), site.second.process.pid])
        _signal_all(stopped, signal.SIGSTOP)
        try:
            site.over.wait(site.min_job_age_s + dice.uniform(3, 7))
        finally:
            _signal_all(stopped, signal.SIGCONT)
    return len(stopped) > 1


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# Clusters


def kill_cluster(site: Site, cluster: StormCluster, dice: Random) -> bool:
    return cluster.kill(dice)


# A busy machine


def busy(count: int, seconds: tuple[float, float]) -> Strike:
    """Run processes beside everything else that only compute. They end if the storm is killed."""

    def strike(site: Site, dice: Random) -> bool:
        words = [sys.executable, "-c", "while True: pass"]
        command = parent_guard.guarded_command(words, stop="KILL", parent=os.getpid())
        loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
        try:
            site.over.wait(dice.uniform(*seconds))
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        return True

    return strike


# Full disks


def full_disk(name: str, seconds: tuple[float, float]) -> Strike:
    def strike(site: Site, dice: Random) -> bool:
        with site.sparing(name), site.disks[name].full():
            site.over.wait(dice.uniform(*seconds))
        return True

    return strike


# The database


def read_only(seconds: tuple[float, float]) -> Strike:
    """Make the database read-only, as after a switch to a standby that is not promoted yet."""

    def strike(site: Site, dice: Random) -> bool:
        if not _configure(site, "ALTER SYSTEM SET default_transaction_read_only = on"):
            return False
        site.over.wait(dice.uniform(*seconds))
        until(
            lambda: _configure(site, "ALTER SYSTEM RESET default_transaction_read_only"),
            what="the database stays read-only",
        )
        return True

    return strike


def _configure(site: Site, setting: str) -> bool:
    with suppress(psycopg.Error, OSError):
        site.instance.sql(setting)
        site.instance.sql("SELECT pg_reload_conf()")
        site.instance.sql(CUT_SESSIONS)
        return True
    return False


def failover(site: Site, dice: Random) -> bool:
    """Restore the database to its state of ten seconds ago, while the cluster keeps running."""
    with site.sparing("postgres"):
        began = time.monotonic()
        backup = _base_backup(site.instance)
        if backup is None:
            return False
        site.over.wait(LOST_S)
        with _stopped_database(site.instance):
            data = backup.with_name("data")
            shutil.rmtree(data)
            backup.rename(data)
            site.failed_over(began)
        until(lambda: site.record.clusters(), what="the database does not come back")
    return True


@contextmanager
def _stopped_database(instance: Instance) -> Iterator[None]:
    until(lambda: _halt_database(instance), what="the database does not stop")
    try:
        yield
    finally:
        until(lambda: _start_database(instance), what="the database does not start")


def _halt_database(instance: Instance) -> bool:
    with suppress(SupervisorUnavailable):
        instance.halt("postgres")
    running = instance.pids()
    return bool(running) and "postgres" not in running


def _start_database(instance: Instance) -> bool:
    with suppress(SupervisorUnavailable):
        instance.launch("postgres")
    with suppress(psycopg.Error, OSError):
        return bool(instance.sql("SELECT 1"))
    return False


def _base_backup(instance: Instance) -> Path | None:
    """A copy of the running database next to its directory, with the same owner; None if the database was killed."""
    home = instance.place.postgres
    backup, account = home / "backup", conninfo_to_dict(instance.surroundings()["DATABASE_URL"])
    shutil.rmtree(backup, ignore_errors=True)
    words = [str(postgres.binary("pg_basebackup")), "-h", str(account["host"]), "-p", str(account["port"])]
    words += ["-U", str(account["user"]), "-D", str(backup), "-X", "stream", "-c", "fast"]
    environment = {**os.environ, "PGPASSWORD": str(account["password"])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    owner = (home / "data").stat()
    for path in [backup, *backup.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return backup


def _damaged_answers(name: str, sentence: str, answer: answers.Fault, seconds: tuple[float, float]) -> Fault:
    strike = lasting_strike(StormCluster, lambda _, cluster, __: cluster.proxy.active(answer), seconds)
    return Fault(name=name, sentence=sentence, strike=strike, lasting=True, times=2)


def _full_disk_fault(
    disk: str,
    sentence: str,
    seconds: tuple[float, float],
    times: int = 1,
    kind: type[StormCluster] = StormCluster,
) -> Fault:
    return Fault(
        name=f"full_{disk}", sentence=sentence, strike=full_disk(disk, seconds), lasting=True, times=times,
        quick=False, disk=disk, kind=kind,
    )  # fmt: skip


GENERAL = (
    Fault(
        name="worker",
        sentence="kill -9 of a worker, of a process that it forked, or of the parent of all workers",
        strike=kill(WORKERS),
    ),
    Fault(name="second", sentence="kill -9 of a second worker that takes turns as well", strike=kill_second),
    Fault(name="web", sentence="kill -9 of a web process", strike=kill("web")),
    Fault(name="cluster", sentence="kill -9 of a cluster's server", strike=on(StormCluster, kill_cluster)),
    Fault(name="valkey", sentence="kill -9 of Valkey", strike=kill("valkey")),
    Fault(name="postgres", sentence="kill -9 of PostgreSQL", strike=kill("postgres")),
    Fault(name="flush", sentence="Valkey loses everything it holds", strike=flush),
    Fault(name="duplicate", sentence="loops that run are started a second time", strike=duplicate),
    Fault(name="cut", sentence="database sessions are cut in the middle of a transaction", strike=cut),
    Fault(
        name="stopped",
        sentence="the process that holds the lease is frozen until another one has taken it",
        strike=freeze_lease_holder,
        lasting=True,
        quick=False,
    ),
    Fault(
        name="busy",
        sentence="the machine is short of CPU for a minute: sixteen processes compute",
        strike=busy(16, (45, 75)),
        lasting=True,
        quick=False,
    ),
    Fault(
        name="frozen",
        sentence="all workers are frozen for longer than the cluster remembers ended jobs",
        strike=freeze_workers,
        lasting=True,
        times=2,
    ),
    _damaged_answers("truncated", "responses of a cluster are cut off", answers.truncated, (5, 8)),
    _damaged_answers("stale", "a cluster repeats responses that are some seconds old", answers.stale, (6, 10)),
    _damaged_answers("trickling", "responses of a cluster arrive at one byte per second", answers.trickling, (8, 14)),
    _damaged_answers("delayed", "responses of a cluster arrive some seconds late", answers.delayed, (6, 12)),
    _damaged_answers("lost", "commands are carried out and their responses are lost", answers.lost_writes, (4, 8)),
    _damaged_answers("unanswered", "a cluster accepts connections and never responds", answers.unanswered, (6, 12)),
    _full_disk_fault("logs", "the disk of the job logs is full", (5, 8), times=2, kind=SlurmCluster),
    _full_disk_fault("postgres", "the disk of PostgreSQL is full", (4, 6)),
    _full_disk_fault("valkey", "the disk of Valkey is full", (5, 8)),
    Fault(
        name="read_only",
        sentence="PostgreSQL accepts no writes for up to a minute",
        strike=read_only((30, 60)),
        lasting=True,
        quick=False,
    ),
    Fault(
        name="failover",
        sentence="PostgreSQL loses the commits of ten seconds while the cluster keeps running",
        strike=failover,
        lasting=True,
        quick=False,
    ),
)
EVERY = (*GENERAL, *slurm_faults.FAULTS, *kubernetes_faults.FAULTS)
NEIGHBOR = "neighbor", "a second installation drives the same cluster and submits jobs of its own"


def instant(kinds: Kinds) -> list[Fault]:
    return [fault for fault in EVERY if not fault.lasting and fault.hits(kinds)]


def lasting(kinds: Kinds, *, quick: bool) -> list[Fault]:
    return [fault for fault in EVERY if fault.lasting and fault.hits(kinds) and (fault.quick or not quick)]


def plan(faults: Sequence[Fault], dice: Random) -> Iterator[Fault]:
    """Each fault once in random order, then the repeated ones again, then repeated ones at random without end."""
    for number in range(max((fault.times for fault in faults), default=0)):
        due = [fault for fault in faults if fault.times > number]
        yield from dice.sample(due, len(due))
    while faults:
        yield dice.choice([fault for fault in faults if fault.times > 1] or list(faults))
