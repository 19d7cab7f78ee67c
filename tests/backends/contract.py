"""What any backend owes: one suite for the simulated cluster, for this machine, and for a real Slurm.

A subclass gives the fixture `site`. A job is asked for in two languages at once, a script for a cluster that runs it
and hints for one that plays it; nothing here knows which kind it talks to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from jobs.core.lifecycle import FINAL_STATES, NodeState, State
from scheduling.backends.base import (
    AccountingUnavailable,
    Backend,
    BackendJob,
    ClusterUnreachable,
    RequestRejected,
    SubmitRequest,
)
from scheduling.backends.opening import open_backend
from tests.patience import PATIENCE_S, until

keys = count(1)
LONG = 3600.0  # somebody cancels it, or its node dies; no machine is so slow that it ends before


class Hazards(Protocol):
    """What can be done to a cluster from outside. Each verb has its remedy, and both return when they are done."""

    def kill_node(self, name: str) -> None: ...

    def revive_node(self, name: str) -> None: ...

    def restart_controller(self) -> None:
        """Ended and started again; by kill -9 where it promises to survive that. Slurm saves its state by and by."""
        ...

    def cut(self) -> None:
        """Nobody answers any more at the address."""
        ...

    def mend(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster under test, and what it has."""

    backend: Backend
    nodes: tuple[str, ...]
    output: Path
    gpus_per_node: int = 0
    gpu_model: str = ""
    drains: bool = True
    accounting: bool = False  # remembers ended jobs with their keys
    submit_elsewhere: Callable[[], str] | None = None  # a job that is not ours, by other means than the adapter
    hazards: Hazards | None = None
    limited: SubmitRequest | None = (
        None  # was sent when the site came up, so that nobody waits a whole minute for its end
    )

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
            seen = self.backend.find(what.key)
            return seen if seen is not None and is_so(seen) else None

        return until(look, within_s=within_s, what=f"{what.key}: {self.backend.find(what.key)}")

    def until_final(self, what: SubmitRequest) -> BackendJob:
        return self.until(what, lambda seen: seen.state in FINAL_STATES and not seen.flags)


def is_running(seen: BackendJob) -> bool:
    return seen.state == State.RUNNING and not seen.flags


def has_begun(seen: BackendJob) -> bool:
    """Of a job so short that it may be over before a slow machine looks again."""
    return is_running(seen) or seen.state in FINAL_STATES


