"""The contract, kept by each kind of cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.opening import open_backend
from tests.backends.contract import BackendContract, Site
from tests.backends.real_slurm import started_or_skipped
from tests.cluster.running import ClusterProcess
from tests.scheduling.away import Away, costs_no_job


def foreign_job(cluster: ClusterProcess) -> str:
    body = {
        "job": {
            "name": "someone-elses",
            "comment": "acmeish: not a key",
            "script": "#!/bin/sh\ntrue\n",
            "environment": ["PATH=/bin", "SIM_DURATION_S=0"],
            "current_working_directory": "/tmp",
        }
    }
    address = f"{cluster.address}/slurm/v0.0.42/job/submit"
    answer = httpx.post(address, json=body, headers=cluster.headers).raise_for_status()
    return str(answer.json()["job_id"])


class PlayedHazards:
    """A simulated node is killed by an order; the server is controller and door in one."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster

    def kill_node(self, name: str) -> None:
        order = {"kind": "death", "node": name}
        httpx.post(f"{self.cluster.address}/troubles", json=order, headers=self.cluster.headers).raise_for_status()

    def revive_node(self, name: str) -> None:
        with closing(self.cluster.backend()) as backend:
            backend.resume(name)

    def restart_controller(self) -> None:
        self.cut()
        self.mend()

    def cut(self) -> None:
        self.cluster.kill()

    def mend(self) -> None:
        self.cluster.start()


def with_a_limited_job(site: Site) -> Site:
    limited = site.work(seconds=600, nodes=(site.nodes[2],), time_limit=timedelta(minutes=1))
    site.backend.submit(limited)
    return replace(site, limited=limited)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    with ClusterProcess(tmp_path_factory.mktemp("simulated"), "--nodes", "4") as cluster:
        backend = cluster.backend()
        site = Site(
            backend=backend,
            nodes=tuple(f"seren-00{i}" for i in range(1, 5)),
            output=cluster.log_root,
            gpus_per_node=8,
            gpu_model="a100",
            accounting=True,
            submit_elsewhere=lambda: foreign_job(cluster),
            hazards=PlayedHazards(cluster),
        )
        yield with_a_limited_job(site)
        backend.close()


@pytest.fixture(scope="module")
def executing(tmp_path_factory):
    with ClusterProcess(tmp_path_factory.mktemp("executing"), "--execute") as cluster:
        backend = cluster.backend()
        (node,) = backend.nodes()
        yield Site(
            backend=backend,
            nodes=(node.name,),
            output=cluster.log_root,
            gpus_per_node=node.gpus,
            gpu_model=node.gpu_model,
            accounting=True,
            submit_elsewhere=lambda: foreign_job(cluster),
        )
        backend.close()


@pytest.fixture(scope="module")
def slurm():
    with started_or_skipped() as slurm:
        yield slurm


@pytest.fixture(scope="module")
def real(slurm):
    backend = open_backend(slurm.address)
    site = Site(
        backend=backend,
        nodes=slurm.nodes,
        output=slurm.output,
        gpus_per_node=8,
        gpu_model="a100",
        drains=backend.ping().api != "v0.0.38",
        submit_elsewhere=slurm.sbatch,
        hazards=slurm,
    )
    yield with_a_limited_job(site)
    backend.close()


class TestSimulated(BackendContract):
    @pytest.fixture
    def site(self, simulated):
        return simulated


class TestExecuting(BackendContract):
    test_a_gang_has_all_of_its_nodes = None  # this machine is one node, so there is nothing to ask
    # tests/cluster/test_execute.py kills one of its own, and has a clock that does not wait for minutes
    test_a_node_that_dies_takes_its_jobs_along_and_comes_back = None
    test_jobs_do_not_notice_that_the_controller_was_restarted = None
    test_a_cluster_that_is_away_is_unreachable_and_loses_nothing = None
    test_a_job_past_its_limit_is_ended_and_says_so = None

    @pytest.fixture
    def site(self, executing):
        return executing


@pytest.mark.slurm
class TestRealSlurm(BackendContract):
    @pytest.fixture
    def site(self, real):
        return real

    def test_a_token_opens_the_door_over_tcp(self, slurm):
        backend = open_backend(slurm.tcp_address, user=slurm.user, token=slurm.token())

        assert backend.ping().product.startswith("slurm ")
        assert len(backend.nodes()) == 4
        backend.close()

    def test_without_a_token_it_is_unreachable_over_tcp(self, slurm):
        backend = open_backend(slurm.tcp_address)

        with pytest.raises(ClusterUnreachable, match="401"):
            backend.nodes()
        backend.close()

    def test_loops_that_reach_no_slurmrestd_for_two_minutes_lose_no_job(self, db, slurm, real, monkeypatch):
        """Only slurmrestd is gone; slurmctld and what runs there do not notice."""
        away = Away(backend=real.backend, nodes=slurm.nodes, output=slurm.output, cut=slurm.cut, mend=slurm.mend)
        costs_no_job(away, monkeypatch)
