"""Faults that only Slurm clusters have: rows of responses, the clock, and logs that the cluster writes itself."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random

import psycopg

from tests.chaos import proxy as answers
from tests.chaos.clusters.slurm import SlurmCluster
from tests.chaos.site import Fault, Site, lasting_strike, on
from tests.patience import until

CLOCK_OFFSET_S = 300
RUNNING_LOGS = """
SELECT a.log_path FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id JOIN jobs_cluster c ON c.id = j.cluster_id
WHERE a.ended_at IS NULL AND a.confirmed_at IS NOT NULL AND a.log_path <> '' AND c.name = %s
ORDER BY a.id DESC LIMIT 5
"""


def wrong_clock(site: Site, cluster: SlurmCluster, dice: Random) -> bool:
    if not cluster.set_clock(dice.choice((CLOCK_OFFSET_S, -CLOCK_OFFSET_S))):
        return False
    site.over.wait(dice.uniform(10, 15))
    until(lambda: cluster.set_clock(0), what="the cluster does not reset its clock")
    return True


def blocking_logs(site: Site, cluster: SlurmCluster, dice: Random) -> bool:
    """Replace logs that are being written by pipes without a writer."""
    replaced = []
    with suppress(psycopg.Error):
        running = [Path(path) for (path,) in site.instance.sql(RUNNING_LOGS, [cluster.name]).fetchall()]
        replaced = [path for path in running if _replace_by_pipe(path)]
    site.over.wait(dice.uniform(6, 10))
    for path in replaced:
        with suppress(FileNotFoundError):
            _aside(path).rename(path)
    return bool(replaced)


def _replace_by_pipe(path: Path) -> bool:
    with suppress(FileNotFoundError, FileExistsError):
        path.rename(_aside(path))
        os.mkfifo(path, 0o644)
        return True
    return False


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.aside")


FAULTS = (
    Fault(
        name="unreadable",
        sentence="one row among valid ones has an unknown state, a malformed list of nodes, or no name",
        strike=lasting_strike(SlurmCluster, lambda _, one, __: one.proxy.active(answers.unreadable_row), (6, 10)),
        lasting=True,
        times=2,
        kind=SlurmCluster,
    ),
    Fault(
        name="clock",
        sentence="the cluster's clock is five minutes ahead or behind",
        strike=on(SlurmCluster, wrong_clock),
        lasting=True,
        times=2,
        kind=SlurmCluster,
    ),
    Fault(
        name="pipes",
        sentence="logs of running jobs become pipes that block readers",
        strike=on(SlurmCluster, blocking_logs),
        lasting=True,
        times=2,
        kind=SlurmCluster,
    ),
)
