"""The contract of all backends: one suite for simulated clusters, this machine, and a real Slurm and Kubernetes.

A subclass provides the fixture `site`. Each job is described twice, by a script for clusters that run it and by hints
for clusters that simulate it, so that no test depends on the kind of cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from jobs.core.backend_job import BackendJob
from jobs.core.gpu_shares import MPS
from jobs.core.lifecycle import FINAL_STATES, NodeFlag, NodeState, State
from jobs.core.public_id import MAX_BACKEND_ID_LENGTH
from scheduling.backends.attempt_record import RECORD_VARIABLE, read_record, record_directory
from scheduling.backends.base import (
    AccountingUnavailable,
    Backend,
    BackendNode,
    ClusterUnreachable,
    RequestRejected,
    SubmitRequest,
)
from scheduling.backends.opening import open_backend
from tests.patience import PATIENCE_S, until

keys = count(1)
MPS_PER_GPU = 100
LONG = 3600.0  # ended by a cancellation or a node failure, before it ends itself


class Hazards(Protocol):
    """Disruptions of a cluster. Each has an inverse, and both return when they are complete."""

    def kill_node(self, name: str) -> None: ...

    def revive_node(self, name: str) -> None: ...

    def restart_controller(self) -> None:
        """Stop and start the controller; with kill -9 if it must survive that. Slurm saves its state with delay."""
        ...

    def cut(self) -> None:
        """Make the address stop responding."""
        ...

    def mend(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster under test and its properties."""

    backend: Backend
    nodes: tuple[str, ...]
    output: Path
    gpus_per_node: int = 0
    gpu_model: str = ""
    shards_per_gpu: int = 0
    mps_node: str = ""  # offers gres/mps instead of shards, `MPS_PER_GPU` for each GPU
    mig_slices: Mapping[str, int] = field(default_factory=dict)  # of the last node, by profile
    drains: bool = True
    accounting: bool = False  # remembers ended jobs with their keys
    submit_elsewhere: Callable[[], str] | None = None  # submits a job that is not Acme's, without the adapter
    hazards: Hazards | None = None
    # Submitted when the site starts, because its time limit ends it only after a minute
    limited: SubmitRequest | None = None

    def work(self, *, seconds: float = 0.0, exit_code: int = 0, on: int = 1, **changed: object) -> SubmitRequest:
        key = f"contract-{next(keys)}"
        end = f"FAILED:{exit_code}" if exit_code else "COMPLETED"
        plain = SubmitRequest(
            key=key,
            name=key,
            user="",
            account="",
            script=f"sleep {seconds}\nexit {exit_code}\n",
            workdir="/tmp",
            environment={"SIM_DURATION_S": str(seconds), "SIM_END": end},
            nodes=self.nodes[:on],
            gpus_per_node=min(self.gpus_per_node, 2),
            gpu_model=self.gpu_model,
            cpus_per_node=1,
            memory_per_node_mb=100,
            time_limit=timedelta(minutes=5),
            stdout=str(self.output / f"{key}.log"),
        )
        return replace(plain, **changed)

    def until(
        self, what: SubmitRequest, is_so: Callable[[BackendJob], bool], within_s: float = PATIENCE_S
    ) -> BackendJob:
        def look() -> BackendJob | None:
            self.backend.advance_jobs()  # as each turn does
            seen = self.backend.find(what.key)
            return seen if seen is not None and is_so(seen) else None

        return until(look, within_s=within_s, what=f"{what.key}: {self.backend.find(what.key)}")

    def until_final(self, what: SubmitRequest) -> BackendJob:
        return self.until(what, lambda seen: seen.state in FINAL_STATES and not seen.flags)


def held_gpus(seen: BackendJob) -> dict[str, int]:
    """The number of GPUs on each node; some clusters do not say which ones."""
    return dict(seen.gpu_counts) or {node: len(indices) for node, indices in seen.gpus.items()}


