"""Jobs on a real Slurm run as the user who submitted them, with both kinds of tokens."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from datetime import UTC, datetime

import pytest

from jobs.core.lifecycle import State
from scheduling.backends.base import RequestRejected
from scheduling.backends.opening import open_backend
from scheduling.backends.senders import ServiceTokenIdentities, UserTokenIdentities
from tests.patience import until
from tests.scheduling.backends.real_slurm import started_or_skipped
from tests.scheduling.backends.test_dialect import submission

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's Slurm runs jobs of several users"),
]
USERS = ("games", "www-data")  # users that exist on every machine


@pytest.fixture(scope="module")
def slurm():
    with started_or_skipped() as slurm:
        slurm.output.chmod(0o1777)
        yield slurm


@pytest.fixture
def open_with(slurm):
    """Opens backends and closes them after the test."""
    with ExitStack() as stack:
        yield lambda senders: stack.enter_context(
            closing(open_backend(slurm.tcp_address, user=slurm.user, token=slurm.token(), senders=senders))
        )


def header_senders(slurm):
    return ServiceTokenIdentities(service_user=slurm.user, token=slurm.token())


def ran_as(slurm, backend, user):
    log = slurm.output / f"{user}.out"
    place = {"nodes": (slurm.nodes[0],), "gpus_per_node": 1, "cpus_per_node": 1, "gpu_model": "a100", "workdir": "/tmp"}
    backend.submit(submission(key=user, account="", script="id -un", user=user, stdout=str(log), **place))
    until(lambda: log.exists() and log.read_text())
    return log.read_text().strip()


def test_jobs_run_as_the_users_named_with_a_service_token(slurm, open_with):
    backend = open_with(header_senders(slurm))

    assert [ran_as(slurm, backend, user) for user in USERS] == [*USERS]


def test_jobs_run_as_the_users_of_their_tokens(slurm, open_with):
    read = {f"/tokens/{user}": slurm.token(user) for user in USERS}.__getitem__
    senders = UserTokenIdentities(
        service_user=slurm.user, directory="/tokens", read=read, now=lambda: datetime.now(UTC)
    )
    backend = open_with(senders)

    assert [ran_as(slurm, backend, user) for user in USERS] == [*USERS]


def test_user_unknown_to_slurm_is_rejected_without_a_remaining_job(slurm, open_with):
    backend = open_with(header_senders(slurm))

    with pytest.raises(RequestRejected, match="user lovelace does not exist on the cluster"):
        ran_as(slurm, backend, "lovelace")

    assert until(lambda: backend.find("lovelace")).state == State.CANCELLED


def test_service_token_can_cancel_a_users_job(slurm, open_with):
    backend = open_with(header_senders(slurm))
    place = {"nodes": (slurm.nodes[1],), "gpus_per_node": 1, "cpus_per_node": 1, "gpu_model": "a100", "workdir": "/tmp"}
    job = backend.submit(submission(key="c", account="", script="sleep 600", user="games", stdout="/dev/null", **place))

    backend.cancel(job)

    until(lambda: (seen := backend.find("c")) and seen.state == State.CANCELLED)
