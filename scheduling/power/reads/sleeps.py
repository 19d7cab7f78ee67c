"""Facts about sleeping nodes: boot times by GPU model, the demand of the last two weeks, and each node's candidacy."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Max, Q, Sum
from django.db.models.functions import Coalesce

from jobs.core.gpu_shares import WHOLE_GPU
from jobs.core.lifecycle import NodeFlag
from jobs.models import (
    Cluster,
    ClusterCommand,
    ClusterCommandKind,
    HoldKind,
    Job,
    Maintenance,
    Node,
    RepairStage,
    SleepMode,
)
from jobs.models.job import CHARGED_MILLI
from jobs.queries.busy_nodes import nodes_with_jobs
from scheduling.models import NodeSleep, NodeSleepState, NodeTest
from scheduling.power.rules.awake_nodes import RESERVE_DAYS, STEP_S
from scheduling.power.rules.sleep_plan import SleepCandidate, SleepRules, boot_time_s, needed_nodes

MAX_BOOTS = 200  # of the cluster, the newest
FAILURE_MEMORY = timedelta(days=30)
MAX_FAILED_WAKES = 2  # within that time; then the node does not sleep
DECLINE_MEMORY = timedelta(hours=12)
MAX_FAILURES_PER_DAY = 2  # of a cluster; then it falls back to proposals
WINDOW_LEAD = timedelta(hours=1)  # before a maintenance, its nodes stay awake
WAITING_FOR_NODES = ("Resources", "Priority", "None", "")  # wait reasons of jobs that only lack nodes
CLOSED_FOR_SLEEP = frozenset({NodeFlag.RESERVED, NodeFlag.PLANNED})

BUSY_STEPS_SQL = """
SELECT floor(extract(epoch FROM at) / %(step_s)s)::bigint AS step, max(busy_nodes) FROM jobs_clusterminute
WHERE cluster_id = %(cluster)s AND at >= %(since)s AND busy_nodes IS NOT NULL GROUP BY 1 ORDER BY 1
"""


def sleep_rules(cluster: Cluster) -> SleepRules:
    return SleepRules(
        reserve_nodes=cluster.sleep_reserve_nodes,
        min_awake_s=60.0 * cluster.min_awake_minutes,
        min_asleep_s=60.0 * cluster.min_asleep_minutes,
        max_wakes_per_day=cluster.max_wakes_per_day,
    )


class BootTimes:
    """How long nodes boot, by GPU model. One query."""

    def __init__(self, cluster: Cluster) -> None:
        self._default_s = 60.0 * cluster.boot_minutes
        self._boots: dict[str, list[float]] = defaultdict(list)
        ended = NodeSleep.objects.filter(cluster=cluster, state=NodeSleepState.AWAKE, wake_requested_at__isnull=False)
        columns = ("node__gpu_model", "wake_requested_at", "closed_at")
        for model, began, awake in ended.order_by("-closed_at").values_list(*columns)[:MAX_BOOTS]:
            self._boots[model].append((awake - began).total_seconds())

    def of(self, gpu_model: str) -> float:
        return boot_time_s(self._boots.get(gpu_model, ()), self._default_s)

    @property
    def longest_s(self) -> float:
        return max([boot_time_s(boots, self._default_s) for boots in self._boots.values()], default=self._default_s)


def remaining_boots(cluster: Cluster, nodes: list[Node], now: datetime) -> dict[int, float]:
    """By id of the nodes that sleep, fall asleep or wake up: in how many seconds they can run jobs if woken up now."""
    rows = NodeSleep.objects.active().filter(cluster=cluster)
    sleeps = dict(rows.values_list("node_id", "wake_requested_at"))
    asleep = [node for node in nodes if node.pk in sleeps or node.is_asleep]
    if not asleep:
        return {}
    boots = BootTimes(cluster)
    return {node.pk: _remaining_s(boots.of(node.gpu_model), sleeps.get(node.pk), now) for node in asleep}


def _remaining_s(boot_s: float, began: datetime | None, now: datetime) -> float:
    passed = (now - began).total_seconds() if began else 0.0
    return max(1.0, boot_s - passed)


def busy_history(cluster: Cluster, now: datetime) -> list[tuple[int, int]]:
    """The largest number of busy nodes of each ten minutes of the last two weeks."""
    since = now - timedelta(days=RESERVE_DAYS)
    with connection.cursor() as cursor:
        cursor.execute(BUSY_STEPS_SQL, {"step_s": STEP_S, "cluster": cluster.pk, "since": since})
        return [(int(step), int(nodes)) for step, nodes in cursor.fetchall()]


def queued_nodes(cluster: Cluster, soon: datetime) -> int:
    """How many nodes the waiting jobs would fill that could start by then: as many as their GPUs, and one for each
    node of a job without GPUs."""
    waiting = Job.objects.waiting().filter(cluster=cluster, hold=HoldKind.NONE, foreign_id="").order_by()
    ready = waiting.filter(Q(reason__in=WAITING_FOR_NODES) | Q(begin_at__lte=soon)).filter(
        Q(begin_at=None) | Q(begin_at__lte=soon)
    )
    milli = ready.aggregate(milli=Sum(CHARGED_MILLI))["milli"] or 0
    without_gpus = ready.filter(gpus_per_node=0, gpu_milli=0).aggregate(nodes=Coalesce(Sum("nodes"), 0))["nodes"]
    most = Node.objects.filter(cluster=cluster).most_whole_gpus()
    return without_gpus + math.ceil(milli / (WHOLE_GPU * max(1, most)))


def sleep_candidates(cluster: Cluster, now: datetime) -> list[SleepCandidate]:
    """All nodes that count as capacity. Nodes that wake up count as awake."""
    nodes = list(Node.objects.filter(cluster=cluster))
    states = dict(NodeSleep.objects.active().filter(cluster=cluster).values_list("node_id", "state"))
    since = _since_times(cluster, now)
    wakes = _recent_wakes(cluster, now)
    barred = _barred_nodes(cluster, nodes, now)
    busy = set(nodes_with_jobs().filter(cluster=cluster).values_list("pk", flat=True))
    return [
        SleepCandidate(
            id=node.pk,
            hardware=f"{node.gpus} {node.gpu_model} {node.nic_type}",
            is_asleep=states.get(node.pk) in (NodeSleepState.REQUESTED, NodeSleepState.ASLEEP),
            is_idle=node.pk not in busy,
            may_sleep=node.pk not in barred,
            since_s=since.get(node.pk, 0.0),
            wakes_today=wakes[node.pk],
        )
        for node in nodes
        if node.is_schedulable
    ]


def _since_times(cluster: Cluster, now: datetime) -> dict[int, float]:
    """When the nodes fell asleep, got a command to wake up, or have woken up."""
    rows = NodeSleep.objects.filter(cluster=cluster, requested_at__isnull=False)
    recent = rows.filter(Q(closed_at=None) | Q(closed_at__gt=now - timedelta(days=8)))
    last = (
        recent.order_by()
        .values_list("node")
        .annotate(at=Max(Coalesce("closed_at", "wake_requested_at", "requested_at")))
    )
    return {node: at.timestamp() for node, at in last}


def _recent_wakes(cluster: Cluster, now: datetime) -> Counter[int]:
    woken = NodeSleep.objects.filter(cluster=cluster, wake_requested_at__gt=now - timedelta(days=1))
    return Counter(woken.order_by().values_list("node_id", flat=True))


def _barred_nodes(cluster: Cluster, nodes: list[Node], now: datetime) -> set[int]:
    """Nodes that do not sleep: drained, tested or reserved ones, those that failed to wake up, and declined ones."""
    barred = {
        node.pk
        for node in nodes
        if node.is_drained or node.repair_stage != RepairStage.NONE or CLOSED_FOR_SLEEP.intersection(node.flags)
    }
    tests = ClusterCommand.objects.open().filter(cluster=cluster, kind=ClusterCommandKind.TEST)
    barred.update(tests.values_list("node_id", flat=True))
    names = {node.name: node.pk for node in nodes}
    for tested in NodeTest.objects.open().filter(cluster=cluster):
        barred.update(names[name] for name in tested.nodes if name in names)
    ended = NodeSleep.objects.filter(cluster=cluster).order_by()
    failed = ended.filter(state=NodeSleepState.FAILED, closed_at__gt=now - FAILURE_MEMORY)
    counts = Counter(failed.values_list("node_id", flat=True))
    barred.update(node for node, times in counts.items() if times >= MAX_FAILED_WAKES)
    declined = ended.filter(state=NodeSleepState.DECLINED, closed_at__gt=now - DECLINE_MEMORY)
    barred.update(declined.values_list("node_id", flat=True))
    return barred | _nodes_in_maintenance(cluster, nodes, now)


def _nodes_in_maintenance(cluster: Cluster, nodes: list[Node], now: datetime) -> set[int]:
    closed: set[int] = set()
    windows = Maintenance.objects.ahead(now).filter(cluster=cluster, cancelled_at=None)
    for window in windows.filter(start_at__lt=now + WINDOW_LEAD):
        ids = [node.pk for node in nodes] if window.whole_cluster else window.nodes.values_list("pk", flat=True)
        closed.update(ids)
    return closed


def needed_now(cluster: Cluster, nodes: Sequence[SleepCandidate], now: datetime) -> int:
    """How many nodes are to be awake."""
    boot_s = BootTimes(cluster).longest_s
    return needed_nodes(
        busy_history(cluster, now),
        busy=sum(not node.is_idle for node in nodes),
        queued=queued_nodes(cluster, now + timedelta(seconds=boot_s)),
        total=len(nodes),
        now_s=now.timestamp(),
        boot_s=boot_s,
        reserve=cluster.sleep_reserve_nodes,
    )


def effective_mode(cluster: Cluster, now: datetime) -> str:
    """The mode of the cluster, lowered while nodes fail to wake up."""
    failed = NodeSleep.objects.filter(cluster=cluster, state=NodeSleepState.FAILED)
    recent = failed.filter(closed_at__gt=now - timedelta(days=1)).count()
    is_lowered = cluster.sleep_mode == SleepMode.ACT and recent >= MAX_FAILURES_PER_DAY
    return str(SleepMode.PROPOSE) if is_lowered else cluster.sleep_mode
