"""A night and a morning: on a simulated Slurm cluster, also with a node that does not wake, and on Kubernetes."""

from __future__ import annotations

import ipaddress
from contextlib import closing

import httpx
import pytest

from failures.models import Incident
from jobs.actions import recovery as recovery_actions
from jobs.core.lifecycle import NodeFlag
from jobs.models import Attempt, Node
from scheduling.models import NodeSleep, NodeSleepState
from scheduling.power.loops.sleep_webhooks import sleep_webhook_secret
from tests import make
from tests.scheduling.backends.kubernetes.simulated_kubernetes import TEMPLATE, open_kubernetes, prepare
from tests.scheduling.power.sleep.night import SETTINGS, Night
from tests.scheduling.power.sleep.receiver import site_webhook
from tests.scheduling.simulation.kubernetes.running import KubernetesProcess
from tests.scheduling.simulation.slurm.running import ClusterProcess

pytestmark = pytest.mark.django_db(transaction=True)
NODES = 6
POWER_TIMES = ("--suspend-s", "0.3", "--boot-s", "2", "--resume-timeout-s", "4")
LONG = {"environment": {"SIM_DURATION_S": "86400", "SIM_END": "COMPLETED"}}


@pytest.fixture
def simulated(tmp_path):
    with ClusterProcess(tmp_path / "seren", "--nodes", str(NODES), *POWER_TIMES) as process:
        cluster = make.cluster(
            nodes=0, policy="fifo", address=process.address, log_root=str(process.log_root), **SETTINGS
        )
        recovery_actions.set_recovery_mode("act", author=make.LOOP)
        yield process, Night(cluster, process.backend())


def fall_asleep(night: Night) -> None:
    """The evening and the night: while jobs run nothing sleeps, then all nodes but the reserve do."""
    night.wait_for_nodes(NODES)
    night.write_past(NODES - 1)
    evening = night.submit(NODES - 1, **LONG)
    night.once(lambda: night.running(evening) == NODES - 1, "the jobs of the evening")
    assert night.states() == {}
    night.end_all_jobs()
    night.look()
    assert night.states() == {}, "the demand of the last half hour is still needed"
    night.write_past(0)
    night.once(lambda: night.states() == {"asleep": NODES - 1}, "all nodes but the reserve asleep")


def test_night_and_morning_on_a_simulated_slurm(simulated):
    _, night = simulated
    fall_asleep(night)
    assert night.flags() == {NodeFlag.POWERED_DOWN: NODES - 1}

    morning = night.submit(NODES, **LONG)
    night.look()

    assert Attempt.objects.live().filter(job__in=morning).count() == NODES, "no job waits for the loop"
    sleeps = NodeSleep.objects.filter(wake_requested_at__isnull=False)
    assert [sleep.wake_why for sleep in sleeps] == ["A job starts on it."] * (NODES - 1)
    night.once(lambda: night.running(morning) == NODES, "the jobs of the morning")
    night.once(lambda: night.states() == {"awake": NODES - 1}, "all nodes awake")
    assert night.flags() == {}
    spent = night.hours_by_bucket()
    assert spent["asleep"] > 0 and "down" not in spent and "drained" not in spent
    assert not Incident.objects.exists()


def test_demand_of_the_morning_wakes_nodes_before_jobs_come(simulated):
    _, night = simulated
    fall_asleep(night)

    night.write_past(3)

    night.once(lambda: night.states() == {"asleep": NODES - 1 - 3, "awake": 3}, "nodes for the forecast")


def test_job_runs_elsewhere_if_its_node_does_not_wake(simulated):
    process, night = simulated
    fall_asleep(night)
    broken = NodeSleep.objects.filter(state=NodeSleepState.ASLEEP).order_by("node__name").first().node
    fault = {"kind": "no_wake", "node": broken.name}
    httpx.post(f"{process.address}/faults", json=fault, headers=process.headers).raise_for_status()

    morning = night.submit(NODES - 1, **LONG)

    def runs_elsewhere():
        used = set(Attempt.objects.live().values_list("nodelist", flat=True))
        return night.running(morning) == NODES - 1 and broken.name not in used

    night.once(runs_elsewhere, "all jobs of the morning on other nodes")
    assert NodeSleep.objects.get(node=broken).state == NodeSleepState.FAILED
    incident = Incident.objects.get(root_cause="NodeDidNotWake")
    assert (incident.subject, incident.nodes.get()) == (broken.name, broken)
    row = Node.objects.get(pk=broken.pk)
    assert row.drain_requested and "did not wake up" in row.reason


def test_night_and_morning_on_kubernetes_with_a_webhook(tmp_path, settings):
    settings.ACME_WEBHOOK_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    with (
        KubernetesProcess(tmp_path / "state", "--nodes", str(NODES)) as process,
        closing(open_kubernetes(prepare(process))) as backend,
        site_webhook() as site,
    ):
        actions = {"sleep": "power-off", "wake": "repair"}
        site.act = lambda action, node: process.call("POST", f"/machines/{node}", {"action": actions[action]})
        address = "kubernetes:///simulated"
        cluster = make.cluster(
            nodes=0, policy="fifo", address=address, pod_template=TEMPLATE, sleep_webhook=site.url, **SETTINGS
        )
        site.secret = sleep_webhook_secret(cluster)
        night = Night(cluster, backend)
        fall_asleep(night)
        assert night.flags() == {NodeFlag.POWERED_DOWN: NODES - 1}

        morning = night.submit(NODES, **LONG)
        night.once(lambda: night.running(morning) == NODES, "the jobs of the morning")

        night.once(lambda: night.states() == {"awake": NODES - 1}, "all nodes awake")
        assert [message["action"] for message in site.messages] == ["sleep"] * (NODES - 1) + ["wake"] * (NODES - 1)
        assert (site.unsigned, night.flags()) == (0, {})
