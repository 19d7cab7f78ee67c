"""All changes to pair tests of nodes. Each function is one transaction with its Events.

Nodes under test and their partners accept no jobs during the test. Afterwards the test resumes the nodes it drained,
except faulty nodes and nodes that a user has drained or resumed since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import transaction

from acmeweb.common import live
from acmeweb.common.errors import StateConflict
from failures.models import Decision
from failures.recovery.decisions import RECOVERY_AUTHOR
from failures.recovery.rules import pair_tests
from failures.recovery.rules.pair_tests import GroupResult, NodeGroup, PairTestVerdict
from jobs.actions import journal
from jobs.actions import nodes as node_actions
from jobs.core.lifecycle import USABLE_NODE_STATES
from jobs.models import Allocation, Cluster, DrainMode, Node
from scheduling.models import NodeTest, PairTestJob

PASSED_REASON = "The node passed a test with a partner."
FAILED_REASON = "The node failed with two partners, one of them known to be good."


@transaction.atomic
def start_node_test(
    cluster: Cluster,
    names: Collection[str],
    *,
    why: str,
    now: datetime,
    decision: Decision | None = None,
    reopen: Collection[str] = (),
) -> NodeTest:
    """Drain the nodes and create the test jobs of round one; without any, the test ends at once. Idempotent per
    decision. `reopen` are already drained nodes that are resumed if they pass."""
    if decision is not None and (existing := NodeTest.objects.filter(decision=decision).first()):
        return existing
    rows = list(Node.objects.select_for_update().filter(cluster=cluster, name__in=names).order_by("name"))
    away = {
        node.name: f"the cluster reports it {node.condition}" for node in rows if node.state not in USABLE_NODE_STATES
    }
    busy = _nodes_with_jobs(rows)
    able = [node for node in rows if node.name not in away and node.name not in busy]
    partners = _idle_partners(cluster, able, names) if len(able) == 1 else []
    test = NodeTest.objects.create(
        cluster=cluster, decision=decision, nodes=[node.name for node in able],
        partners=[node.name for node in partners], faulty=sorted(away), began_at=now, closed=sorted(reopen),
        unjudged=dict.fromkeys(sorted(busy), "other jobs are running on it"),
    )  # fmt: skip
    _drain_nodes(test, [*able, *partners], why, now)
    _create_test_jobs(test, 1, [pair_tests.first_round_groups(test.nodes, test.partners)])
    for node in able:
        detail = {"test": test.pk, "with": test.partners}
        journal.node_event("node.test_requested", RECOVERY_AUTHOR, node, why=why, detail=detail).save()
    return test if test.pair_tests.exists() else advance_node_test(test, now)


def _nodes_with_jobs(rows: Sequence[Node]) -> set[str]:
    held = Allocation.objects.filter(node__in=rows, released_at__isnull=True)
    return set(held.values_list("node__name", flat=True))


def _idle_partners(cluster: Cluster, suspects: Sequence[Node], tested: Collection[str]) -> list[Node]:
    """Return at most one idle, healthy node with the same GPU model, locked."""
    idle = Node.objects.usable().filter(cluster=cluster, gpu_model__in={node.gpu_model for node in suspects})
    free = idle.exclude(name__in=tested).exclude(foreign_gpus__len__gt=0)
    held = Allocation.objects.filter(released_at__isnull=True).values("node")
    return list(free.exclude(pk__in=held).select_for_update(of=("self",)).order_by("name")[:1])


def _drain_nodes(test: NodeTest, rows: Sequence[Node], why: str, now: datetime) -> None:
    closed = []
    for node in rows:
        if not node.drain_requested:
            node_actions.drain(node, author=RECOVERY_AUTHOR, why=why, now=now, mode=DrainMode.FINISH)
            closed.append(node.name)
    NodeTest.objects.filter(pk=test.pk).update(closed=sorted({*test.closed, *closed}))
    test.refresh_from_db()


def _create_test_jobs(test: NodeTest, number: int, waves: Sequence[Sequence[NodeGroup]]) -> None:
    rows = [
        PairTestJob(test=test, round=number, wave=wave, nodes=list(world))
        for wave, worlds in enumerate(waves)
        for world in worlds
    ]
    PairTestJob.objects.bulk_create(rows, ignore_conflicts=True)


def record_test_job_result(world: PairTestJob, passed: bool | None, why: str, now: datetime) -> None:
    PairTestJob.objects.filter(pk=world.pk, ended_at=None).update(ended_at=now, passed=passed, why=why)


@transaction.atomic
def advance_node_test(test: NodeTest, now: datetime) -> NodeTest:
    """Start the next round or record the verdict once all test jobs of a round have ended. Idempotent."""
    test = NodeTest.objects.select_for_update().get(pk=test.pk)
    if test.ended_at or test.pair_tests.filter(ended_at=None).exists():
        return test
    first, later = _round_results(test, 1), _round_results(test, 2)
    if test.round == 1:
        test.round = 2
        test.save(update_fields=["round"])
        if waves := _second_round_waves(test, first, now):
            _create_test_jobs(test, 2, waves)
            return test
    _finish_node_test(test, pair_tests.pair_test_verdict(test.nodes, first, later, test.partners), now)
    return test


def _second_round_waves(test: NodeTest, first: Sequence[GroupResult], now: datetime) -> Sequence[Sequence[NodeGroup]]:
    """Return the test jobs of round two. If no group passed round one, an idle node from outside is the partner."""
    failed = any(result.passed is False for result in first)
    if failed and not any(result.passed for result in first) and not test.partners:
        suspects = list(Node.objects.filter(cluster=test.cluster_id, name__in=test.nodes))
        partners = _idle_partners(test.cluster, suspects, test.nodes)
        test.partners = [node.name for node in partners]
        test.save(update_fields=["partners"])
        _drain_nodes(test, partners, f"Partner in {test}", now)
    return pair_tests.second_round_waves(test.nodes, first, test.partners)


@transaction.atomic
def abort_node_test(test: NodeTest, why: str, now: datetime) -> None:
    """End the test without a verdict and resume the nodes it drained."""
    test = NodeTest.objects.select_for_update().get(pk=test.pk)
    if test.ended_at is None:
        test.pair_tests.filter(ended_at=None).update(ended_at=now, why=why)
        _finish_node_test(
            test, PairTestVerdict(good=frozenset(), faulty=frozenset(), unjudged=dict.fromkeys(test.nodes, why)), now
        )


def _round_results(test: NodeTest, number: int) -> list[GroupResult]:
    rows = test.pair_tests.filter(round=number)
    return [GroupResult(nodes=tuple(row.nodes), passed=row.passed, why=row.why) for row in rows]


def _finish_node_test(test: NodeTest, verdict: PairTestVerdict, now: datetime) -> None:
    faulty = sorted({*verdict.faulty, *test.faulty})
    unjudged = {**test.unjudged, **verdict.unjudged}
    whole = PairTestVerdict(good=verdict.good, faulty=frozenset(faulty), unjudged=unjudged, links=verdict.links)
    columns = {"good": sorted(verdict.good), "faulty": faulty, "unjudged": unjudged, "sentence": whole.sentence}
    NodeTest.objects.filter(pk=test.pk).update(ended_at=now, **columns)
    test.refresh_from_db()
    _log_node_results(test)
    for node in Node.objects.filter(cluster=test.cluster_id, name__in=test.closed).exclude(name__in=faulty):
        _resume_node(test, node, now)
    live.publish_on_commit("nodes", "failures")


def _log_node_results(test: NodeTest) -> None:
    for node in Node.objects.filter(cluster=test.cluster_id, name__in=test.nodes):
        passed = True if node.name in test.good else False if node.name in test.faulty else None
        why = test.unjudged.get(node.name, "") if passed is None else PASSED_REASON if passed else FAILED_REASON
        detail = {"test": test.pk, "passed": passed}
        journal.node_event("node.tested", RECOVERY_AUTHOR, node, why=why, detail=detail).save()
        if passed is False:
            node_actions.mark_for_repair(node, author=RECOVERY_AUTHOR, why=why)


def _resume_node(test: NodeTest, node: Node, now: datetime) -> None:
    """Resume the node, unless a user has drained it during the test."""
    if not node.drain_requested or node.reason_by != RECOVERY_AUTHOR.by:
        return
    try:
        node_actions.resume(node, author=RECOVERY_AUTHOR, why=f"{test}: {test.sentence}", now=now)
    except StateConflict:
        return