class BackendContract:
    def test_it_says_who_it_is(self, site: Site):
        greeting = site.backend.ping()

        assert greeting.product.startswith("slurm ")
        assert greeting.api.startswith("v0.0.")

    def test_its_nodes_have_names_and_sizes(self, site: Site):
        seen = {node.name: node for node in site.backend.nodes()}

        assert set(site.nodes) <= set(seen)
        assert all(node.cpus > 0 and node.memory_mb > 0 for node in seen.values())
        assert seen[site.nodes[0]].gpus == site.gpus_per_node
        assert seen[site.nodes[0]].gpu_model == site.gpu_model

    def test_a_job_runs_on_the_node_it_was_given(self, site: Site):
        asked = site.work(seconds=LONG)

        backend_id = site.backend.submit(asked)

        running = site.until(asked, is_running)
        assert (running.backend_id, running.nodes) == (backend_id, asked.nodes)
        assert [len(indices) for indices in running.gpus.values()] == [asked.gpus_per_node] * bool(site.gpus_per_node)
        site.backend.cancel(backend_id)
        site.until_final(asked)

    def test_a_job_that_ends_well_is_completed(self, site: Site):
        asked = site.work(seconds=1)

        site.backend.submit(asked)

        ended = site.until_final(asked)
        assert (ended.state, ended.exit_code, ended.signal, ended.nodes) == (State.COMPLETED, 0, None, asked.nodes)
        assert ended.submitted_at <= ended.started_at <= ended.ended_at

    def test_a_failing_job_tells_its_exit_code(self, site: Site):
        asked = site.work(exit_code=3)

        site.backend.submit(asked)

        ended = site.until_final(asked)
        assert (ended.state, ended.exit_code) == (State.FAILED, 3)

    def test_a_gang_has_all_of_its_nodes(self, site: Site):
        asked = site.work(seconds=LONG, on=2)

        backend_id = site.backend.submit(asked)

        running = site.until(asked, is_running)
        assert set(running.nodes) == set(asked.nodes)
        assert {node: len(indices) for node, indices in running.gpus.items()} == dict.fromkeys(asked.nodes, 2)
        site.backend.cancel(backend_id)
        site.until_final(asked)

    def test_a_cancelled_job_ends_and_may_be_cancelled_again(self, site: Site):
        asked = site.work(seconds=LONG)
        backend_id = site.backend.submit(asked)
        site.until(asked, is_running)

        site.backend.cancel(backend_id)

        assert site.until_final(asked).state == State.CANCELLED
        site.backend.cancel(backend_id)

    def test_a_job_that_waits_says_why_and_can_be_cancelled(self, site: Site):
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

    def test_a_job_is_found_by_its_key_and_the_newest_one_wins(self, site: Site):
        asked = site.work()
        site.backend.submit(asked)

        second = site.backend.submit(asked)

        assert site.backend.find(asked.key).backend_id == second
        assert site.backend.find(f"{asked.key}-unknown") is None
        site.until_final(asked)

    def test_accounting_tells_how_a_job_ended_or_that_there_is_none(self, site: Site):
        asked = site.work(exit_code=3)
        backend_id = site.backend.submit(asked)
        ended = site.until_final(asked)
        questions = (
            lambda: site.backend.accounted(backend_id),
            lambda: site.backend.accounted_since(ended.submitted_at),
        )
        if not site.accounting:
            for question in questions:
                with pytest.raises(AccountingUnavailable):
                    question()
            return

        for question in questions:
            (recorded,) = [job for job in question() if job.key == asked.key]
            assert (recorded.backend_id, recorded.state, recorded.exit_code) == (backend_id, State.FAILED, 3)
            assert recorded.submitted_at == ended.submitted_at
        assert site.backend.accounted("99999999") == []

    def test_every_row_of_a_healthy_cluster_can_be_read(self, site: Site):
        assert (site.backend.nodes().unreadable, site.backend.jobs().unreadable) == ((), ())

    def test_cancelling_what_nobody_knows_is_no_error(self, site: Site):
        site.backend.cancel("99999999")

    def test_a_foreign_job_is_seen_without_a_key(self, site: Site):
        if site.submit_elsewhere is None:
            pytest.skip("there is no other way to submit here")

        backend_id = site.submit_elsewhere()

        seen = {job.backend_id: job for job in site.backend.jobs()}
        assert seen[backend_id].key == ""

    def test_a_submission_that_can_never_run_is_refused_with_a_reason(self, site: Site):
        for impossible in (site.work(nodes=("no-such-node",)), site.work(gpus_per_node=999)):
            with pytest.raises(RequestRejected, match=r"\w+ \w+"):
                site.backend.submit(impossible)

    def test_a_drained_node_takes_no_work_until_it_is_resumed(self, site: Site):
        node = site.nodes[-1]
        if not site.drains:
            with pytest.raises(RequestRejected, match=r"drain and resume need scontrol or API >= v0\.0\.39"):
                site.backend.drain(node, "test")
            return

        site.backend.drain(node, "fan is loud")

        drained = self._node(site, node)
        assert ("DRAIN" in drained.flags, drained.reason) == (True, "fan is loud")
        site.backend.resume(node)
        resumed = NodeState.IDLE, ()  # who ran there may only now be leaving
        until(lambda: (self._node(site, node).state, tuple(self._node(site, node).flags)) == resumed, what="resumed")

    def test_draining_an_unknown_node_is_refused(self, site: Site):
        with pytest.raises(RequestRejected):
            site.backend.drain("no-such-node", "test")

    def test_the_jobs_output_is_in_its_file(self, site: Site):
        asked = site.work()

        site.backend.submit(asked)

        site.until_final(asked)
        assert Path(asked.stdout).is_file()

    def test_a_job_without_a_log_of_its_own_runs_all_the_same(self, site: Site):
        asked = site.work(stdout="")

        backend_id = site.backend.submit(asked)

        assert site.until_final(asked).state == State.COMPLETED
        Path(asked.workdir, f"slurm-{backend_id}.out").unlink(missing_ok=True)  # where Slurm puts it then

    def test_a_drained_node_lets_its_job_finish_and_starts_no_other(self, site: Site):
        if not site.drains:
            return  # that it is refused, the other test says
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

    def test_what_was_stopped_is_sent_again_under_a_new_key(self, site: Site):
        first, again = site.work(seconds=LONG), site.work()
        backend_id = site.backend.submit(first)
        site.until(first, is_running)

        site.backend.cancel(backend_id)
        site.until_final(first)
        site.backend.submit(again)

        assert site.until_final(again).state == State.COMPLETED
        assert site.backend.find(first.key).state == State.CANCELLED

    @pytest.mark.timeout(180)
    def test_a_job_past_its_limit_is_ended_and_says_so(self, site: Site):
        assert site.limited is not None
        ended = site.until(site.limited, lambda seen: seen.state in FINAL_STATES and not seen.flags)

        assert ended.state == State.TIMEOUT
        assert (ended.ended_at - ended.started_at).total_seconds() >= 55

    def test_a_node_that_dies_takes_its_jobs_along_and_comes_back(self, site: Site):
        hazards, node = site.hazards, site.nodes[1]
        asked = site.work(seconds=LONG, nodes=(node,))
        site.backend.submit(asked)
        site.until(asked, is_running)

        hazards.kill_node(node)

        try:
            ended = site.until(asked, lambda seen: seen.state in FINAL_STATES)
            assert ended.state == State.NODE_FAIL
            assert self._node(site, node).state == NodeState.DOWN
        finally:
            hazards.revive_node(node)
        until(lambda: self._node(site, node).state == NodeState.IDLE, what="the node is back")

    def test_jobs_do_not_notice_that_the_controller_was_restarted(self, site: Site):
        hazards = site.hazards
        asked, ended = site.work(seconds=4), site.work()
        site.backend.submit(ended)
        site.until_final(ended)
        backend_id = site.backend.submit(asked)
        site.until(asked, has_begun)

        hazards.restart_controller()

        known = {job.key: job for job in site.backend.jobs()}
        assert (known[asked.key].backend_id, known[ended.key].state) == (backend_id, State.COMPLETED)
        assert site.until_final(asked).state == State.COMPLETED

    def test_a_cluster_that_is_away_is_unreachable_and_loses_nothing(self, site: Site):
        hazards = site.hazards
        asked = site.work(seconds=2)
        site.backend.submit(asked)

        hazards.cut()

        try:
            for question in (site.backend.jobs, site.backend.nodes, lambda: site.backend.submit(site.work())):
                with pytest.raises(ClusterUnreachable):
                    question()
        finally:
            hazards.mend()
        assert site.until_final(asked).state == State.COMPLETED

    def test_an_address_where_nobody_listens_is_unreachable(self, site: Site):
        nobody = open_backend("http://127.0.0.1:9", timeout_s=1)

        with pytest.raises(ClusterUnreachable):
            nobody.ping()

    def _node(self, site: Site, name: str):
        return next(node for node in site.backend.nodes() if node.name == name)
