"""The backend contract for each kind of cluster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from jobs.core.lifecycle import State
from scheduling.backends.base import ClusterUnreachable
from scheduling.backends.opening import open_backend
from tests.scheduling.away import Away, check_outage_costs_no_job
from tests.scheduling.backends.contract import BackendContract, Site, SleepContract
from tests.scheduling.backends.real_slurm import SHARDS_PER_GPU, started_or_skipped
from tests.scheduling.simulation.slurm.running import ClusterProcess

POWER_TIMES = ("--suspend-s", "0.5", "--boot-s", "1")


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
    """Kills a simulated node by injecting a fault; one server process is controller and slurmrestd."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster = cluster

    def kill_node(self, name: str) -> None:
        order = {"kind": "death", "node": name}
        httpx.post(f"{self.cluster.address}/faults", json=order, headers=self.cluster.headers).raise_for_status()

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
    options = ("--nodes", "4", "--shards-per-gpu", "4", "--mps-nodes", "seren-003", *POWER_TIMES)
    with ClusterProcess(tmp_path_factory.mktemp("simulated"), *options) as cluster:
        backend = cluster.backend()
        site = Site(
            backend=backend,
            nodes=tuple(f"seren-00{i}" for i in range(1, 5)),
            output=cluster.log_root,
            gpus_per_node=8,
            gpu_model="a100",
            shards_per_gpu=4,
            mps_node="seren-003",
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
        shards_per_gpu=SHARDS_PER_GPU,
        mps_node=slurm.mps_node,
        drains=backend.ping().api != "v0.0.38",
        submit_elsewhere=slurm.sbatch,
        hazards=slurm,
    )
    yield with_a_limited_job(site)
    backend.close()


class TestSimulated(BackendContract, SleepContract):
    @pytest.fixture
    def site(self, simulated):
        return simulated


class TestExecuting(BackendContract):
    test_multi_node_job_gets_all_its_nodes = None  # this machine is only one node
    # tests/scheduling/simulation/slurm/test_execute.py kills its own server, and has a clock that does not need minutes
    test_node_failure_ends_its_jobs_and_the_node_comes_back = None
    test_jobs_survive_a_restart_of_the_controller = None
    test_outage_raises_unreachable_and_loses_no_job = None
    test_job_over_its_time_limit_ends_with_timeout = None

    @pytest.fixture
    def site(self, executing):
        return executing


def test_real_slurm_runs_a_job_and_reports_its_exit_code(real):
    """The one test of a real Slurm that runs without `make test-system`."""
    request = real.work(exit_code=3)
    real.backend.submit(request)

    ended = real.until_final(request)

    assert (ended.state, ended.exit_code) == (State.FAILED, 3)


@pytest.mark.system
class TestRealSlurm(BackendContract):
    @pytest.fixture
    def site(self, real):
        return real

    def test_token_grants_access_over_tcp(self, slurm):
        backend = open_backend(slurm.tcp_address, user=slurm.user, token=slurm.token())

        assert backend.ping().product.startswith("slurm ")
        assert len(backend.nodes()) == 4
        backend.close()

    def test_tcp_connection_without_a_token_is_unreachable(self, slurm):
        backend = open_backend(slurm.tcp_address)

        with pytest.raises(ClusterUnreachable, match="401"):
            backend.nodes()
        backend.close()

    def test_outage_of_slurmrestd_for_two_minutes_loses_no_job(self, db, slurm, real):
        """Only slurmrestd is down; slurmctld and its jobs are not affected."""
        away = Away(backend=real.backend, nodes=slurm.nodes, output=slurm.output, cut=slurm.cut, mend=slurm.mend)
        check_outage_costs_no_job(away)
