"""Simulate: carry out the replays that people asked for, one at a time.

Who is eligible   simulations that wait, the fewest tries first, then the oldest; and those whose worker has said
                  nothing for a minute.
What a turn does  takes one (RUNNING, with the number of this try), replays it under each policy, says every second how
                  far it is, and writes the report. No transaction is open meanwhile.
Failure story     Killed at any instruction: the row falls silent and is taken again, from the start, since a replay
                  leaves nothing behind; after three tries it fails with a sentence. Two workers: taking is under a
                  lock, and one replay at a time leaves the other worker to the clusters. Somebody cancels, or a worker
                  that was taken for dead wakes up: its next report finds the row in other hands, and the replay ends
                  at once. A message that was lost: beat asks again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from jobs.actions.retention import delete_batch
from jobs.traces.trace import Trace
from scheduling.actions import simulations as actions
from scheduling.actions import traces as trace_actions
from scheduling.actions.simulations import SimulationStateConflict
from scheduling.engine.settings import MissingLibrary
from scheduling.models import UNFINISHED_STATES, UPLOAD_PREFIX, Simulation, UploadedTrace
from scheduling.queries.replay_settings import MAX_TRACE_JOBS, replay_setting
from scheduling.queries.traces import history_trace, load_uploaded_trace
from scheduling.replay import acme_trace, requests
from scheduling.replay.requests import InvalidReplaySetting
from scheduling.replay.run import ReplaySetting
from scheduling.replay.timed_runs import measure_run

log = logging.getLogger(__name__)

SIMULATION_RETENTION = timedelta(days=90)
REPORT_INTERVAL_S = 1.0


def run_simulation_once(clock: Callable[[], datetime], report_s: float = REPORT_INTERVAL_S) -> Simulation | None:
    """Carry out the next one. Return it, or None if there is nothing to do."""
    simulation = actions.claim_simulation(clock())
    if simulation is None:
        return None
    try:
        result = _replay_policies(simulation, clock, report_s)
        actions.finish(simulation, result, clock())
    except SimulationStateConflict as gone:
        log.info("%s", gone)
    except (InvalidReplaySetting, MissingLibrary) as refused:
        _fail(simulation, str(refused), clock)
    except SoftTimeLimitExceeded:
        _fail(simulation, "It took longer than a replay may take here; ask for fewer jobs or policies.", clock)
    except Exception:
        log.exception("simulation %s", simulation)
        _fail(simulation, "It failed for a reason of ours; the log of the worker says more.", clock)
    return simulation


def _fail(simulation: Simulation, error: str, clock: Callable[[], datetime]) -> None:
    try:
        actions.fail(simulation, error, clock())
    except SimulationStateConflict as gone:
        log.info("%s", gone)


def _replay_policies(simulation: Simulation, clock: Callable[[], datetime], report_s: float) -> dict[str, Any]:
    history, setting = _trace_and_setting(simulation.trace, simulation.params, simulation.created_at)
    if not len(history):
        raise InvalidReplaySetting("trace", f"{history.source} holds no job that ran")
    if (
        simulation.trace.removeprefix("acme:") not in acme_trace.PUBLISHED_CLUSTERS
    ):  # whose teams were known when it was asked for
        requests.check_quota_teams(setting.quotas, set(history.pools.words))
    special = simulation.params.get("policy_settings", {})
    watch = _ProgressReporter(simulation, len(history), clock, report_s)
    runs = []
    for number, policy in enumerate(simulation.policies):
        watch.begin(number, len(simulation.policies))
        mine = replace(setting, policy_settings=special.get(policy, {}))
        runs.append(measure_run(history, policy, mine, watch)[1])
    result: dict[str, Any] = {"runs": runs, "jobs": len(history), "source": history.source}
    if site := acme_trace.PUBLISHED_CLUSTERS.get(simulation.trace.removeprefix("acme:")):
        gaps = acme_trace.distances(history, site)
        result["distances"] = [{"of": one.of, "points": round(one.points, 3), "jobs": one.jobs} for one in gaps]
    return result


def _trace_and_setting(trace: str, params: dict[str, Any], created_at: datetime) -> tuple[Trace, ReplaySetting]:
    setting = replay_setting(trace, params)
    if trace == "history":
        until = datetime.fromisoformat(params["until"]) if "until" in params else created_at
        since = until - timedelta(days=params["days"])
        return history_trace(params["cluster"], since, until, MAX_TRACE_JOBS, params.get("teams")), setting
    if trace.startswith(UPLOAD_PREFIX):
        try:
            return load_uploaded_trace(int(trace.removeprefix(UPLOAD_PREFIX))), setting
        except UploadedTrace.DoesNotExist:
            raise InvalidReplaySetting("trace", "it was removed before its turn came") from None
    name = trace.removeprefix("acme:")
    return acme_trace.draw_trace(
        acme_trace.PUBLISHED_CLUSTERS[name], name, jobs=params.get("jobs"), seed=params.get("seed", 0)
    ), setting


class _ProgressReporter:
    """Says how far the replay is, at most once a second; ends it when it is no longer wanted."""

    def __init__(self, simulation: Simulation, jobs: int, clock: Callable[[], datetime], report_s: float) -> None:
        self._simulation, self._jobs, self._clock, self._report_s = simulation, jobs, clock, report_s
        self._policy, self._policies = 0, 1
        self._told = time.monotonic()

    def begin(self, policy: int, policies: int) -> None:
        self._policy, self._policies = policy, policies
        self._report_progress(0)

    def __call__(self, come: int) -> None:
        if time.monotonic() - self._told >= self._report_s:
            self._report_progress(come)

    def _report_progress(self, come: int) -> None:
        part = (self._policy + come / self._jobs) / self._policies
        actions.report_progress(self._simulation, min(99.9, 100 * part), self._clock())
        self._told = time.monotonic()


SIMULATION_DELETE_BATCH = 200  # at once: each holds megabytes


def delete_old_simulations(now: datetime) -> int:
    """Ended ones are kept for a quarter of a year, and traces for as long after they were used."""
    trace_actions.delete_unused_traces(now)
    ended = Simulation.objects.exclude(state__in=UNFINISHED_STATES)
    return delete_batch(ended.filter(ended_at__lt=now - SIMULATION_RETENTION), SIMULATION_DELETE_BATCH)


def has_free_simulation(now: datetime) -> bool:
    return Simulation.objects.free(now).exists()