def is_running(seen: BackendJob) -> bool:
    return seen.state == State.RUNNING and not seen.flags


def has_begun(seen: BackendJob) -> bool:
    """Whether the job has started; a very short one may be over before a slow machine polls again."""
    return is_running(seen) or seen.state in FINAL_STATES


class BackendContract:
    def test_ping_reports_product_and_version(self, site: Site):
        greeting = site.backend.ping()

        assert 0 < len(greeting.product) <= 60 and 0 < len(greeting.api) <= 20

    def test_nodes_have_names_and_sizes(self, site: Site):
        seen = {node.name: node for node in site.backend.nodes()}

        assert set(site.nodes) <= set(seen)
        assert all(node.cpus > 0 and node.memory_mb > 0 for node in seen.values())
        assert seen[site.nodes[0]].gpus == site.gpus_per_node
        assert seen[site.nodes[0]].gpu_shards == site.gpus_per_node * site.shards_per_gpu
        assert seen[site.nodes[0]].gpu_model == site.gpu_model

    def test_job_runs_on_the_requested_node(self, site: Site):
        request = site.work(seconds=LONG)

        backend_id = site.backend.submit(request)

        running = site.until(request, is_running)
        assert (running.backend_id, running.nodes) == (backend_id, request.nodes)
        assert 0 < len(backend_id) <= MAX_BACKEND_ID_LENGTH
        assert list(held_gpus(running).values()) == [request.gpus_per_node] * bool(site.gpus_per_node)
        site.backend.cancel(backend_id)
        site.until_final(request)

    def test_shards_of_jobs_are_on_one_gpu_until_it_is_full(self, site: Site):
        if not site.shards_per_gpu:
            return  # the simulated and the real Slurm share GPUs
        half = site.shards_per_gpu // 2
        node = site.nodes[-1]
        requests = [
            site.work(seconds=LONG, nodes=(node,), gpus_per_node=0, gpu_shards=shards) for shards in (half, half, 1)
        ]

        for request in requests:
            site.backend.submit(request)

        first, second, third = [site.until(request, is_running).gpus[node] for request in requests]
        assert len(first) == 1 and first == second
        assert len(third) == 1 and third != first
        for request in requests:
            site.backend.cancel(site.until(request, is_running).backend_id)
            site.until_final(request)

    def test_mps_shares_one_gpu_of_a_node_at_a_time(self, site: Site):
        if not (node := site.mps_node):
            return  # the simulated and the real Slurm have MPS
        offer = node_of(site, node)
        assert (offer.share_gres, offer.gpu_shards) == (MPS, MPS_PER_GPU * site.gpus_per_node)
        needs = [{"gpu_shards": parts, "share_gres": MPS} for parts in (60, 40, 25)]
        first, second, third = (site.work(seconds=LONG, nodes=(node,), gpus_per_node=0, **need) for need in needs)
        whole = site.work(seconds=LONG, nodes=(node,), gpus_per_node=1)

        for request in (first, second, whole, third):
            site.backend.submit(request)

        gpus = [site.until(request, is_running).gpus[node] for request in (first, second, whole)]
        assert gpus[0] == gpus[1] != gpus[2]
        assert site.until(third, lambda seen: bool(seen.reason)).state == State.PENDING
        site.backend.cancel(site.backend.find(second.key).backend_id)
        assert site.until(third, is_running).gpus[node] == gpus[0]
        for request in (first, second, whole, third):
            site.backend.cancel(site.backend.find(request.key).backend_id)
            site.until_final(request)

    def test_mig_slices_are_held_one_by_one(self, site: Site):
        if not site.mig_slices:
            return  # Kubernetes has MIG slices
        node = site.nodes[-1]
        assert node_of(site, node).mig_slices == site.mig_slices
        profile, count = min(site.mig_slices.items(), key=lambda one: one[1])
        requests = [
            site.work(seconds=LONG, nodes=(node,), gpus_per_node=0, mig_profile=profile) for _ in range(count + 1)
        ]

        for request in requests:
            site.backend.submit(request)

        holders, waiter = requests[:-1], requests[-1]
        for request in holders:
            assert site.until(request, is_running).mig_counts == {node: {profile: 1}}
        waiting = site.until(waiter, lambda seen: bool(seen.reason))
        assert waiting.state == State.PENDING and f"0 MIG slices {profile} free" in waiting.reason
        site.backend.cancel(site.backend.find(holders[0].key).backend_id)
        assert site.until(waiter, is_running).gpu_counts == {node: 1}
        for request in requests:
            site.backend.cancel(site.backend.find(request.key).backend_id)
            site.until_final(request)

    def test_job_that_succeeds_is_completed(self, site: Site):
        request = site.work(seconds=1)

        site.backend.submit(request)

        ended = site.until_final(request)
        assert (ended.state, ended.exit_code, ended.signal, ended.nodes) == (State.COMPLETED, 0, None, request.nodes)
        assert ended.submitted_at <= ended.started_at <= ended.ended_at

    def test_attempt_writes_its_record(self, site: Site):
        request = site.work(exit_code=3)
        directory = record_directory(request.stdout)
        environment = {**request.environment, RECORD_VARIABLE: directory}

        site.backend.submit(replace(request, record=directory, environment=environment))

        site.until_final(request)
        lines = (Path(directory, name).read_text() for name in ("start", "exit"))
        record = read_record(*lines)
        assert record.started and record.exit_code == 3

    def test_job_with_an_image_that_the_cluster_does_not_offer_is_refused(self, site: Site):
        request = site.work(image="registry.example/no-such-image:1")

        with pytest.raises(RequestRejected, match="image"):
            site.backend.submit(request)

        assert site.backend.find(request.key) is None

    def test_failed_job_reports_its_exit_code(self, site: Site):
        request = site.work(exit_code=3)

        site.backend.submit(request)

        ended = site.until_final(request)
        assert (ended.state, ended.exit_code) == (State.FAILED, 3)

    def test_multi_node_job_gets_all_its_nodes(self, site: Site):
        request = site.work(seconds=LONG, on=2)

        backend_id = site.backend.submit(request)

        running = site.until(request, is_running)
        assert set(running.nodes) == set(request.nodes)
        assert held_gpus(running) == dict.fromkeys(request.nodes, 2)
        site.backend.cancel(backend_id)
        site.until_final(request)

    def test_cancelled_job_ends_and_can_be_cancelled_again(self, site: Site):
        request = site.work(seconds=LONG)
        backend_id = site.backend.submit(request)
        site.until(request, is_running)

        site.backend.cancel(backend_id)

        assert site.until_final(request).state == State.CANCELLED
        site.backend.cancel(backend_id)

    def test_pending_job_has_a_reason_and_can_be_cancelled(self, site: Site):
        whole = next(node.cpus for node in site.backend.nodes() if node.name == site.nodes[0])
        holder, waiter = (site.work(seconds=LONG, cpus_per_node=whole, gpus_per_node=0) for _ in range(2))
        holder_id = site.backend.submit(holder)
        site.until(holder, is_running)

        waiter_id = site.backend.submit(waiter)

        waiting = site.until(waiter, lambda seen: bool(seen.reason))
        assert (waiting.state, waiting.nodes, waiting.started_at) == (State.PENDING, (), None)
        for backend_id in (waiter_id, holder_id):
            site.backend.cancel(backend_id)
        assert site.until_final(waiter).state == State.CANCELLED
        site.until_final(holder)

    def test_job_is_found_by_its_key_and_the_newest_one_is_returned(self, site: Site):
        request = site.work()
        site.backend.submit(request)

        second = site.backend.submit(request)

        assert site.backend.find(request.key).backend_id == second
        assert site.backend.find(f"{request.key}-unknown") is None
        site.until_final(request)

    def test_accounting_reports_the_end_of_a_job_or_is_unavailable(self, site: Site):
        request = site.work(exit_code=3)
        backend_id = site.backend.submit(request)
        ended = site.until_final(request)
        questions = (
            lambda: site.backend.accounting_jobs(backend_id),
            lambda: site.backend.accounting_jobs_since(ended.submitted_at),
        )
        if not site.accounting:
            for question in questions:
                with pytest.raises(AccountingUnavailable):
                    question()
            return

        for question in questions:
            (recorded,) = [job for job in question() if job.key == request.key]
            assert (recorded.backend_id, recorded.state, recorded.exit_code) == (backend_id, State.FAILED, 3)
            assert recorded.submitted_at == ended.submitted_at
        assert site.backend.accounting_jobs("99999999") == []

    def test_all_rows_of_a_healthy_cluster_are_readable(self, site: Site):
        assert (site.backend.nodes().unreadable, site.backend.jobs().unreadable) == ((), ())

    def test_cancelling_an_unknown_job_does_not_fail(self, site: Site):
        site.backend.cancel("99999999")

    def test_job_of_another_client_has_no_key(self, site: Site):
        if site.submit_elsewhere is None:
            pytest.skip("there is no other way to submit here")

        backend_id = site.submit_elsewhere()

        def look() -> BackendJob | None:
            return next((job for job in site.backend.jobs() if job.backend_id == backend_id), None)

        assert until(look, what="the job of the other client").key == ""

    def test_impossible_submission_is_rejected_with_a_reason(self, site: Site):
        for impossible in (site.work(nodes=("no-such-node",)), site.work(gpus_per_node=999)):
            with pytest.raises(RequestRejected, match=r"\w+ \w+"):
                site.backend.submit(impossible)

    def test_drained_node_accepts_no_jobs_until_it_is_resumed(self, site: Site):
        node = site.nodes[-1]
        if not site.drains:
            with pytest.raises(RequestRejected, match=r"drain and resume need scontrol or API >= v0\.0\.39"):
                site.backend.drain(node, "test")
            return

        site.backend.drain(node, "fan is loud")

        drained = self._node(site, node)
        assert ("DRAIN" in drained.flags, drained.reason) == (True, "fan is loud")
        site.backend.resume(node)
        # Its last job may still be completing, and the job of another test may run there
        until(lambda: not self._node(site, node).flags, what="resumed")
        assert self._node(site, node).state in {NodeState.IDLE, NodeState.MIXED}

    def test_draining_an_unknown_node_is_rejected(self, site: Site):
        with pytest.raises(RequestRejected):
            site.backend.drain("no-such-node", "test")

    def test_job_output_is_written_to_its_file(self, site: Site):
        request = site.work()

        site.backend.submit(request)

        site.until_final(request)
        if site.backend.traits.writes_logs:
            assert Path(request.stdout).is_file()

    def test_job_without_a_log_path_runs(self, site: Site):
        request = site.work(stdout="")

        backend_id = site.backend.submit(request)

        assert site.until_final(request).state == State.COMPLETED
        Path(request.workdir, f"slurm-{backend_id}.out").unlink(missing_ok=True)  # Slurm's default path

    def test_drained_node_finishes_its_job_and_starts_no_other(self, site: Site):
        if not site.drains:
            return  # test_drained_node_accepts_no_jobs_until_it_is_resumed checks the rejection
        node = site.nodes[len(site.nodes) // 2 - 1]
        running, waiting = site.work(seconds=5, nodes=(node,)), site.work(nodes=(node,))
        site.backend.submit(running)
        site.until(running, has_begun)

        site.backend.drain(node, "fan is loud")
        site.backend.submit(waiting)

        assert site.until_final(running).state == State.COMPLETED
        assert site.backend.find(waiting.key).state == State.PENDING
        site.backend.resume(node)
        assert site.until_final(waiting).state == State.COMPLETED

    def test_stopped_work_can_be_submitted_again_with_a_new_key(self, site: Site):
        first, again = site.work(seconds=LONG), site.work()
        backend_id = site.backend.submit(first)
        site.until(first, is_running)

        site.backend.cancel(backend_id)
        site.until_final(first)
        site.backend.submit(again)

        assert site.until_final(again).state == State.COMPLETED
        assert site.backend.find(first.key).state == State.CANCELLED

    @pytest.mark.timeout(180)
    def test_job_over_its_time_limit_ends_with_timeout(self, site: Site):
        assert site.limited is not None
        ended = site.until(site.limited, lambda seen: seen.state in FINAL_STATES and not seen.flags)

        assert ended.state == State.TIMEOUT
        assert (ended.ended_at - ended.started_at).total_seconds() >= 55

    def test_node_failure_ends_its_jobs_and_the_node_comes_back(self, site: Site):
        hazards, node = site.hazards, site.nodes[1]
        request = site.work(seconds=LONG, nodes=(node,))
        site.backend.submit(request)
        site.until(request, is_running)

        hazards.kill_node(node)

        try:
            ended = site.until(request, lambda seen: seen.state in FINAL_STATES)
            assert ended.state == State.NODE_FAIL
            assert self._node(site, node).state == NodeState.DOWN
        finally:
            hazards.revive_node(node)
        until(lambda: self._node(site, node).state == NodeState.IDLE, what="the node is back")

    def test_jobs_survive_a_restart_of_the_controller(self, site: Site):
        hazards = site.hazards
        request, ended = site.work(seconds=4), site.work()
        site.backend.submit(ended)
        site.until_final(ended)
        backend_id = site.backend.submit(request)
        site.until(request, has_begun)

        hazards.restart_controller()

        known = {job.key: job for job in site.backend.jobs()}
        assert (known[request.key].backend_id, known[ended.key].state) == (backend_id, State.COMPLETED)
        assert site.until_final(request).state == State.COMPLETED

    def test_outage_raises_unreachable_and_loses_no_job(self, site: Site):
        hazards = site.hazards
        request = site.work(seconds=2)
        site.backend.submit(request)

        hazards.cut()

        try:
            for question in (site.backend.jobs, site.backend.nodes, lambda: site.backend.submit(site.work())):
                with pytest.raises(ClusterUnreachable):
                    question()
        finally:
            hazards.mend()
        assert site.until_final(request).state == State.COMPLETED

    def test_address_without_a_server_is_unreachable(self, site: Site):
        nobody = open_backend("http://127.0.0.1:9", timeout_s=1)

        with pytest.raises(ClusterUnreachable):
            nobody.ping()

    def _node(self, site: Site, name: str) -> BackendNode:
        return node_of(site, name)


def node_of(site: Site, name: str) -> BackendNode:
    return next(node for node in site.backend.nodes() if node.name == name)


class SleepContract:
    """For clusters that power their nodes down and up themselves."""

    def test_node_sleeps_and_wakes_up_for_a_job(self, site: Site):
        """The cluster's own means: a job that is submitted to the node wakes it up."""
        node = site.nodes[-1]

        site.backend.power_down(node)
        site.backend.power_down(node)

        until(lambda: NodeFlag.POWERED_DOWN in node_of(site, node).flags, what="asleep")
        assert node_of(site, node).state == NodeState.IDLE
        request = site.work(nodes=(node,))
        site.backend.submit(request)
        assert site.until_final(request).state == State.COMPLETED
        until(lambda: not node_of(site, node).flags, what="awake")

    def test_node_that_sleeps_is_woken_up(self, site: Site):
        node = site.nodes[-1]
        site.backend.power_down(node)
        until(lambda: NodeFlag.POWERED_DOWN in node_of(site, node).flags, what="asleep")

        site.backend.power_up(node)
        until(lambda: NodeFlag.POWERED_DOWN not in node_of(site, node).flags, what="booting")
        site.backend.power_up(node)

        until(lambda: not node_of(site, node).flags, what="awake")
        site.backend.power_up(node)
        assert node_of(site, node).flags == frozenset()
