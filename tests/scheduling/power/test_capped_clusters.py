"""Power caps on simulated clusters: from their telemetry through the loop to the clocks of their machines and back."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest

from jobs.models import Attempt, Cluster, Event, clock
from scheduling.backends.power_page import read_power
from scheduling.backends.telemetry import read_exporter
from scheduling.clusters.node_clocks import set_clocks
from scheduling.loops.telemetry import write_samples_once
from scheduling.loops.turn import run_turn
from scheduling.models import PowerBudget, PowerCap
from scheduling.power.loops.caps import cap_power_once
from tests import make
from tests.patience import until
from tests.scheduling.backends.kubernetes.simulated_kubernetes import TEMPLATE, open_kubernetes, prepare
from tests.scheduling.power.cap_make import POLL, budget
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess
from tests.scheduling.simulation.slurm.running import ClusterProcess

pytestmark = pytest.mark.django_db(transaction=True)
LONG = {"environment": {"SIM_DURATION_S": "86400", "SIM_END": "COMPLETED"}}


class CappedCluster:
    """A simulated cluster with an evaluation and a pretraining. Each poll is 15 s later than the last one. It reads the
    power only, or writes samples."""

    def __init__(self, cluster: Cluster, backend, metrics: str, *, has_samples: bool = False) -> None:
        self.cluster, self.backend, self.metrics, self.now = cluster, backend, metrics, clock.now()
        self.has_samples = has_samples

    def run_jobs(self) -> None:
        asked = [{"kind": kind, "nodes": 1, "gpus_per_node": 8, **LONG} for kind in ("evaluation", "pretrain")]
        until(lambda: self.turn() or self.cluster.nodes.count() == 3, what="nodes")
        make.jobs(*asked, cluster=self.cluster)
        running = Attempt.objects.live().filter(confirmed_at__isnull=False)
        until(lambda: self.turn() or running.count() == 2, what="two running jobs")
        until(lambda: self.power_w() > 3500, what="the load of the pretraining")  # it begins with the program

    def turn(self) -> None:
        run_turn(self.cluster.pk, "test", lambda _: self.backend)
        self.cluster = Cluster.objects.get(pk=self.cluster.pk)

    def power_w(self) -> float:
        return sum(gpu.power_w or 0 for gpu in read_exporter(self.metrics).gpus)

    def poll(self, limit_w: float = 0) -> PowerBudget:
        self.now += POLL
        if limit_w:
            PowerBudget.objects.update(limit_w=round(limit_w))
        if self.has_samples:
            write_samples_once(self.cluster, read_exporter(self.metrics), self.now)
        page = None if self.has_samples else read_power(self.metrics)
        cap_power_once(self.cluster, set_clocks, self.now, page)
        return PowerBudget.objects.get()

    def node_of(self, kind: str) -> str:
        return Attempt.objects.live().get(job__kind=kind).nodelist


def check_caps_and_release(one: CappedCluster, clocks) -> None:
    """`clocks` asks the cluster itself for the clocks of its machines."""
    one.run_jobs()
    budget(cluster=one.cluster, mode="observe", limit_w=10**9)
    free_w, free_gpus_w = one.poll().measured_w, one.power_w()
    PowerBudget.objects.update(mode="act")

    row = one.poll(free_w / 0.85)
    assert (row.level, row.command_error) == (1, "")
    assert clocks() == {one.node_of("evaluation"): 1275}
    row = one.poll(free_w / 1.2)
    assert row.level == 4 and set(clocks().values()) == {288} and len(clocks()) == 3
    assert one.power_w() < 0.6 * free_gpus_w
    row = one.poll()
    assert row.measured_w < 0.8 * free_w, "the readings show the cap"

    for _ in range(20):
        row = one.poll(10 * free_w)
    assert row.level == 0 and clocks() == {}
    until(lambda: one.power_w() > 0.9 * free_gpus_w, what="full power")  # a checkpoint needs little power
    assert [cap.level for cap in PowerCap.objects.order_by("began_at")] == [1, 4, 3, 2, 1]
    for job in ("evaluation", "pretrain"):
        types = Event.objects.filter(job__kind=job, type__startswith="job.clocks").order_by("pk")
        assert list(types.values_list("type", flat=True)) == ["job.clocks_capped", "job.clocks_released"]


def test_caps_on_a_simulated_slurm_cluster(tmp_path):
    with ClusterProcess(tmp_path / "seren", "--nodes", "3") as process:
        cluster = make.cluster(nodes=0, policy="fifo", address=process.address, log_root=str(process.log_root))
        token = tmp_path / "token"
        token.write_text(process.token)
        Cluster.objects.filter(pk=cluster.pk).update(token_file=str(token), is_bundled=True, api_user="acme")
        one = CappedCluster(cluster, process.backend(), f"{process.address}/metrics")

        check_caps_and_release(
            one, lambda: httpx.get(f"{process.address}/clocks", headers=process.headers).json()["clocks"]
        )


def test_caps_on_a_simulated_kubernetes_cluster(tmp_path):
    with (
        KubernetesProcess(tmp_path / "state", "--nodes", "3") as process,
        closing(open_kubernetes(kubeconfig := prepare(process))) as backend,
    ):
        cluster = make.cluster(
            nodes=0,
            policy="fifo",
            address=f"kubernetes://{kubeconfig}",
            pod_template=TEMPLATE,
            is_bundled=True,
        )
        one = CappedCluster(cluster, backend, f"{process.address}/metrics", has_samples=True)

        check_caps_and_release(one, lambda: process.call("GET", "/clocks")["clocks"])
