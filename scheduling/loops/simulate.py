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
from django.db.models import Max

from jobs.models import Node
from jobs.retention import delete_batch
from jobs.traces.trace import Trace
from scheduling import simulation_actions as actions
from scheduling import trace_actions
from scheduling.engine.settings import Missing
from scheduling.history import brought, trace_of
from scheduling.models import UNFINISHED, UPLOAD, Simulation, UploadedTrace
from scheduling.simulation_actions import Gone
from scheduling.simulator import acme, asking
from scheduling.simulator.asking import BadSetting
from scheduling.simulator.measured import measured
from scheduling.simulator.run import Setting

log = logging.getLogger(__name__)

KEPT = timedelta(days=90)
REPORT_S = 1.0
MOST_JOBS = 700_000  # the whole of Seren
MOST_REPLAYED = 2_000_000  # jobs times policies
MOST_DAYS = 366


def simulate_once(clock: Callable[[], datetime], report_s: float = REPORT_S) -> Simulation | None:
    """Carry out the next one. Return it, or None if there is nothing to do."""
    simulation = actions.take(clock())
    if simulation is None:
        return None
    try:
        result = _carried_out(simulation, clock, report_s)
        actions.finish(simulation, result, clock())
    except Gone as gone:
        log.info("%s", gone)
    except (BadSetting, Missing) as refused:
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
    except Gone as gone:
        log.info("%s", gone)


def _carried_out(simulation: Simulation, clock: Callable[[], datetime], report_s: float) -> dict[str, Any]:
    history, setting = _wanted(simulation.trace, simulation.params, simulation.created_at)
    if not len(history):
        raise BadSetting("trace", f"{history.source} holds no job that ran")
    if simulation.trace.removeprefix("acme:") not in acme.SITES:  # whose teams were known when it was asked for
        asking.keep_to(setting.quotas, set(history.pools.words))
    special = simulation.params.get("policy_settings", {})
    watch = _Watch(simulation, len(history), clock, report_s)
    runs = []
    for number, policy in enumerate(simulation.policies):
        watch.begin(number, len(simulation.policies))
        mine = replace(setting, policy_settings=special.get(policy, {}))
        runs.append(measured(history, policy, mine, watch)[1])
    result: dict[str, Any] = {"runs": runs, "jobs": len(history), "source": history.source}
    if site := acme.SITES.get(simulation.trace.removeprefix("acme:")):
        gaps = acme.distances(history, site)
        result["distances"] = [{"of": one.of, "points": round(one.points, 3), "jobs": one.jobs} for one in gaps]
    return result


def _wanted(trace: str, params: dict[str, Any], created_at: datetime) -> tuple[Trace, Setting]:
    setting = setting_of(trace, params)
    if trace == "history":
        until = datetime.fromisoformat(params["until"]) if "until" in params else created_at
        since = until - timedelta(days=params["days"])
        return trace_of(params["cluster"], since, until, MOST_JOBS, params.get("teams")), setting
    if trace.startswith(UPLOAD):
        try:
            return brought(int(trace.removeprefix(UPLOAD))), setting
        except UploadedTrace.DoesNotExist:
            raise BadSetting("trace", "it was removed before its turn came") from None
    name = trace.removeprefix("acme:")
    return acme.drawn(acme.SITES[name], name, jobs=params.get("jobs"), seed=params.get("seed", 0)), setting


def setting_of(trace: str, params: dict[str, Any]) -> Setting:
    """What was asked, with what the trace itself says where nothing was. Raises BadSetting."""
    given = {name: params[name] for name in asking.NAMES if name in params}
    if site := acme.SITES.get(trace.removeprefix("acme:")):
        given.setdefault("nodes", site.nodes)
    elif trace == "history":
        given = _shape(params["cluster"]) | given
    return asking.setting(**given, quotas=asking.quotas_of(params["quota"]) if "quota" in params else ())


def _shape(cluster: str) -> dict[str, int]:
    """What the cluster has: the replay's nodes are alike, so all get the GPUs of the largest."""
    nodes = Node.objects.filter(cluster__name=cluster, gpus__gt=0)
    most = nodes.aggregate(Max("gpus"))["gpus__max"]
    return {"nodes": nodes.count(), "gpus_per_node": most} if most else {}


class _Watch:
    """Says how far the replay is, at most once a second; ends it when it is no longer wanted."""

    def __init__(self, simulation: Simulation, jobs: int, clock: Callable[[], datetime], report_s: float) -> None:
        self._simulation, self._jobs, self._clock, self._report_s = simulation, jobs, clock, report_s
        self._policy, self._policies = 0, 1
        self._told = time.monotonic()

    def begin(self, policy: int, policies: int) -> None:
        self._policy, self._policies = policy, policies
        self._report(0)

    def __call__(self, come: int) -> None:
        if time.monotonic() - self._told >= self._report_s:
            self._report(come)

    def _report(self, come: int) -> None:
        part = (self._policy + come / self._jobs) / self._policies
        actions.report(self._simulation, min(99.9, 100 * part), self._clock())
        self._told = time.monotonic()


MOST_FORGOTTEN = 200  # at once: each holds megabytes


def forget_once(now: datetime) -> int:
    """Ended ones are kept for a quarter of a year, and traces for as long after they were used."""
    trace_actions.forget_once(now)
    ended = Simulation.objects.exclude(state__in=UNFINISHED)
    return delete_batch(ended.filter(ended_at__lt=now - KEPT), MOST_FORGOTTEN)


def wanted(now: datetime) -> bool:
    return Simulation.objects.free(now).exists()
