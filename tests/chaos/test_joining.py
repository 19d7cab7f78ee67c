"""Requests of a storm that an installation must accept: adding a Kubernetes cluster, and jobs of all sorts on it."""

from __future__ import annotations

import threading
import time
from random import Random

import httpx
import pytest

from jobs.models import Cluster, Job
from scheduling.backends.kubernetes.connection.manifests import drive_manifest
from tests import make
from tests.acceptance.instance import Instance
from tests.chaos.clusters.kubernetes import NAMESPACE, KubernetesCluster
from tests.chaos.submitter import borrower, neighbor, short_job, training

DRAWINGS = (short_job, training, borrower, neighbor)


class DirectCaller:
    """Sends requests to the API without a server between."""

    def __init__(self, client):
        self.client = client

    def ask(self, path, body, *, key, over):
        headers = {"Idempotency-Key": key}
        answer = self.client.post(f"/api/v1/{path}", body, "application/json", headers=headers)
        return time.monotonic(), httpx.Response(answer.status_code, content=answer.content)


@pytest.fixture
def cluster(tmp_path, settings):
    access = tmp_path / "access"
    access.mkdir()
    settings.ACME_TOKEN_DIRS = [str(access)]
    cluster = KubernetesCluster(access, 1, drive_manifest([NAMESPACE]))
    yield cluster
    cluster.close()


@pytest.fixture
def caller(admin_client):
    return DirectCaller(admin_client)


def test_cluster_and_jobs_of_a_storm_are_accepted(cluster, caller, tmp_path):
    over, dice = threading.Event(), Random(1)

    cluster.join(Instance(tmp_path / "var"), caller, over, direct=False)
    row = Cluster.objects.get(name=cluster.name)
    for number in range(1, 9):
        make.node(f"kalos-{number:03d}", cluster=row, gpus=8)
    make.team("platform")
    drawn = [draw(dice, 10 * number + place) for number in range(1, 9) for place, draw in enumerate(DRAWINGS)]
    _, answer = caller.ask("jobs/bulk/", {"jobs": [one | {"cluster": row.name} for one in drawn]}, key="a", over=over)

    assert answer.is_success, answer.text
    assert (row.mode, Job.objects.filter(cluster=row).count()) == ("drive", len(drawn))
