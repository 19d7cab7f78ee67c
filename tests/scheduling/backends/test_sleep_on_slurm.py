"""Sleeping nodes on a real Slurm with SuspendProgram and ResumeProgram: a night and a morning.

The slurmrestd of Debian cannot change nodes, so the site's webhook does what an operator would type. Machines are the
processes of slurmd: the programs of Slurm order them off and on, and the test carries that out.
"""

from __future__ import annotations

import ipaddress
from contextlib import closing

import pytest

from failures.models import Incident
from jobs.core.lifecycle import NodeFlag
from jobs.models import Attempt
from scheduling.backends.opening import open_backend
from scheduling.models import NodeSleep
from scheduling.power.loops.sleep_webhooks import sleep_webhook_secret
from tests import make
from tests.scheduling.backends.real_slurm import NODES, RealSlurm, started_or_skipped
from tests.scheduling.power.sleep.night import SETTINGS, Night
from tests.scheduling.power.sleep.receiver import Site, site_webhook

pytestmark = [pytest.mark.system, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
LONG = {"command": "#!/bin/sh\nexec sleep 86400\n", "cpus_per_node": 8, "memory_per_node": "1G"}


@pytest.fixture
def slurm():
    with started_or_skipped(saves_power=True) as slurm:
        yield slurm


@pytest.fixture
def site(settings, slurm):
    settings.ACME_WEBHOOK_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    with site_webhook(lambda action, node: slurm.power(node, up=action == "wake")) as site:
        yield site


class SlurmNight(Night):
    def __init__(self, slurm: RealSlurm, site: Site, backend) -> None:
        self.slurm = slurm
        connection = {"address": slurm.address, "log_root": str(slurm.output), "sleep_webhook": site.url}
        cluster = make.cluster(nodes=0, policy="fifo", **connection, **SETTINGS)
        site.secret = sleep_webhook_secret(cluster)
        super().__init__(cluster, backend)

    def look(self) -> None:
        super().look()
        self.slurm.carry_out_power_orders()


def test_night_and_morning_on_a_real_slurm(slurm, site):
    with closing(open_backend(slurm.address)) as backend:
        night = SlurmNight(slurm, site, backend)
        night.wait_for_nodes(NODES)
        night.write_past(NODES - 1)
        evening = night.submit(NODES - 1, **LONG)
        night.once(lambda: night.running(evening) == NODES - 1, "the jobs of the evening")
        assert night.states() == {}
        night.end_all_jobs()
        night.write_past(0)
        night.once(lambda: night.states() == {"asleep": NODES - 1}, "all nodes but the reserve asleep")
        assert night.flags()[NodeFlag.POWERED_DOWN] == NODES - 1
        assert sorted(slurm.suspended) == sorted(sleep.node.name for sleep in NodeSleep.objects.all())

        morning = night.submit(NODES, **LONG)
        night.look()
        assert Attempt.objects.live().filter(job__in=morning).count() == NODES
        assert set(NodeSleep.objects.values_list("wake_why", flat=True)) == {"A job starts on it."}
        night.once(lambda: night.running(morning) == NODES, "the jobs of the morning")
        night.once(lambda: night.states() == {"awake": NODES - 1}, "all nodes awake")

        assert set(slurm.resumed) == set(slurm.suspended)  # a message may come twice, and so may the order to Slurm
        night.once(lambda: not night.flags(), "the end of all boots")
        spent = night.hours_by_bucket()
        assert spent["asleep"] > 0 and "down" not in spent
        assert not Incident.objects.exists()
        night.end_all_jobs()
