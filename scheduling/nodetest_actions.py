"""The only code that changes a test of nodes. Each verb is one transaction with its Events.

Whoever is under test, or is a partner, takes no work meanwhile; those that the test closed it opens again, unless they
are faulty or somebody else has decided about them since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from django.db import transaction

from acmeweb import live
from failures import nodetest
from failures.models import Decision
from failures.nodetest import Outcome, Verdict, World
from jobs import journal, node_actions
from jobs.journal import Author
from jobs.lifecycle import USABLE_NODE
from jobs.models import Allocation, Cluster, DrainMode, Node
from jobs.node_actions import NodeError
from scheduling.models import NodeTest, TestWorld

RECOVERY = Author(by="recovery")
PASSED = "It passed beside a partner."
FAILED = "It failed beside two partners, one of them known to be good."


class NothingToTest(Exception):
    """The message is a sentence."""


@transaction.atomic
def begin(
    cluster: Cluster,
    names: Collection[str],
    *,
    why: str,
    now: datetime,
    decision: Decision | None = None,
    author: Author = RECOVERY,
    reopen: Collection[str] = (),
) -> NodeTest:
    """Close them, and write down the worlds of round one. For one decision once. `reopen` are those that are closed
    already and take work again if they are good."""
    if decision is not None and (known := NodeTest.objects.filter(decision=decision).first()):
        return known
    rows = list(Node.objects.select_for_update().filter(cluster=cluster, name__in=names).order_by("name"))
    away = {node.name: f"the cluster reports it {node.condition}" for node in rows if node.state not in USABLE_NODE}
    busy = _busy(rows)
    able = [node for node in rows if node.name not in away and node.name not in busy]
    partners = _partners(cluster, able, names) if len(able) == 1 else []
    test = NodeTest.objects.create(
        cluster=cluster, decision=decision, nodes=[node.name for node in able],
        partners=[node.name for node in partners], faulty=sorted(away), began_at=now, closed=sorted(reopen),
        unjudged=dict.fromkeys(sorted(busy), "other jobs run on it"),
    )  # fmt: skip
    _close(test, [*able, *partners], why, now, author)
    _worlds(test, 1, [nodetest.first_round(test.nodes, test.partners)])
    for node in able:
        detail = {"test": test.pk, "with": test.partners}
        journal.of_node("node.test_asked", author, node, why=why, detail=detail).save()
    return test


def _busy(rows: Sequence[Node]) -> set[str]:
    held = Allocation.objects.filter(node__in=rows, released_at__isnull=True)
    return set(held.values_list("node__name", flat=True))


def _partners(cluster: Cluster, suspects: Sequence[Node], asked: Collection[str]) -> list[Node]:
    """One that is idle and healthy, of the same kind."""
    idle = Node.objects.usable().filter(cluster=cluster, gpu_model__in={node.gpu_model for node in suspects})
    free = idle.exclude(name__in=asked).exclude(foreign_gpus__len__gt=0)
    held = Allocation.objects.filter(released_at__isnull=True).values("node")
    return list(free.exclude(pk__in=held).select_for_update(of=("self",)).order_by("name")[:1])


def _close(test: NodeTest, rows: Sequence[Node], why: str, now: datetime, author: Author) -> None:
    closed = []
    for node in rows:
        if not node.drain_asked:
            node_actions.drain(node, author=author, why=why, now=now, mode=DrainMode.FINISH)
            closed.append(node.name)
    NodeTest.objects.filter(pk=test.pk).update(closed=sorted({*test.closed, *closed}))
    test.refresh_from_db()


def _worlds(test: NodeTest, number: int, waves: Sequence[Sequence[World]]) -> None:
    rows = [
        TestWorld(test=test, round=number, wave=wave, nodes=list(world.nodes))
        for wave, worlds in enumerate(waves)
        for world in worlds
    ]
    TestWorld.objects.bulk_create(rows, ignore_conflicts=True)


def note(world: TestWorld, passed: bool | None, why: str, now: datetime) -> None:
    TestWorld.objects.filter(pk=world.pk, ended_at=None).update(ended_at=now, passed=passed, why=why)


@transaction.atomic
def go_on(test: NodeTest, now: datetime) -> NodeTest:
    """A round is over: the next one, or the verdict. Whoever comes second finds it done."""
    test = NodeTest.objects.select_for_update().get(pk=test.pk)
    if test.ended_at or test.worlds.filter(ended_at=None).exists():
        return test
    first, later = _outcomes(test, 1), _outcomes(test, 2)
    if test.round == 1:
        test.round = 2
        test.save(update_fields=["round"])
        if waves := _second(test, first, now):
            _worlds(test, 2, waves)
            return test
    _conclude(test, nodetest.verdict(test.nodes, first, later, test.partners), now)
    return test


def _second(test: NodeTest, first: Sequence[Outcome], now: datetime) -> Sequence[Sequence[World]]:
    """Where nobody passed, somebody from outside is asked to be the partner."""
    failed = any(one.passed is False for one in first)
    if failed and not any(one.passed for one in first) and not test.partners:
        suspects = list(Node.objects.filter(cluster=test.cluster_id, name__in=test.nodes))
        found = _partners(test.cluster, suspects, test.nodes)
        test.partners = [node.name for node in found]
        test.save(update_fields=["partners"])
        _close(test, found, f"It is the partner in {test}", now, RECOVERY)
    return nodetest.second_round(test.nodes, first, test.partners)


@transaction.atomic
def call_off(test: NodeTest, why: str, now: datetime) -> None:
    """Nobody wants to know any more: nobody is judged, and whom it closed takes work again."""
    test = NodeTest.objects.select_for_update().get(pk=test.pk)
    if test.ended_at is None:
        test.worlds.filter(ended_at=None).update(ended_at=now, why=why)
        _conclude(test, Verdict(good=frozenset(), faulty=frozenset(), unjudged=dict.fromkeys(test.nodes, why)), now)


def _outcomes(test: NodeTest, number: int) -> list[Outcome]:
    rows = test.worlds.filter(round=number)
    return [Outcome(nodes=tuple(row.nodes), passed=row.passed, why=row.why) for row in rows]


def _conclude(test: NodeTest, found: Verdict, now: datetime) -> None:
    faulty = sorted({*found.faulty, *test.faulty})
    unjudged = {**test.unjudged, **found.unjudged}
    whole = Verdict(good=found.good, faulty=frozenset(faulty), unjudged=unjudged, links=found.links)
    ended = {"good": sorted(found.good), "faulty": faulty, "unjudged": unjudged, "sentence": whole.sentence}
    NodeTest.objects.filter(pk=test.pk).update(ended_at=now, **ended)
    test.refresh_from_db()
    _tell_nodes(test)
    for node in Node.objects.filter(cluster=test.cluster_id, name__in=test.closed).exclude(name__in=faulty):
        _open(test, node, now)
    live.changed("nodes", "failures")


def _tell_nodes(test: NodeTest) -> None:
    for node in Node.objects.filter(cluster=test.cluster_id, name__in=test.nodes):
        passed = True if node.name in test.good else False if node.name in test.faulty else None
        why = test.unjudged.get(node.name, "") if passed is None else PASSED if passed else FAILED
        detail = {"test": test.pk, "passed": passed}
        journal.of_node("node.tested", RECOVERY, node, why=why, detail=detail).save()
        if passed is False:
            node_actions.to_repair(node, author=RECOVERY, why=why)


def _open(test: NodeTest, node: Node, now: datetime) -> None:
    """Not what a person closed, or closed anew, while the test went on."""
    if not node.drain_asked or node.reason_by != RECOVERY.by:
        return
    try:
        node_actions.resume(node, author=RECOVERY, why=f"{test}: {test.sentence}", now=now)
    except NodeError:
        return
