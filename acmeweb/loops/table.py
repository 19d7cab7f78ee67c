"""All loops, in the groups of processes that run them.

A loop is periodic work: `jobs.models.Loop` says when it is due. Each group has processes of its own, so a loop can only
be delayed by the loops of its group. Within a group, the loop that has been due longest runs first, so none starves.
A request for a loop that is running makes it run once more; requests never pile up and never expire.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from failures.actions import incidents as incident_actions
from failures.loops import consult, diagnose, follow, learn, notify
from failures.loops.burn_in import burn_in_once
from failures.loops.node_health import node_health_once
from failures.loops.slow_steps import slow_steps_once
from failures.loops.stacks import stacks_once
from failures.loops.watch import watch_once
from failures.recovery.loop import decide_and_recover_once
from jobs.actions.bulk.background import run_bulk_actions_once
from jobs.actions.one_row import skip_row_on_error
from jobs.actions.retention import delete_expired_web_state
from jobs.models import Cluster, ClusterCommand, Job, LoopFailure, clock
from scheduling.actions.node_tests import start_node_test
from scheduling.backends import power_page, telemetry
from scheduling.clusters import circuit_breaker
from scheduling.clusters.connections import connect
from scheduling.clusters.node_clocks import set_clocks
from scheduling.evaluation.loops.campaigns import coordinate_campaigns_once, has_campaign_work
from scheduling.evaluation.loops.evaluation_rules import check_rules_once
from scheduling.evaluation.loops.staging import advance_stagings_once
from scheduling.ledger.loops.cluster_minutes import delete_old_minutes, record_minutes_once
from scheduling.ledger.loops.figures import update_ledger_metrics_once
from scheduling.ledger.loops.periods import store_periods_once
from scheduling.loops import pod_logs
from scheduling.loops.history import remember_ended_once
from scheduling.loops.observe import outcomes
from scheduling.loops.run_time_trees import train_trees_once
from scheduling.loops.start_estimates import estimate_starts_once
from scheduling.loops.sweep import request_overdue_turns
from scheduling.loops.telemetry import read_telemetry_once, roll_up_and_expire_once
from scheduling.loops.turn import run_turn
from scheduling.power.loops import energy
from scheduling.power.loops.caps import delete_old_caps, read_and_cap_once
from scheduling.power.loops.sleep import clusters_with_sleep, delete_old_sleeps, manage_sleep_once
from scheduling.power.loops.sleep_webhooks import call_sleep_webhooks_once, clusters_with_due_webhooks
from scheduling.power.reads.caps import clusters_with_caps
from scheduling.whatif.tasks import queue_simulation_worker

BULK_RUN_S = 20.0
IDLE_FACTOR, MAX_IDLE_INTERVAL = 5, timedelta(seconds=10)
LIMIT = timedelta(seconds=50)  # of one run; then it is interrupted and its process ends

GlobalRun = Callable[[datetime], object]
ClusterRun = Callable[[Cluster, datetime], object]


@dataclass(frozen=True, kw_only=True)
class PeriodicLoop:
    """One loop: `run` is global, `run_of_cluster` is called for each cluster."""

    name: str
    every: timedelta
    bound: timedelta  # it is late if its last run ended longer ago than this
    effect: str  # what it means for users that it is late
    pages: tuple[str, ...] = ()  # names of the URLs of pages that say it; empty: all pages
    limit: timedelta = LIMIT
    run: GlobalRun | None = None
    run_of_cluster: ClusterRun | None = None
    clusters: Callable[[], Collection[int]] | None = None  # those with work; default: all

    def next_interval(self, has_run: bool) -> timedelta:
        """A cluster without work is looked at less often."""
        return self.every if has_run else min(IDLE_FACTOR * self.every, max(self.every, MAX_IDLE_INTERVAL))


@dataclass(frozen=True, kw_only=True)
class LoopGroup:
    """Loops that share processes."""

    name: str
    processes: int
    loops: tuple[PeriodicLoop, ...]
    role: str = "loops"  # which database timeouts apply, see acmeweb.common.env.ROLE_TIMEOUTS
    niceness: int = 0  # if the CPU is short, work that cannot wait comes first

    @property
    def names(self) -> list[str]:
        return [loop.name for loop in self.loops]


def _turn(cluster: Cluster, now: datetime) -> bool:
    """Run a turn. A cluster without jobs is only looked at for the state of its nodes and for jobs from outside."""
    has_run = run_turn(cluster.pk, f"{socket.gethostname()}:{os.getpid()}", connect)
    return has_run and _has_work(cluster)


def _has_work(cluster: Cluster) -> bool:
    jobs = Job.objects.filter(cluster=cluster)
    open_commands = ClusterCommand.objects.open().filter(cluster=cluster)
    return jobs.live().exists() or jobs.waiting().exists() or open_commands.exists()


def _recovery(now: datetime) -> int:
    """Read the stack dumps of hanging jobs, then decide on recoveries, which may depend on the dumps."""
    return stacks_once(now) + decide_and_recover_once(clock.now(), start_node_test)


def _followed_logs(now: datetime) -> int:
    """Follow the logs, then record which log storage did not respond to this process."""
    followed = follow.follow_once(now)
    circuit_breaker.record_log_storage_state()
    return followed


def _late_diagnoses(now: datetime) -> int:
    """Diagnose attempts whose end became known late, for example after an outage of the cluster or of all workers."""
    done = diagnose.diagnose_once(now, since=diagnose.ALL_FAILURES)
    incident_actions.resolve_settled_incidents(clock.now())
    return done


def _campaigns(now: datetime) -> int:
    return advance_stagings_once(now) + coordinate_campaigns_once(clock.now()) if has_campaign_work() else 0


def _power_caps(cluster: Cluster, now: datetime) -> int:
    return read_and_cap_once(cluster, set_clocks, power_page.read_power)


def _clusters_with_due_webhooks() -> set[int]:
    return clusters_with_due_webhooks(clock.now())


def _samples(cluster: Cluster, now: datetime) -> int:
    return read_telemetry_once(cluster, telemetry.read_exporter) if cluster.metrics_address else 0


SWEEP_STEPS: tuple[GlobalRun, ...] = (
    request_overdue_turns,
    delete_old_minutes,
    delete_old_sleeps,
    energy.delete_old_energy,
    delete_old_caps,
    delete_expired_web_state,
    LoopFailure.delete_old,
    pod_logs.delete_old_logs_once,
    roll_up_and_expire_once,
)


def _sweep(now: datetime) -> None:
    for step in SWEEP_STEPS:
        with skip_row_on_error(step):
            step(clock.now())


def _bulk_actions(now: datetime) -> int:
    end = time.monotonic() + BULK_RUN_S
    return run_bulk_actions_once(clock.now, lambda: time.monotonic() >= end)


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


TURN = PeriodicLoop(
    name="turn",
    every=_seconds(1),
    bound=_seconds(30),
    effect="jobs neither start nor stop, and their states may be outdated",
    run_of_cluster=_turn,
)

GROUPS = (
    # A cluster that hangs occupies one process until the call times out, so there are several
    LoopGroup(name="turns", processes=3, loops=(TURN,)),
    LoopGroup(
        name="outcomes",
        processes=2,
        loops=(
            PeriodicLoop(
                name="outcomes",
                every=_seconds(2),
                bound=_seconds(30),
                effect="jobs that the cluster no longer lists keep their GPUs",
                run_of_cluster=partial(outcomes.find_cluster_outcomes_once, connect=connect),
                clusters=outcomes.clusters_with_missing_attempts,
            ),
            PeriodicLoop(
                name="unknown outcomes",
                every=_seconds(60),
                bound=_seconds(300),
                effect="jobs with an unknown outcome stay unknown",
                run_of_cluster=partial(outcomes.find_cluster_outcomes_once, connect=connect, again=True),
                clusters=outcomes.clusters_with_unknown_outcomes,
            ),
        ),
    ),
    LoopGroup(
        name="recovery",
        processes=1,
        loops=(
            PeriodicLoop(
                name="recovery",
                every=_seconds(2),
                bound=_seconds(30),
                effect="failed jobs wait for their restart",
                run=_recovery,
            ),
        ),
    ),
    LoopGroup(
        name="diagnosis",
        processes=2,
        loops=(
            PeriodicLoop(
                name="diagnosis",
                every=_seconds(2),
                bound=_seconds(60),
                effect="failed jobs wait for their diagnosis",
                run=diagnose.diagnose_once,
            ),
            PeriodicLoop(
                name="followed logs",
                every=_seconds(5),
                bound=_seconds(60),
                effect="steps that jobs print appear late, and hangs are noticed late",
                run=_followed_logs,
            ),
            PeriodicLoop(
                name="late diagnoses",
                every=_seconds(300),
                bound=_seconds(1200),
                effect="failures that became known late have no diagnosis",
                run=_late_diagnoses,
            ),
        ),
    ),
    # A cluster whose logs hang occupies one process
    LoopGroup(
        name="logs",
        processes=2,
        loops=(
            PeriodicLoop(
                name="pod logs",
                every=_seconds(2),
                bound=_seconds(60),
                effect="logs are copied late, and diagnoses wait for them",
                run_of_cluster=partial(pod_logs.copy_cluster_logs_once, connect=connect),
                clusters=pod_logs.clusters_with_pending_logs,
            ),
        ),
    ),
    LoopGroup(
        name="detection",
        processes=2,
        niceness=5,
        loops=(
            PeriodicLoop(
                name="watch",
                every=_seconds(15),
                bound=_seconds(90),
                effect="hangs and loss spikes are noticed late",
                run=watch_once,
            ),
            PeriodicLoop(
                name="node health",
                every=_seconds(30),
                bound=_seconds(180),
                effect="faults of nodes are noticed late",
                pages=("home", "failures", "nodes", "node"),
                run=node_health_once,
            ),
            PeriodicLoop(
                name="slow steps",
                every=_seconds(60),
                bound=_seconds(300),
                effect="slow steps are noticed late",
                pages=("home", "failures", "job"),
                run=slow_steps_once,
            ),
            PeriodicLoop(
                name="burn-ins",
                every=_seconds(15),
                bound=_seconds(180),
                effect="repaired nodes return late",
                pages=("home", "nodes", "node"),
                run=burn_in_once,
            ),
            PeriodicLoop(
                name="campaigns",
                every=_seconds(2),
                bound=_seconds(60),
                effect="evaluation campaigns do not advance",
                pages=("home", "campaigns", "campaign"),
                run=_campaigns,
            ),
            PeriodicLoop(
                name="evaluation rules",
                every=_seconds(5),
                bound=_seconds(120),
                effect="new checkpoints are evaluated late",
                pages=("home", "campaigns", "evaluation-rules"),
                run=check_rules_once,
            ),
        ),
    ),
    # Telemetry or a site's command that hangs occupies one process
    LoopGroup(
        name="power",
        processes=2,
        loops=(
            PeriodicLoop(
                name="power caps",
                every=_seconds(1),
                bound=_seconds(60),
                effect="power may exceed its budget",
                pages=("home", "queue", "nodes"),
                run_of_cluster=_power_caps,
                clusters=clusters_with_caps,
            ),
            PeriodicLoop(
                name="sleeping nodes",
                every=_seconds(10),
                bound=_seconds(120),
                effect="nodes neither sleep nor wake up",
                pages=("home", "queue", "nodes"),
                run_of_cluster=manage_sleep_once,
                clusters=clusters_with_sleep,
            ),
        ),
    ),
    LoopGroup(
        name="webhooks",
        processes=2,
        loops=(
            PeriodicLoop(
                name="sleep webhooks",
                every=_seconds(3),
                bound=_seconds(120),
                effect="nodes wake up late",
                pages=("home", "queue", "nodes"),
                run_of_cluster=call_sleep_webhooks_once,
                clusters=_clusters_with_due_webhooks,
            ),
        ),
    ),
    LoopGroup(
        name="notices",
        processes=1,
        niceness=5,
        loops=(
            PeriodicLoop(
                name="notices",
                every=_seconds(5),
                bound=_seconds(120),
                effect="messages about incidents are sent late",
                pages=("home", "failures", "channels"),
                run=notify.notify_once,
            ),
        ),
    ),
    LoopGroup(
        name="background",
        processes=2,
        niceness=10,
        loops=(
            PeriodicLoop(
                name="estimates",
                every=_seconds(30),
                bound=_seconds(300),
                effect="start estimates are outdated",
                pages=("home", "queue", "job"),
                run_of_cluster=estimate_starts_once,
            ),
            PeriodicLoop(
                name="history",
                every=_seconds(10),
                bound=_seconds(300),
                effect="run times of recent jobs do not count for predictions yet",
                pages=("home", "queue"),
                run_of_cluster=remember_ended_once,
            ),
            PeriodicLoop(
                name="telemetry",
                every=_seconds(15),
                bound=_seconds(120),
                effect="utilization and temperatures are outdated",
                pages=("home", "map", "nodes", "node", "job"),
                run_of_cluster=_samples,
            ),
            # Three runs per minute, of which the first writes: one late run must not leave a gap
            PeriodicLoop(
                name="cluster minutes",
                every=_seconds(20),
                bound=_seconds(180),
                effect="charts of the cluster's use have gaps",
                pages=("home", "reports"),
                run=record_minutes_once,
            ),
            PeriodicLoop(
                name="energy",
                every=_seconds(60),
                bound=_seconds(600),
                effect="energy is counted late",
                pages=("home", "reports"),
                run_of_cluster=energy.count_energy_once,
                clusters=energy.clusters_with_telemetry,
            ),
            PeriodicLoop(
                name="ledger figures",
                every=_seconds(300),
                bound=_seconds(1200),
                effect="goodput on the home page is outdated",
                pages=("home", "reports"),
                run=update_ledger_metrics_once,
            ),
            PeriodicLoop(
                name="ledger",
                every=_seconds(60),
                bound=_seconds(600),
                effect="reports take longer",
                pages=("home", "reports"),
                run=store_periods_once,
            ),
            PeriodicLoop(
                name="simulations",
                every=_seconds(5),
                bound=_seconds(120),
                effect="what-if replays begin late",
                pages=("home", "replays", "replay"),
                run=queue_simulation_worker,
            ),
            PeriodicLoop(
                name="sweep",
                every=_seconds(300),
                bound=_seconds(3600),
                effect="old rows are deleted late",
                pages=("home",),
                run=_sweep,
            ),
        ),
    ),
    LoopGroup(
        name="bulk",
        processes=1,
        loops=(
            PeriodicLoop(
                name="bulk actions",
                every=_seconds(5),
                bound=_seconds(60),
                effect="actions on many jobs do not advance",
                run=_bulk_actions,
            ),
        ),
    ),
    # Runs for minutes, and no other loop depends on it
    LoopGroup(
        name="learning",
        processes=2,
        niceness=10,
        role="long",
        loops=(
            PeriodicLoop(
                name="run time trees",
                every=_seconds(600),
                bound=_seconds(7200),
                limit=_seconds(540),
                effect="predictions of run times do not improve",
                pages=("home", "queue"),
                run_of_cluster=train_trees_once,
            ),
            PeriodicLoop(
                name="lessons",
                every=_seconds(60),
                bound=_seconds(3600),
                effect="confirmed diagnoses are learned late",
                pages=("home", "rules"),
                run=learn.learn_once,
            ),
            # The time budget of the loop ends it much earlier
            PeriodicLoop(
                name="consultations",
                every=_seconds(15),
                bound=_seconds(3600),
                limit=_seconds(1300),
                effect="the model is asked late about failures",
                pages=("home", "failures", "model"),
                run=consult.consult_once,
            ),
        ),
    ),
)

ALL_LOOPS = {loop.name: loop for group in GROUPS for loop in group.loops}
