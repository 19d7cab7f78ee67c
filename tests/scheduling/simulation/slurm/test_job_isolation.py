"""Isolation of jobs from Acme, its database and the jobs of other teams, when root runs the cluster server."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from tests import servers
from tests.patience import until
from tests.scheduling.backends.test_dialect import submission
from tests.scheduling.simulation.slurm.running import ClusterProcess, is_alive

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give jobs users of their own")


class Jobs:
    """Submits scripts to this machine's cluster and reads their output."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self.cluster, self.backend = cluster, cluster.backend()
        self.node = self.backend.nodes()[0].name
        self._count = 0

    def start(self, script: str, team: str, **environment: str):
        self._count += 1
        log = self.cluster.log_root / f"{self._count}.log"
        plain = {"gpus_per_node": 0, "cpus_per_node": 0, "memory_per_node_mb": 1, "workdir": "/tmp"}
        self.backend.submit(
            submission(
                key=str(self._count),
                account=team,
                script=script,
                stdout=str(log),
                nodes=(self.node,),
                environment=environment,
                **plain,
            )
        )
        return log

    def output_of(self, script: str, team: str = "vision") -> str:
        log = self.start(f"{script}\necho END", team)
        until(lambda: log.exists() and log.read_text().endswith("END\n"), what=script)
        return log.read_text().removesuffix("END\n")

    def uid(self, team: str) -> int:
        return int(self.output_of("id -u", team))


@contextmanager
def running(home):
    with ClusterProcess(home / "cluster", "--execute") as cluster:
        jobs = Jobs(cluster)
        yield jobs
        jobs.backend.close()


@pytest.fixture
def jobs(tmp_path):
    open_the_way_to(tmp_path)
    with running(tmp_path) as jobs:
        yield jobs


def open_the_way_to(path) -> None:
    """Open pytest's private directories (0700), so that only the permissions of the files protect them."""
    for directory in (path, *path.parents):
        directory.chmod(directory.stat().st_mode | 0o011)


def test_job_cannot_take_over_the_database(jobs, tmp_path):
    with ExitStack() as stack:
        servers.start_postgres(tmp_path, stack)
        data = tmp_path / "postgres" / "data"
        postmaster = int((data / "postmaster.pid").read_text().split()[0])

        jobs.output_of(
            f"echo 'host all all all trust' >> {data}/pg_hba.conf; kill -HUP {postmaster}; kill {postmaster}"
        )

        assert jobs.uid("vision") != os.stat(f"/proc/{postmaster}").st_uid
        assert "all all all trust" not in (data / "pg_hba.conf").read_text()
        assert is_alive(postmaster)


def test_job_reads_no_secret_of_the_instance(jobs, tmp_path):
    (tmp_path / "secrets").mkdir(mode=0o700)
    (tmp_path / "secrets" / "admin-password").write_text("s3cret")
    service = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "SECRET_KEY": "s3cret"}
    )

    output = jobs.output_of(
        f"cat {tmp_path}/secrets/*; cat /proc/{service.pid}/environ; cat {jobs.cluster.state}/token"
    )

    service.communicate(b"\n")
    assert "s3cret" not in output and jobs.cluster.token not in output


def test_job_reads_no_environment_of_another_teams_job(jobs):
    other = jobs.start("echo $$; sleep 600", "speech", HF_TOKEN="s3cret")
    pid = until(lambda: other.exists() and other.read_text().strip())

    assert "s3cret" not in jobs.output_of(f"cat /proc/{pid}/environ")
    assert "s3cret" in jobs.output_of(f"cat /proc/{pid}/environ", team="speech")


def test_job_cannot_signal_another_teams_job(jobs):
    other = jobs.start("echo $$; sleep 600", "speech")
    pid = int(until(lambda: other.exists() and other.read_text().strip()))

    jobs.output_of(f"kill -9 {pid}")

    assert is_alive(pid)


def test_job_reads_no_file_in_the_home_of_another_team(jobs):
    home = jobs.output_of('echo s3cret >"$HOME/key"; chmod 644 "$HOME/key"; echo "$HOME"', team="speech").strip()

    assert "s3cret" not in jobs.output_of(f"cat {home}/key")
    assert jobs.output_of("cat $HOME/key", team="speech") == "s3cret\n"


def test_job_has_no_capability_and_gains_none(jobs):
    status = jobs.output_of("cat /proc/self/status")

    rows = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {rows[name].strip("0") for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")} == {""}
    assert rows["NoNewPrivs"] == "1"


def test_team_keeps_its_user_when_the_server_is_killed(tmp_path):
    open_the_way_to(tmp_path)
    with running(tmp_path) as jobs:
        before = [jobs.uid(team) for team in ("vision", "speech")]
        jobs.cluster.kill()
        jobs.cluster.start()

        assert [jobs.uid(team) for team in ("speech", "vision")] == before[::-1]
    assert len({*before, 0}) == 3
