"""Run pair tests of nodes. Each pair (a PairTestJob) is one job on the cluster.

Eligible rows     Open tests of the cluster, the oldest first, with the unfinished test jobs of their current round;
                  the waves of round two run one after the other. A test whose decision was undone is aborted.
What a turn does  Makes one step of each test job (submit, resume its nodes, drain them, record the result). After a
                  round, starts the next round or records the verdict.
Failure story     A test job is looked up by its key before it is submitted, so it runs once; its result is written
                  only if there is none. If the cluster is unreachable, nothing changes. A test job that does not start
                  within ten minutes has no result. Nodes stay drained until the verdict, which resumes them in the
                  same transaction.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path

from failures.models import DecisionState
from jobs.actions.nodes import NodeTestResult
from jobs.actions.one_row import skip_row_on_error
from jobs.core.lifecycle import FINAL_STATES
from jobs.models import Cluster, ClusterMode, Node
from scheduling.actions import node_tests as node_test_actions
from scheduling.backends.base import Backend, SubmitRequest
from scheduling.checks import world as program
from scheduling.loops import node_tests
from scheduling.models import NodeTest, PairTestJob

MAX_TESTS_PER_TURN = 64
FIRST_PORT, PORT_COUNT = 20_000, 12_000  # below the ephemeral ports of the system


def advance_pair_tests_once(cluster: Cluster, backend: Backend, now: datetime) -> int:
    """Advance the tests. Return how many ended."""
    if cluster.mode != ClusterMode.DRIVE:
        return 0
    ended = 0
    tests = NodeTest.objects.open().filter(cluster=cluster).select_related("cluster", "decision").order_by("pk")
    for test in tests[:MAX_TESTS_PER_TURN]:
        with skip_row_on_error(test):
            ended += _advance_pair_test(test, backend, now)
    return ended


def _advance_pair_test(test: NodeTest, backend: Backend, now: datetime) -> bool:
    if test.decision and test.decision.state in (DecisionState.UNDONE, DecisionState.WITHDRAWN):
        for world in _current_wave(test):
            if (seen := backend.find(world.key)) and seen.state not in FINAL_STATES:
                backend.cancel(seen.backend_id)
        node_test_actions.abort_node_test(test, f"the decision was {test.decision.state}", now)
        return True
    for world in _current_wave(test):
        _advance_pair_job(test, world, backend, now)
    return node_test_actions.advance_node_test(test, now).ended_at is not None


def _current_wave(test: NodeTest) -> list[PairTestJob]:
    """Return the unfinished test jobs of the current wave."""
    open_ = list(test.pair_tests.filter(ended_at=None))
    return [world for world in open_ if (world.round, world.wave) == (open_[0].round, open_[0].wave)]


def _advance_pair_job(test: NodeTest, world: PairTestJob, backend: Backend, now: datetime) -> None:
    nodes = list(Node.objects.filter(cluster=test.cluster_id, name__in=world.nodes).order_by("name"))
    job = submission(test, world, nodes, backend.traits.rank_launcher)
    probe = node_tests.NodeTestJob(nodes=nodes, since=world.created_at, why=str(test), job=job)
    result = node_tests.advance_test_job(probe, backend, now)
    if isinstance(result, NodeTestResult):
        node_test_actions.record_test_job_result(world, result.passed if result.ran else None, result.why, now)


def submission(test: NodeTest, world: PairTestJob, nodes: list[Node], launcher: str) -> SubmitRequest:
    return node_tests.node_test_submission(
        test.cluster,
        nodes,
        key=world.key,
        script=script(len(nodes), FIRST_PORT + world.pk % PORT_COUNT, launcher),
        environment={"ACME_TEST_NODE": ",".join(world.nodes), "ACME_TEST_KEY": world.key},
    )


LAUNCH_TEMPLATE = """#!/bin/sh
# An all-gather between the nodes of this job. The program is passed through standard input, so nodes need no copy.
export MASTER_PORT={port}
ranks={count}
set -- {arguments}
program() {{ cat <<'ACME_PROGRAM'
{program}
ACME_PROGRAM
}}
{launcher}
# Without a launcher, one machine plays all nodes, each as a process
export MASTER_ADDR=127.0.0.1 WORLD_SIZE="$ranks"
file=$(mktemp) || exit 2
trap 'rm -f "$file"' EXIT
program >"$file"
failed=0 rank=1 children=
while [ "$rank" -lt "$ranks" ]; do
  RANK=$rank python3 "$file" "$@" & children="$children $!"
  rank=$((rank + 1))
done
RANK=0 python3 "$file" "$@" || {{ failed=1; kill $children 2>/dev/null; }}  # they would wait for rank 0
for child in $children; do wait "$child" || failed=1; done
exit $failed
"""


def script(count: int, port: int, launcher: str, arguments: str = "--mib 16 --patience 60") -> str:
    """Return the test as a script. `launcher` are the backend's lines that start one process on each node."""
    words = " ".join(shlex.quote(word) for word in arguments.split())
    source = Path(program.__file__).read_text().rstrip("\n")
    return LAUNCH_TEMPLATE.format(
        port=port, count=count, program=source, arguments=words, launcher=launcher.rstrip("\n")
    )
