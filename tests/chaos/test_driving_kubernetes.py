"""Attempts on Kubernetes while one fault lasts: each runs exactly once, and the backend learns how it ended.

Submits and looks as the loops do: a submission without a response is looked up, and sent again if it left no trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random

import pytest

from jobs.core.lifecycle import FINAL_STATES, State
from scheduling.backends.base import Backend, BackendError, OutcomeUnknown, RequestRejected, SubmitRequest
from scheduling.backends.kubernetes.connection.manifests import drive_manifest
from scheduling.backends.opening import open_backend
from tests.chaos import judge
from tests.chaos import proxy as answers
from tests.chaos.clusters.kubernetes import NAMESPACE, KubernetesCluster, write_kubeconfig
from tests.patience import until

INSTALLATION = "k3v9q2m7"
TEMPLATE = {"image": "registry.example/train:1", "grace_s": 1}
TIMEOUT_S = 2.0  # of one operation; shorter than some faults
NODES = tuple(f"kalos-{number:03d}" for number in range(1, 9))
SILENT_S = 6.0  # longer than a node may be silent
jobs = count(1)


@dataclass(kw_only=True)
class Loop:
    """What the loops of an installation do, without a database. Another one continues where it stopped."""

    cluster: KubernetesCluster
    wanted: dict[str, SubmitRequest] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # keys of submissions that are certain
    ends: dict[str, State] = field(default_factory=dict)

    backend: Backend | None = None

    def __post_init__(self) -> None:
        self.restart()

    def close(self) -> None:
        if self.backend:
            self.backend.close()

    def restart(self) -> None:
        """Begin with an empty memory, as a new worker does."""
        self.close()
        config = write_kubeconfig(self.cluster.access, self.cluster.proxy.address)
        self.backend = open_backend(
            f"kubernetes://{config}",
            timeout_s=TIMEOUT_S,
            read_file=lambda path: Path(path).read_text(),
            pod_template=TEMPLATE,
            installation=INSTALLATION,
        )

    def turn(self) -> bool:
        """One turn; whether all attempts have ended."""
        with suppress(BackendError):
            self._submit([request for key, request in self.wanted.items() if key not in self.known])
            self.backend.advance_jobs()
            for job in self.backend.jobs():
                if job.state in FINAL_STATES and not job.flags and job.key in self.wanted:
                    self.ends.setdefault(job.key, job.state)
        return set(self.ends) == set(self.wanted)

    def run_again(self, nodes: Sequence[str]) -> None:
        """Submit a next attempt, on these nodes, of every job whose attempt was stopped."""
        for key, state in self.ends.items():
            job, _, number = key.rpartition(".")
            again = f"{job}.{int(number) + 1}"
            if state in (State.NODE_FAIL, State.PREEMPTED) and again not in self.wanted:
                environment = {"SIM_DURATION_S": "0.5", "SIM_END": "COMPLETED"}
                old = self.wanted[key]
                self.wanted[again] = replace(
                    old, key=again, name=again, environment=environment, nodes=tuple(nodes[: len(old.nodes)])
                )

    def _submit(self, requests: Sequence[SubmitRequest]) -> None:
        for request in requests:
            if self.backend.find(request.key):
                self.known.add(request.key)
        new = [request for request in requests if request.key not in self.known]
        for request, result in zip(new, self.backend.submit_all(new), strict=True):
            if isinstance(result, str):
                self.known.add(request.key)
            elif not isinstance(result, OutcomeUnknown):
                assert not isinstance(result, RequestRejected), result


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[KubernetesCluster]:
    access = tmp_path_factory.mktemp("storm") / "access"
    access.mkdir()
    cluster = KubernetesCluster(access, 1, drive_manifest([NAMESPACE]))
    yield cluster
    cluster.close()


@pytest.fixture
def loop(cluster) -> Iterator[Loop]:
    loop = Loop(cluster=cluster)
    yield loop
    loop.close()


def work(dice: Random) -> SubmitRequest:
    """A job on one to three nodes that ends by itself."""
    key = f"{next(jobs):011d}.1"
    return SubmitRequest(
        key=key,
        name=key,
        user="",
        account="",
        script="true\n",
        workdir="/tmp",
        environment={
            "SIM_DURATION_S": f"{dice.uniform(0.2, 1.5):.1f}",
            "SIM_END": dice.choice(("COMPLETED", "FAILED:3")),
        },
        nodes=tuple(sorted(dice.sample(NODES[:4], dice.choice((1, 1, 2, 3))))),
        gpus_per_node=2,
        gpu_model="a100",
        cpus_per_node=1,
        memory_per_node_mb=100,
        time_limit=timedelta(minutes=5),
        stdout=f"/logs/{key}.log",
        installation=INSTALLATION,
    )


@contextmanager
def killed(cluster: KubernetesCluster) -> Iterator[None]:
    cluster.kill(Random(1))
    yield
    cluster.kill(Random(1))


@contextmanager
def compacted(cluster: KubernetesCluster) -> Iterator[None]:
    with cluster.proxy.held_watches():
        yield
        assert cluster.compact()


@contextmanager
def without_token(cluster: KubernetesCluster) -> Iterator[None]:
    assert cluster.revoke_tokens()
    yield
    assert cluster.write_new_token()


CONDITIONS = {
    "none": lambda cluster: nullcontext(),
    "truncated": lambda cluster: cluster.proxy.active(answers.truncated),
    "lost": lambda cluster: cluster.proxy.active(answers.lost_writes),
    "delayed": lambda cluster: cluster.proxy.active(answers.delayed),
    "unanswered": lambda cluster: cluster.proxy.active(answers.unanswered),
    "stale": lambda cluster: cluster.proxy.active(answers.stale),
    "watch": lambda cluster: cluster.proxy.cut_watches(),
    "killed": killed,
    "compacted": compacted,
    "token": without_token,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_attempt_runs_once_and_its_end_is_known(cluster, loop, condition):
    dice, before = Random(condition), len(cluster.effects())
    loop.wanted = {one.key: one for one in (work(dice) for _ in range(12))}
    lasting: AbstractContextManager[object] = CONDITIONS[condition](cluster)

    with lasting:
        for _ in range(3):
            loop.turn()
    loop.restart()
    until(loop.turn, what=f"{set(loop.wanted) - set(loop.ends)} do not end")

    effects = cluster.effects()[before:]
    assert list(judge.side_effects(effects)) == []
    assert sorted(effect.attempt for effect in effects if effect.starts) == sorted(loop.wanted)
    successful = {effect.attempt for effect in effects if effect.succeeded}
    assert {key for key, state in loop.ends.items() if state == State.COMPLETED} == successful
    assert {state for key, state in loop.ends.items() if key not in successful} <= {State.FAILED}
    assert list(cluster.violations()) == []


def test_attempts_that_somebody_else_stops_end_once(cluster, loop):
    dice, before = Random(7), len(cluster.effects())
    loop.wanted = {one.key: one for one in (work(dice) for _ in range(12))}

    until(lambda: loop.turn() or cluster.our_pods())
    for verb in (cluster.evict_pod, lambda pod: cluster.delete_pod(pod, grace_s=1)):
        pods = [pod for pod in cluster.our_pods() if pod["metadata"]["labels"]["acme/attempt"] in loop.wanted]
        if pods:
            verb(dice.choice(pods))
        loop.turn()
    until(loop.turn, what=f"{set(loop.wanted) - set(loop.ends)} do not end")

    assert list(judge.side_effects(cluster.effects()[before:])) == []
    until(lambda: not list(cluster.violations()), what="pods are left")


def silence(cluster: KubernetesCluster, loop: Loop, node: str) -> None:
    cluster.silence(node)


def lose_machine(cluster: KubernetesCluster, loop: Loop, node: str) -> None:
    cluster.lose_machine(node)


def delete_node(cluster: KubernetesCluster, loop: Loop, node: str) -> None:
    assert cluster.delete_node(node)


def delete_lost_node(cluster: KubernetesCluster, loop: Loop, node: str) -> None:
    cluster.lose_machine(node)
    assert cluster.delete_node(node)


def evict(cluster: KubernetesCluster, loop: Loop, node: str) -> None:
    for job in loop.backend.jobs():
        if job.key in loop.wanted:
            loop.backend.evict(job.backend_id)


@pytest.mark.parametrize("loss", [silence, lose_machine, delete_node, delete_lost_node, evict])
def test_job_whose_node_is_lost_never_runs_twice_at_the_same_time(cluster, loop, loss):
    dice, before, node = Random(loss.__name__), len(cluster.effects()), NODES[0]
    for size in (1, 2, 3):
        long = {"SIM_DURATION_S": "6", "SIM_END": "COMPLETED"}
        one = replace(work(dice), environment=long, nodes=NODES[:size])
        loop.wanted[one.key] = one

    def started():
        loop.turn()
        return sum(effect.starts for effect in cluster.effects()[before:]) == 3

    until(started)
    loss(cluster, loop, node)
    silent_until = time.monotonic() + SILENT_S

    def over():
        done = loop.turn()
        loop.run_again(NODES[4:])
        if time.monotonic() > silent_until:
            cluster.repair(node)
        return done and set(loop.ends) == set(loop.wanted) and time.monotonic() > silent_until

    until(over, 40, what=f"{loop.ends}, {set(loop.wanted) - set(loop.ends)} do not end")

    assert list(judge.side_effects(cluster.effects()[before:])) == []
