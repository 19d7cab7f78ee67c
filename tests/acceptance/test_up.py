"""`manage.py up` as a real process: it serves and stops completely, and kill -9 loses no data and leaves no process."""

import os
import signal
import socket

import httpx
import pytest

from scheduling.simulation.machines.execution.accounts import DEFAULT_UIDS
from tests.acceptance.instance import Instance
from tests.patience import PATIENCE_S, until
from tests.scheduling.simulation.slurm.running import is_alive

pytestmark = pytest.mark.timeout(1800)


def test_instance_serves_stops_completely_and_keeps_its_data(untouched):
    password = untouched.start().ready()
    assert untouched.status() == 200
    assert password == "password " + (untouched.place.secrets / "admin-password").read_text().strip()
    untouched.sql("CREATE TABLE kept AS SELECT 1 AS one")

    assert untouched.stop() == 0
    assert untouched.gone()

    assert untouched.start().ready() == password
    assert untouched.sql("TABLE kept").rowcount == 1
    untouched.sql("UPDATE auth_user SET password = '!'")
    assert untouched.stop(signal.SIGTERM) == 0
    assert untouched.gone()

    assert untouched.start().ready() == "password: as you set it"


@pytest.mark.system
def test_killed_program_restarts_and_killed_runner_ends_all_programs(instance):
    instance.start(DEMO="0").ready()
    instance.sql("CREATE TABLE kept AS SELECT 1 AS one")

    for name in instance.pids():
        pid = until(lambda: instance.pids().get(name), what=f"{name} does not run")  # noqa: B023
        os.kill(pid, signal.SIGKILL)
        until(lambda: instance.pids().get(name) not in (None, pid), what=f"{name} did not come back")  # noqa: B023
        until(lambda: instance.status() == 200, what=f"not ready after {name} was killed")

    os.kill(int((instance.place.run / "supervisord.pid").read_text()), signal.SIGKILL)
    assert instance.process.wait(timeout=PATIENCE_S) == 1
    assert "The process runner ended unexpectedly" in instance.said()
    assert instance.gone()

    instance.start(DEMO="0").ready()
    assert instance.sql("TABLE kept").rowcount == 1


@pytest.mark.system
def test_kill_9_of_up_leaves_no_process_and_does_not_delay_the_next_start(instance):
    instance.start(DEMO="0").ready()
    instance.sql("CREATE TABLE kept AS SELECT 1 AS one")

    instance.process.kill()
    instance.process.wait()
    instance.start(DEMO="0").ready()

    assert instance.sql("TABLE kept").rowcount == 1
    instance.process.kill()
    instance.process.wait()
    until(instance.gone, what="something stayed behind")


@pytest.mark.system
def test_ctrl_c_also_ends_the_jobs_of_the_local_cluster(instance):
    instance.start(DEMO="0").ready()
    seen = "SELECT c.address, n.name FROM jobs_cluster c, jobs_node n"
    address, node = until(lambda: instance.sql(seen).fetchone(), what="the workers never saw the node")
    log = instance.place.var / "cluster" / "logs" / "mine.log"
    job = {
        "name": "mine",
        "script": "#!/bin/bash\ntrap '' TERM; echo $(id -u) $$ $PPID; sleep 600\n",
        "environment": ["PATH=/bin"],
        "current_working_directory": "/tmp",
        "required_nodes": [node],
        "standard_output": str(log),
    }
    token = {"X-SLURM-USER-TOKEN": instance.place.cluster_token.read_text().strip()}
    with httpx.Client(base_url=f"{address}/slurm/v0.0.42", trust_env=False) as client:
        assert client.post("/job/submit", json={"job": job}).status_code == 401
        client.post("/job/submit", json={"job": job}, headers=token).raise_for_status()
    uid, *pids = map(int, until(lambda: log.exists() and log.read_text().split()))
    assert uid in DEFAULT_UIDS if os.geteuid() == 0 else uid == os.geteuid()
    assert ("user ids: Acme" if os.geteuid() == 0 else "Not isolated") in (instance.place.log / "up.log").read_text()

    assert instance.stop() == 0

    assert instance.gone()
    until(lambda: not any(map(is_alive, pids)), what="a job outlived Ctrl-C")


@pytest.mark.system
def test_second_start_in_the_same_directory_is_refused_in_one_sentence(instance, tmp_path):
    instance.start(DEMO="0")
    until(instance.place.lock.exists)
    until(lambda: instance.place.lock.read_text() == str(instance.process.pid))

    second = Instance(instance.place.var).start()

    assert second.process.wait(timeout=PATIENCE_S) == 1
    assert second.said().startswith("Acme is already running in")
    assert second.said().count("\n") == 1


@pytest.mark.system
def test_stop_during_the_start_leaves_no_process(instance):
    instance.start(DEMO="0")
    until(lambda: (instance.place.run / "supervisord.pid").exists())

    assert instance.stop() == 0

    assert instance.said() == ""
    assert instance.gone()


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"ACME_PORT": "http"}, "ACME_PORT='http': is not a number from 1 to 65535\n"),
        ({"DEMO": "maybe"}, "DEMO='maybe': is not 1 or 0\n"),
        ({"ACME_BIND": "192.0.2.1"}, "ACME_BIND=192.0.2.1 is not an address of this machine"),
        ({"ACME_VAR": "/proc/acme"}, "/proc/acme cannot be created"),
        ({"DATABASE_URL": "mysql://db"}, "DATABASE_URL='mysql://db': is not a URL that starts with postgresql"),
    ],
)
def test_invalid_start_is_refused_in_one_sentence(untouched, environment, sentence):
    untouched.start(**environment)

    assert untouched.process.wait(timeout=PATIENCE_S) == 1
    assert untouched.said().startswith(sentence)
    assert untouched.said().count("\n") == 1


def test_port_in_use_is_reported_in_one_sentence(untouched):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", untouched.port))
        taken.listen()
        untouched.start()

        assert untouched.process.wait(timeout=PATIENCE_S) == 1
    assert untouched.said().startswith(f"Port {untouched.port} on 127.0.0.1 is already in use")
    assert untouched.gone()
