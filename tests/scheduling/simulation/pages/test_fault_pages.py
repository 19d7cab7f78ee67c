"""Faults on request, through the pages, on a simulated cluster that runs as a process."""

from contextlib import closing
from pathlib import Path
from random import Random

import httpx
import pytest
from django.contrib.auth.models import Permission

from jobs.core.lifecycle import NodeState
from jobs.models import Event, Job, clock
from scheduling.backends.opening import open_backend
from scheduling.simulation.client import SimulatorError, plan_job
from scheduling.simulation.demo import users
from scheduling.simulation.machines import workload
from tests import make
from tests.scheduling.simulation.slurm.running import ClusterProcess

pytestmark = pytest.mark.django_db

SIMULATED = "slurm 24.11.5-simulated"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    state = tmp_path_factory.mktemp("simulated")
    with ClusterProcess(state, "--nodes", "4", "--gpus", "8") as process:
        token = str(state / "token")
        yield {"address": process.address, "token_file": token, "is_bundled": True, "api_user": "root"}


@pytest.fixture
def operator(client):
    user = make.user("olga")
    user.user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    client.force_login(user)
    return client


def token_of(place) -> str:
    return Path(place["token_file"]).read_text()


def faults_of(place) -> list[dict]:
    return httpx.get(f"{place['address']}/faults", headers={"X-SLURM-USER-TOKEN": token_of(place)}).json()["faults"]


def test_node_fault_reaches_the_cluster_and_is_recorded(operator, simulated):
    make.cluster(product=SIMULATED, **simulated)
    assert "Kill the node" in operator.get("/nodes/seren/seren-002/").text

    answer = operator.post("/simulator/nodes/seren/seren-002/faults/", {"kind": "death"}, follow=True)

    assert "Kill the node: done." in answer.text
    assert [(one["kind"], one["node"]) for one in faults_of(simulated)][-1] == ("death", "seren-002")
    event = Event.objects.get(type="node.fault_injected")
    assert (event.by, event.why) == ("olga", "Fault injected on request: death.")
    with closing(open_backend(simulated["address"], token=token_of(simulated))) as backend:
        assert backend.nodes()[1].state == NodeState.DOWN


def test_refusal_of_the_cluster_is_shown_and_records_nothing(operator, simulated):
    cluster = make.cluster(product=SIMULATED, **simulated)
    attempt = make.running(make.job(cluster=cluster))
    attempt.job.team.memberships.create(user=make.user("olga"), role="researcher")
    assert "Run out of GPU memory" in operator.get(f"/jobs/{attempt.job.public_id}/").text

    url = f"/simulator/jobs/{attempt.job.public_id}/faults/"
    answer = operator.post(url, {"kind": "out_of_memory"}, follow=True)

    assert f"The cluster seren refused: job: {attempt.backend_id} is not running." in answer.text
    assert not Event.objects.filter(type="job.fault_injected").exists()


def test_real_cluster_has_no_buttons_and_refuses(operator, simulated):
    make.cluster(product="slurm 23.11.4", **simulated)
    before = faults_of(simulated)
    assert "Inject a fault" not in operator.get("/nodes/seren/seren-003/").text

    answer = operator.post("/simulator/nodes/seren/seren-003/faults/", {"kind": "death"}, follow=True)

    assert "The cluster seren is not simulated." in answer.text
    assert faults_of(simulated) == before


def test_other_users_and_other_kinds_are_refused(operator, client, simulated):
    make.cluster(product=SIMULATED, **simulated)
    assert operator.post("/simulator/nodes/seren/seren-004/faults/", {"kind": "earthquake"}).status_code == 404
    client.force_login(make.user("ada"))
    assert client.post("/simulator/nodes/seren/seren-004/faults/", {"kind": "death"}).status_code == 403
    assert "Inject a fault" not in client.get("/nodes/seren/seren-004/").text


def test_simulated_cluster_is_recognized_by_what_it_reports(simulated):
    cluster = make.cluster(**simulated)
    with closing(open_backend(simulated["address"], token=token_of(simulated))) as backend:
        cluster.product = backend.ping().product

    assert cluster.is_simulated


def test_cluster_that_is_away_is_named():
    cluster = make.cluster(address="http://127.0.0.1:9", product=SIMULATED)

    with pytest.raises(SimulatorError, match=r"The cluster seren does not answer: .+"):
        plan_job(cluster, "abc", {"SIM_END": "COMPLETED"})


def test_demo_job_shows_nothing_of_the_simulation(simulated):
    cluster = make.cluster(product=SIMULATED, **simulated)
    users.create_teams_and_users()
    load = users.load_of(cluster, speed=20.0, longest_s=900.0)

    job = users.submit(cluster, workload.sample_job(Random(1), load.short_jobs), Random(1), clock.now())

    assert set(Job.objects.get(pk=job.pk).environment) == {"OMP_NUM_THREADS"}
