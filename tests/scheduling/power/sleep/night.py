"""A night and a morning on a cluster with real time: hours of the past are rows that the loop of minutes would have
written."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from failures.loops.diagnose import diagnose_once
from jobs.actions import jobs as job_actions
from jobs.models import Attempt, Cluster, ClusterMinute, Job, Node, clock
from scheduling.backends.base import Backend
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules.parts import US_PER_HOUR
from scheduling.loops.turn import run_turn
from scheduling.models import NodeSleep
from scheduling.power.loops.sleep import manage_sleep_once
from scheduling.power.loops.sleep_webhooks import call_sleep_webhooks_once
from tests import make
from tests.failures.make import decide_and_recover_once
from tests.patience import until

SETTINGS = {"sleep_mode": "act", "sleep_reserve_nodes": 1, "min_awake_minutes": 0, "min_asleep_minutes": 0}


class Night:
    def __init__(self, cluster: Cluster, backend: Backend) -> None:
        self.cluster, self.backend = cluster, backend

    def look(self) -> None:
        """One turn of every loop that takes part."""
        run_turn(self.cluster.pk, "test", lambda _: self.backend)
        manage_sleep_once(Cluster.objects.get(pk=self.cluster.pk), clock.now())
        call_sleep_webhooks_once(Cluster.objects.get(pk=self.cluster.pk), clock.now())
        diagnose_once(clock.now())
        decide_and_recover_once(clock.now())

    def once(self, is_so, what: str):
        def look():
            self.look()
            return is_so()

        return until(look, what=what)

    def write_past(self, busy_nodes: int) -> None:
        """The last two days had so many nodes with jobs."""
        ClusterMinute.objects.all().delete()
        now = clock.now().replace(second=0, microsecond=0)
        empty = {"gpus": 0, "allocated": 0, "closed": 0, "running": 0, "waiting": 0, "requested": 0}
        ClusterMinute.objects.bulk_create(
            ClusterMinute(cluster=self.cluster, at=now - timedelta(minutes=10 * step), busy_nodes=busy_nodes, **empty)
            for step in range(1, 288)
        )

    def submit(self, count: int, **asked) -> list[Job]:
        return make.jobs(*({"nodes": 1, "gpus_per_node": 8, **asked} for _ in range(count)), cluster=self.cluster)

    def end_all_jobs(self) -> None:
        for job in Job.objects.live():
            job_actions.cancel(job, author=make.author())
        self.once(lambda: not Attempt.objects.live().exists(), "the end of the jobs")

    def states(self) -> Counter[str]:
        return Counter(NodeSleep.objects.values_list("state", flat=True))

    def running(self, jobs: list[Job]) -> int:
        return Attempt.objects.live().filter(job__in=jobs, confirmed_at__isnull=False).count()

    def flags(self) -> Counter[str]:
        """What the cluster itself reports."""
        return Counter(flag for node in self.backend.nodes() for flag in node.flags)

    def hours_by_bucket(self) -> dict[str, float]:
        table = ledger_table.table("cluster", self.cluster.created_at, clock.now())
        assert sum(table.gpu_us.values()) == table.capacity_us
        return {str(bucket): us / US_PER_HOUR for bucket, us in table.gpu_us.items() if us}

    def wait_for_nodes(self, count: int) -> None:
        self.once(lambda: Node.objects.usable().count() == count, "nodes")
