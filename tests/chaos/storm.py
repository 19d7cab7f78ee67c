"""The storm: a running instance with one or two clusters, thousands of short jobs, and a fault every few seconds.

    make chaos [SEED=N] [ARGS="--minutes 10"]
    python -m tests.chaos.storm --list-faults

Some of the jobs are training jobs that fail once: they report heartbeats and checkpoints, and automatic recovery is on.
Others are preemptible and state terms: a protected time, a daily maximum, or preemption only at checkpoints.

Drawn per run: the kinds of clusters (Slurm, Kubernetes, or one of each), the policy, and whether the Slurm cluster has
accounting. It forgets ended jobs after five seconds. Acme connects to each cluster through a proxy that damages
responses.

After the storm no faults are injected until the jobs have ended. Then the judge compares the database with the
clusters' own files about the commands that they ran.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import psycopg

from tests.acceptance.instance import Instance
from tests.chaos import faults, judge
from tests.chaos.clusters.base import StormCluster, all_effects
from tests.chaos.clusters.kubernetes import KubernetesCluster
from tests.chaos.clusters.slurm import SlurmCluster
from tests.chaos.disks import Disk, NoMount, make_mounts_private
from tests.chaos.effects import Effect
from tests.chaos.neighbor import Neighbor, all_clusters_have_nodes, clear
from tests.chaos.people import Caller, People
from tests.chaos.record import Record
from tests.chaos.site import WORKERS, Fault, Second, Site
from tests.chaos.submitter import Submitter, borrower, mixed
from tests.patience import until

MIN_JOB_AGE_S = 5
MOST_UNFINISHED = 300  # a higher limit only makes the wait after the storm longer
# They take longer than other jobs, so that without a limit of their own they would soon be all that is unfinished
MOST_BORROWERS, BORROWER_BATCH = 18, 3
TRAININGS = 0.15
STORMY = 0.8  # share of the time after the start; the rest is for jobs that have not ended when the storm is over
PAUSE_S = (1.5, 4.0)  # between instant faults
LASTING_PAUSE_S = (1.0, 3.0)  # between lasting faults
# A turn takes at least a second, so this is longer than the claim of a dead worker and the pause before a retry
STILL_TURNS = 120
LONGEST_REST_S = 1200.0
MOST_PRINTED = 50  # all violations are written to a file next to the instance
KINDS: dict[str, type[StormCluster]] = {"slurm": SlurmCluster, "kubernetes": KubernetesCluster}
DRAWN_KINDS = (("slurm",), ("kubernetes",), ("slurm", "kubernetes"))
DRAWN_POLICIES = ("acme", "acme", "tiresias", "srtf-predicted")  # those that preempt


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parameters of a storm; everything else follows from the seed."""

    seed: int
    storm_s: float
    jobs: int
    whole_s: float = 0.0  # total time; the storm takes most of what remains after the start, at least `storm_s`
    most_unfinished: int = MOST_UNFINISHED
    trainings: float = TRAININGS  # share of training jobs, about which recovery decides
    quick: bool = False  # only short faults
    only: frozenset[str] = frozenset()  # if not empty, only these faults
    only_kinds: tuple[str, ...] = ()  # if not empty, these kinds of clusters instead of drawn ones

    @property
    def accounting(self) -> bool:
        return Random(f"accounting:{self.seed}").random() < 0.5

    @property
    def policy(self) -> str:
        return Random(f"policy:{self.seed}").choice(DRAWN_POLICIES)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of clusters; jobs are submitted to one cluster of each."""
        return self.only_kinds or Random(f"kinds:{self.seed}").choice(DRAWN_KINDS)

    @property
    def classes(self) -> list[type[StormCluster]]:
        return [KINDS[kind] for kind in self.kinds]

    def draws(self, fault: str) -> bool:
        return not self.only or fault in self.only

    @property
    def instant(self) -> list[Fault]:
        return [fault for fault in faults.instant(self.classes) if self.draws(fault.name)]

    @property
    def lasting(self) -> list[Fault]:
        return [fault for fault in faults.lasting(self.classes, quick=self.quick) if self.draws(fault.name)]

    @property
    def neighbor(self) -> bool:
        return not self.quick and self.draws(faults.NEIGHBOR[0])

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ACME_CLUSTER_MIN_JOB_AGE": str(MIN_JOB_AGE_S),
            "ACME_CLUSTER_ACCOUNTING": str(int(self.accounting)),
        }


@dataclass(kw_only=True)
class Storm:
    instance: Instance
    settings: Settings
    clusters: Sequence[StormCluster]
    disks: dict[str, Disk] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    no_mounts: str = ""  # why no disk can be filled; empty if disks can be
    over: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        seed, self.record = self.settings.seed, Record(self.instance)
        self.caller = Caller(self.instance)
        self.people = People(
            self.caller, self.record, self.effects, Random(f"people:{seed}"), recovery=bool(self.settings.trainings)
        )
        names = [cluster.name for cluster in self.clusters]
        jobs, borrowers = mixed(self.settings.trainings), borrower
        self.submitters = (
            Submitter(
                self.caller,
                self.record,
                clusters=names,
                draw=jobs,
                seed=f"{seed}",
                most_unfinished=self.settings.most_unfinished,
            ),
            Submitter(
                self.caller,
                self.record,
                clusters=names,
                draw=borrowers,
                seed=f"{seed}-borrowers",
                most_unfinished=MOST_BORROWERS,
                batch=BORROWER_BATCH,
            ),
        )
        self.neighbor = Neighbor(self.clusters, _directory(self.instance, "neighbor") / "var", seed)
        self.site = Site(
            instance=self.instance,
            record=self.record,
            clusters=self.clusters,
            second=Second(self.instance),
            over=self.over,
            min_job_age_s=MIN_JOB_AGE_S,
            disks=self.disks,
            failed_over=self._failed_over,
        )
        self._still = ("", 0)  # the last digest, and the turn in which it changed

    def effects(self) -> list[Effect]:
        return all_effects(self.clusters)

    def _failed_over(self, backup_began_at: float) -> None:
        for submitter in self.submitters:
            submitter.failed_over(backup_began_at)

    @property
    def accepted(self) -> dict[str, str]:
        return {job: name for submitter in self.submitters for job, name in submitter.accepted.items()}

    def blow(self, seconds: float) -> None:
        """Run the storm until the time is up or a thread fails unexpectedly."""
        self._prepare()
        threads = [threading.Thread(target=self._run_guarded, args=(task,)) for task in self._tasks()]
        for thread in threads:
            thread.start()
        try:
            self.over.wait(seconds)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
        if self.errors:
            raise self.errors[0]

    def _tasks(self) -> Sequence[Callable[[], None]]:
        tasks = [
            lambda: self.people.decide_until(self.over),
            lambda: self.people.train_until(self.over),
            self._strike_instantly,
            self._strike_lastingly,
        ]
        for submitter in self.submitters:
            tasks.append(partial(submitter.submit_until, self.over, self.settings.jobs))
            tasks.append(partial(submitter.watch_until, self.over))
        tasks += [partial(cluster.act_until, self.over) for cluster in self.clusters]
        if self.settings.neighbor:
            tasks.append(lambda: self.neighbor.run_until(self.over))
        return tasks

    def _run_guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            self.errors.append(error)
            self.over.set()

    def _prepare(self) -> None:
        """Prepare the instance.

        fsync is off, because kill -9 loses nothing that the kernel has, and a busy disk would slow the storm down.
        Power cuts are not tested.
        """
        clear(self.caller, self.instance, self.over)
        for cluster in self.clusters:
            cluster.join(self.instance, self.caller, self.over, direct=False)
        until(lambda: all_clusters_have_nodes(self.instance), what="every cluster has reported nodes")
        self.instance.sql("UPDATE jobs_cluster SET policy = %s", [self.settings.policy])
        if self.settings.trainings:
            modes = self.caller.ask("recovery/modes/", {"mode": "act"}, key="act", over=self.over)
            assert modes and modes[1].is_success, "cannot set recovery to act"
        self.instance.sql("ALTER SYSTEM SET fsync = off")
        self.instance.sql("SELECT pg_reload_conf()")
        if not self.settings.quick and not self.no_mounts:
            self._limit_disks()

    def _limit_disks(self) -> None:
        place = self.instance.place
        self.disks["logs"] = Disk(place.cluster_logs)
        for name, directory in (("postgres", place.postgres), ("valkey", place.valkey)):
            with self.instance.without(name):
                self.disks[name] = Disk(directory)

    # Injecting faults

    def _strike_instantly(self) -> None:
        dice, drawn = Random(f"instant:{self.settings.seed}"), self.settings.instant
        while not self.over.wait(dice.uniform(*PAUSE_S)):
            if not self.site.spared[WORKERS]:
                self.site.second.revive()
            if drawn:
                self._strike(dice.choice(drawn), dice)

    def _strike_lastingly(self) -> None:
        dice = Random(f"lasting:{self.settings.seed}")
        for fault in faults.plan([one for one in self.settings.lasting if one.disk in ("", *self.disks)], dice):
            if self.over.wait(dice.uniform(*LASTING_PAUSE_S)):
                return
            self._strike(fault, dice)

    def _strike(self, fault: Fault, dice: Random) -> None:
        if fault.strike(self.site, dice):
            self.counts[fault.name] += 1

    # After the storm

    def settle(self, still_turns: int = STILL_TURNS, limit_s: float = LONGEST_REST_S) -> None:
        """Wait without faults until every accepted job has ended.

        Jobs count as stuck only if `still_turns` turns in a row changed nothing, so a slow machine is not a violation.
        The limit is for a machine on which jobs never end.
        """
        self.site.second.revive()
        until(lambda: self._is_over(still_turns), limit_s, f"jobs still change after {limit_s:.0f} s without faults")

    def _is_over(self, still_turns: int) -> bool:
        with suppress(psycopg.Error, OSError):
            # Also jobs whose submission was not confirmed when the storm ended
            waits = self.record.unfinished(set(self.accepted)) or self.record.unfinished_rows()
            if not waits and not self.neighbor.unfinished():
                return True
            self.people.decide()
            if self.neighbor.people:
                self.neighbor.people.decide()
            digest, term = self.record.digest(), self.record.term()
            if digest != self._still[0]:
                self._still = (digest, term)
            time.sleep(0.3)  # do not load a busy database with queries
            return term - self._still[1] >= still_turns
        return False

    def verdict(self) -> list[str]:
        final_once = {job: state for one in self.submitters for job, state in one.final_once.items()}
        withdrawn = {job for one in self.submitters for job in one.withdrawn}
        ours = self.record.evidence(self.accepted, final_once, withdrawn, self.effects)
        stopped = {attempt for cluster in self.clusters for attempt in cluster.stopped_by_others}
        hidden = {attempt for cluster in self.clusters for attempt in cluster.out_of_sight}
        ours = replace(ours, stopped_by_others=stopped, out_of_sight=hidden)
        own = [sentence for cluster in self.clusters for sentence in cluster.violations()]
        return [*judge.violations(ours), *self.neighbor.violations(ours), *own, *self._unsteady()]

    def _unsteady(self) -> list[str]:
        before, term = self.record.digest(), self.record.term()
        until(lambda: self.record.term() >= term + 2, 120, "no turn ran")
        return list(judge.unsteady(before, self.record.digest()))

    def line(self, violations: Sequence[str]) -> str:
        self.counts[faults.NEIGHBOR[0]] = int(self.neighbor.took_part)
        drawn = [*(fault.name for fault in faults.EVERY), faults.NEIGHBOR[0]]
        counts = " ".join(f"{name}={self.counts[name]}" for name in drawn)
        jobs = len(self.accepted)
        theirs = len(self.neighbor.submitter.accepted) if self.neighbor.submitter else 0
        commands = sum(effect.starts for effect in self.effects())
        settings = self.settings
        return (
            f"chaos seed={settings.seed} clusters={'+'.join(settings.kinds)} policy={settings.policy}"
            f" jobs={jobs} neighbor_jobs={theirs} commands={commands} accounting={int(settings.accounting)} {counts}"
            f" resolved={self.people.resolved} decisions={self.record.decisions()}"
            f" preemptions={self.record.preemptions()} violations={len(violations)}"
        )

    def not_drawn(self) -> Iterator[tuple[str, str]]:
        for fault in self.settings.lasting:
            if not self.counts[fault.name]:
                blocked = self.no_mounts if fault.disk else ""
                yield fault.name, blocked or "the storm was too short, or the fault had no effect"

    def close(self) -> None:
        self.over.set()
        self.site.second.kill()
        self.neighbor.end()


def _without_mounts() -> str:
    """Why no disk can be filled on this machine; "" if disks can be filled."""
    try:
        make_mounts_private()
    except NoMount as error:
        return str(error)
    return ""


def _directory(instance: Instance, name: str) -> Path:
    """A directory next to the instance's own, accessible to servers that do not run as root."""
    home = instance.place.var.parent / name
    home.mkdir(mode=0o755, exist_ok=True)
    return home


