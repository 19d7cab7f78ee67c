"""Run the requested replays, one at a time.

Eligible rows     Pending simulations, those with the fewest tries first, then the oldest, and simulations whose worker
                  has been silent for a minute.
What a turn does  Claims one simulation (RUNNING, with the number of the try), replays it under each policy, reports the
                  progress every second, and writes the result. No transaction is open during the replay.
Failure story     Killed anywhere: the simulation is claimed again and starts over, because a replay leaves nothing
                  behind; after three tries it fails. Two workers: the claim takes a lock, and only one replay runs at a
                  time, which leaves the other workers to the clusters. A user cancels, or a worker that was presumed
                  dead returns: its next progress report fails, and its replay ends at once. A lost wake-up message:
                  a loop sends another one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from acmeweb.common.errors import ClaimLost, InvalidField
from jobs.actions.retention import delete_batch
from jobs.traces.trace import Trace
from scheduling.engine.settings import MissingLibrary
from scheduling.models import UNFINISHED_STATES, UPLOAD_PREFIX, Simulation, UploadedTrace
from scheduling.whatif.actions import simulations as simulation_actions
from scheduling.whatif.actions import traces as trace_actions
from scheduling.whatif.reads.simulations import MAX_TRACE_JOBS, replay_setting
from scheduling.whatif.reads.traces import history_trace, load_uploaded_trace, recorded_attempts
from scheduling.whatif.replay import acme_trace, requests
from scheduling.whatif.replay.recorded import attempts_from_queue_times, recorded_run, recorded_summary
from scheduling.whatif.replay.run import ReplaySetting
from scheduling.whatif.replay.timed_runs import measure_run

log = logging.getLogger(__name__)

SIMULATION_RETENTION = timedelta(days=90)
REPORT_INTERVAL_S = 1.0


def run_simulation_once(clock: Callable[[], datetime], report_s: float = REPORT_INTERVAL_S) -> Simulation | None:
    """Run the next simulation. Return it, or None if there is none."""
    simulation = simulation_actions.claim_simulation(clock())
    if simulation is None:
        return None
    try:
        result = _replay_policies(simulation, clock, report_s)
        simulation_actions.finish(simulation, result, clock())
    except ClaimLost as conflict:
        log.info("%s", conflict)
    except (InvalidField, MissingLibrary) as error:
        _fail(simulation, str(error), clock)
    except SoftTimeLimitExceeded:
        _fail(simulation, "The replay exceeded the time limit. Use fewer jobs or policies.", clock)
    except Exception:
        log.exception("simulation %s", simulation)
        _fail(simulation, "Internal error. The log of the worker has details.", clock)
    return simulation


def _fail(simulation: Simulation, error: str, clock: Callable[[], datetime]) -> None:
    try:
        simulation_actions.fail(simulation, error, clock())
    except ClaimLost as conflict:
        log.info("%s", conflict)


def _replay_policies(simulation: Simulation, clock: Callable[[], datetime], report_s: float) -> dict[str, Any]:
    history, setting = _trace_and_setting(simulation.trace, simulation.params, simulation.created_at)
    if not len(history):
        raise InvalidField("trace", f"{history.source} contains no job that ran")
    if (
        simulation.trace.removeprefix("acme:") not in acme_trace.PUBLISHED_CLUSTERS
    ):  # the teams of published traces were checked with the request
        requests.check_quota_teams(setting.quotas, set(history.pools.words))
    requests.check_profiled_jobs(setting, history)
    special = simulation.params.get("policy_settings", {})
    watch = _ProgressReporter(simulation, len(history), clock, report_s)
    runs: list[dict[str, Any]] = []
    replayed: set[str] = set()
    for number, policy in enumerate(simulation.policies):
        watch.begin(number, len(simulation.policies))
        policy_setting = replace(setting, policy_settings=special.get(policy, {}))
        run, summary = measure_run(history, policy, policy_setting, watch)
        runs.append(summary)
        replayed = replayed or set(run.trace.ids)
    recorded = _recorded_summary(simulation, history, setting, replayed)
    result: dict[str, Any] = {"runs": runs, "recorded": recorded, "jobs": len(history), "source": history.source}
    if site := acme_trace.PUBLISHED_CLUSTERS.get(simulation.trace.removeprefix("acme:")):
        gaps = acme_trace.distances(history, site)
        result["distances"] = [{"of": gap.of, "points": round(gap.points, 3), "jobs": gap.jobs} for gap in gaps]
    return result


def _recorded_summary(
    simulation: Simulation, history: Trace, setting: ReplaySetting, replayed: set[str]
) -> dict[str, Any] | None:
    """Return the figures of the same jobs as they really ran; None if the trace does not contain them."""
    if simulation.trace == "history":
        cluster = simulation.params["cluster"]
        setting, attempts = replay_setting("history", {"cluster": cluster}), recorded_attempts(cluster, history)
    elif (found := attempts_from_queue_times(history)) is not None:
        setting, attempts = replace(setting, load=100), found
    else:
        return None
    return recorded_summary(recorded_run(history, attempts, setting, replayed))


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
            raise InvalidField("trace", "the trace was removed before the simulation started") from None
    name = trace.removeprefix("acme:")
    return acme_trace.draw_trace(
        acme_trace.PUBLISHED_CLUSTERS[name], name, jobs=params.get("jobs"), seed=params.get("seed", 0)
    ), setting


class _ProgressReporter:
    """Reports the progress of a replay, at most once a second. Raises ClaimLost, which ends the replay, if it was
    cancelled or taken over."""

    def __init__(self, simulation: Simulation, jobs: int, clock: Callable[[], datetime], report_s: float) -> None:
        self._simulation, self._jobs, self._clock, self._report_s = simulation, jobs, clock, report_s
        self._policy, self._policies = 0, 1
        self._reported_at = time.monotonic()

    def begin(self, policy: int, policies: int) -> None:
        self._policy, self._policies = policy, policies
        self._report_progress(0)

    def __call__(self, submitted: int) -> None:
        if time.monotonic() - self._reported_at >= self._report_s:
            self._report_progress(submitted)

    def _report_progress(self, submitted: int) -> None:
        part = (self._policy + submitted / self._jobs) / self._policies
        simulation_actions.report_progress(self._simulation, min(99.9, 100 * part), self._clock())
        self._reported_at = time.monotonic()


SIMULATION_DELETE_BATCH = 200  # rows have megabytes each


def delete_old_simulations(now: datetime) -> int:
    """Delete old simulations and unused traces. Return how many simulations were deleted."""
    trace_actions.delete_unused_traces(now)
    ended = Simulation.objects.exclude(state__in=UNFINISHED_STATES)
    return delete_batch(ended.filter(ended_at__lt=now - SIMULATION_RETENTION), SIMULATION_DELETE_BATCH)


def has_free_simulation(now: datetime) -> bool:
    return Simulation.objects.free(now).exists()
