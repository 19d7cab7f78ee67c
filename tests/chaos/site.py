"""What faults are aimed at: a running instance with its clusters. And what a fault is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from acmeweb.services import parent_guard
from tests.acceptance.instance import Instance
from tests.chaos.clusters.base import StormCluster
from tests.chaos.disks import Disk
from tests.chaos.record import Record

TURNS_GROUP = "turns"
WORKERS = "workers"


@dataclass(kw_only=True)
class Site:
    """The targets of faults."""

    instance: Instance
    record: Record
    clusters: Sequence[StormCluster]
    second: Second
    over: threading.Event
    min_job_age_s: float
    disks: Mapping[str, Disk]
    failed_over: Callable[[float], None]  # called with the start of the backup while the database is stopped
    spared: Counter[str] = field(default_factory=Counter)  # programs that must not be killed now
    workers: threading.Lock = field(default_factory=threading.Lock)  # held while workers are frozen

    def pids(self, program: str) -> list[int]:
        """Pids of all programs with this prefix (`web` includes `web-2`); for workers also of their child processes."""
        program_pids = [pid for name, pid in self.instance.pids().items() if name.startswith(program)]
        return with_descendants(program_pids) if program == WORKERS else program_pids

    @contextmanager
    def sparing(self, *programs: str) -> Iterator[None]:
        self.spared.update(programs)
        try:
            yield
        finally:
            self.spared.subtract(programs)


Strike = Callable[[Site, Random], bool]
C = TypeVar("C", bound=StormCluster)


@dataclass(frozen=True, kw_only=True)
class Fault:
    name: str
    sentence: str
    strike: Strike
    lasting: bool = False
    times: int = 1  # of a lasting fault, in a storm of eight minutes
    quick: bool = True  # also used in short storms
    disk: str = ""  # the disk that must be fillable
    kind: type[StormCluster] = StormCluster  # the kind of clusters that it hits; any by default

    def hits(self, kinds: Iterable[type[StormCluster]]) -> bool:
        """Whether one of these kinds of clusters can have this fault."""
        return any(issubclass(kind, self.kind) for kind in kinds)


def on(kind: type[C], strike: Callable[[Site, C, Random], bool]) -> Strike:
    """A strike on one cluster of this kind, drawn from those of the site."""

    def strike_one(site: Site, dice: Random) -> bool:
        return strike(site, dice.choice([one for one in site.clusters if isinstance(one, kind)]), dice)

    return strike_one


def lasting_strike(
    kind: type[C], condition: Callable[[Site, C, Random], AbstractContextManager[object]], seconds: tuple[float, float]
) -> Strike:
    """A condition of one cluster that lasts for some seconds. It happened if it began and damaged something."""

    def strike(site: Site, cluster: C, dice: Random) -> bool:
        before = cluster.proxy.damaged
        with condition(site, cluster, dice):
            site.over.wait(dice.uniform(*seconds))
        return cluster.proxy.damaged > before

    return on(kind, strike)


class Second:
    """A second worker on the same instance; it is restarted when it was killed."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.process = self._start()

    def revive(self) -> None:
        """Restart the worker if it has ended, as the process runner does for the others."""
        if self.process.poll() is not None:
            self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        place = self.instance.place
        words = [sys.executable, "-m", "acmeweb.services.workers", "--groups", TURNS_GROUP]
        with (place.log / "second.log").open("ab") as out:
            return subprocess.Popen(
                parent_guard.guarded_command(words, stop="KILL", parent=os.getpid(), hold=place.alive),
                cwd=Path(__file__).parents[2],
                env=self.instance.surroundings(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )


def with_descendants(pids: Sequence[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    all_pids = list(pids)
    for pid in all_pids:  # the list grows during the iteration
        all_pids += children.get(pid, [])
    return all_pids