def chaos(var: Path, settings: Settings) -> tuple[str, list[str]]:
    """Run one storm from start to stop; returns its summary line and its violations."""
    began = time.monotonic()
    no_mounts = "" if settings.quick else _without_mounts()
    access = var.parent / "access"
    access.mkdir(mode=0o755, exist_ok=True)
    instance = Instance(var).start(**settings.environment, ACME_TOKEN_DIRS=str(access))
    disks: dict[str, Disk] = {}
    clusters: list[StormCluster] = []
    try:
        instance.ready()
        clusters += [kind.start(instance, settings.seed, access) for kind in settings.classes]
        storm = Storm(instance=instance, settings=settings, clusters=clusters, disks=disks, no_mounts=no_mounts)
        try:
            storm.blow(max(settings.storm_s, STORMY * (settings.whole_s - (time.monotonic() - began))))
            storm.settle()
            broken = storm.verdict()
            line = storm.line(broken)
        finally:
            storm.close()
        for name, why in storm.not_drawn():
            print(f"not drawn: {name} ({why})")
        return line, broken
    finally:
        instance.end()
        for cluster in clusters:
            cluster.close()
        for disk in disks.values():
            disk.release()


def list_faults() -> None:
    for fault in faults.EVERY:
        print(f"{fault.name:<14} {fault.sentence}")
    print(f"{faults.NEIGHBOR[0]:<14} {faults.NEIGHBOR[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=10.0, help="total time of start, storm and wait")
    parser.add_argument("--jobs", type=int, default=5_000, help="maximum number of submitted jobs")
    parser.add_argument("--unfinished", type=int, default=MOST_UNFINISHED, help="maximum number of unfinished jobs")
    parser.add_argument("--only", default="", help="inject only these faults: names, comma separated")
    parser.add_argument("--kinds", default="", help=f"kinds of clusters instead of drawn ones: {', '.join(KINDS)}")
    parser.add_argument("--list-faults", action="store_true", help="print the faults and exit")
    options = parser.parse_args()
    if options.list_faults:
        list_faults()
        return 0
    only = frozenset(options.only.split(",") if options.only else ())
    if unknown := only - {*(fault.name for fault in faults.EVERY), faults.NEIGHBOR[0]}:
        parser.error(f"--only: unknown fault {', '.join(sorted(unknown))}; see --list-faults")
    only_kinds = tuple(options.kinds.split(",") if options.kinds else ())
    if unknown := set(only_kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))} is not one of {', '.join(KINDS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends everything that was started
    home = Path(tempfile.mkdtemp(prefix="acme-chaos-"))
    home.chmod(0o755)
    whole_s = options.minutes * 60
    settings = Settings(
        seed=options.seed,
        storm_s=whole_s / 2,
        whole_s=whole_s,
        jobs=options.jobs,
        most_unfinished=options.unfinished,
        only=only,
        only_kinds=only_kinds,
    )
    try:
        line, broken = chaos(home / "var", settings)
    except BaseException:
        print(f"chaos seed={options.seed} ended in an error; files are in {home}", file=sys.stderr)
        raise
    for sentence in broken[:MOST_PRINTED]:
        print(sentence)
    print(line)
    if broken:
        (home / "violations").write_text("".join(f"{sentence}\n" for sentence in broken))
        print(f"repeat with: make chaos SEED={options.seed}; the instance's files are in {home}")
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
