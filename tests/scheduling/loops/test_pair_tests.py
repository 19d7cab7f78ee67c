"""Pair tests of nodes as jobs: groups, verdicts, and the nodes that are resumed."""

from __future__ import annotations

import json
import socket
import subprocess
from datetime import timedelta

import pytest

from failures.loops.diagnose import diagnose_once
from failures.models import Decision, DecisionState
from failures.recovery import steps
from jobs.actions import nodes as node_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.lifecycle import Flag, NodeState, State
from jobs.models import Event, Job, Node, clock
from scheduling.actions import node_tests as node_test_actions
from scheduling.backends.base import ClusterUnreachable, OutcomeUnknown
from scheduling.backends.batch_script import RANK_LAUNCHER
from scheduling.loops.node_tests import NODE_TEST_START_TIMEOUT
from scheduling.loops.pair_tests import FIRST_PORT, PORT_COUNT, advance_pair_tests_once, script
from scheduling.models import NodeTest
from tests import make
from tests.failures import make as failure_make
from tests.failures.make import decide_and_recover_once
from tests.patience import PATIENCE_S
from tests.scheduling.fake import failing as raising

NODES = [f"seren-{number:03d}" for number in range(1, 5)]
SILENT = (
    "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE) ran for 600000 ms\n"
)


def begin(cluster, names=NODES, **how):
    return node_test_actions.start_node_test(cluster, names, why="who is it?", now=clock.now(), **how)


def turn(cluster, slurm, later=timedelta(0)):
    return advance_pair_tests_once(cluster, slurm, clock.now() + later)


def run(cluster, slurm, broken=()):
    """Every world that was sent runs to its end; one with a broken node in it fails."""
    turn(cluster, slurm)
    for key, nodes in [(job.key, job.nodes) for job in slurm.known.values() if job.state == State.PENDING]:
        slurm.start(key, clock.now())
        bad = bool({*nodes} & {*broken})
        slurm.end(key, State.FAILED if bad else State.COMPLETED, clock.now(), exit_code=int(bad))
    turn(cluster, slurm)


def closed():
    return sorted(Node.objects.filter(drain_requested=True).values_list("name", flat=True))


def test_nodes_that_pass_round_one_accept_jobs_again(cluster, slurm):
    test = begin(cluster)
    assert closed() == NODES

    run(cluster, slurm)

    test.refresh_from_db()
    assert [job.nodes for job in slurm.sent] == [tuple(NODES[:2]), tuple(NODES[2:])]
    assert (test.good, test.faulty, closed()) == (NODES, [], [])


def test_faulty_node_is_found_in_round_two_and_stays_drained(cluster, slurm):
    test = begin(cluster)

    for _ in range(2):
        run(cluster, slurm, broken={"seren-003"})

    test.refresh_from_db()
    assert (test.faulty, test.good) == (["seren-003"], ["seren-001", "seren-002", "seren-004"])
    assert closed() == ["seren-003"]
    told = Event.objects.filter(type="node.tested").values_list("node__name", "detail__passed")
    assert dict(told)["seren-003"] is False and dict(told)["seren-004"] is True


def test_single_suspect_is_tested_with_an_idle_node_that_is_resumed(cluster, slurm):
    test = begin(cluster, ["seren-002"])

    for _ in range(2):
        run(cluster, slurm, broken={"seren-002"})

    test.refresh_from_db()
    assert (test.partners, test.faulty, closed()) == (["seren-001"], ["seren-002"], ["seren-002"])


def test_partner_from_outside_is_used_if_all_nodes_fail(cluster, slurm):
    test = begin(cluster, NODES[:2])

    for _ in range(3):
        run(cluster, slurm, broken={"seren-001"})

    test.refresh_from_db()
    assert (test.partners, test.faulty, test.good) == (["seren-003"], ["seren-001"], ["seren-002"])
    assert closed() == ["seren-001"]


def test_dead_and_busy_nodes_are_not_tested(cluster, slurm):
    make.node("seren-001", state=NodeState.DOWN)
    make.running(make.job(gpus_per_node=1), on=("seren-002",))

    test = begin(cluster)

    assert (test.faulty, test.nodes, list(test.unjudged)) == (["seren-001"], NODES[2:], ["seren-002"])


def test_nodes_are_resumed_only_while_their_test_job_waits(cluster, slurm):
    slurm.drained = dict.fromkeys(NODES[:2], "who is it?")
    begin(cluster, NODES[:2])

    turn(cluster, slurm)
    turn(cluster, slurm)
    assert slurm.drained == {}
    slurm.start(slurm.sent[0].key, clock.now())
    turn(cluster, slurm)

    assert sorted(slurm.drained) == NODES[:2]


def test_lost_response_does_not_start_a_test_job_twice(cluster, slurm):
    begin(cluster)
    slurm.after = raising(OutcomeUnknown("timed out"), "submit")
    with pytest.raises(OutcomeUnknown):
        turn(cluster, slurm)
    slurm.after = lambda verb: None

    for _ in range(3):
        turn(cluster, slurm)

    assert len(slurm.sent) == 2


def test_unreachable_cluster_does_not_change_the_pair_test(cluster, slurm):
    test = begin(cluster)
    slurm.before = raising(ClusterUnreachable("gone"), "find")

    with pytest.raises(ClusterUnreachable):
        turn(cluster, slurm)

    test.refresh_from_db()
    assert test.ended_at is None and closed() == NODES


def test_test_job_that_never_starts_gives_no_verdict(cluster, slurm):
    test = begin(cluster, NODES[:2])
    turn(cluster, slurm)

    turn(cluster, slurm, NODE_TEST_START_TIMEOUT * 2)

    test.refresh_from_db()
    assert (test.good, test.faulty, sorted(test.unjudged)) == ([], [], NODES[:2])
    assert closed() == [] and slurm.cancelled == ["1"]


def test_node_drained_by_an_operator_during_the_test_stays_drained(cluster, slurm):
    begin(cluster)
    node = Node.objects.get(name="seren-001")
    node_actions.resume(node, author=make.author(), now=clock.now())
    node_actions.drain(node, author=make.author(), why="fan", now=clock.now())

    run(cluster, slurm)

    assert closed() == ["seren-001"]


# --- as a decision has it


@pytest.fixture
def hung(tmp_path, db):
    """A collective timed out on two of four nodes; nobody knows whose fault it is."""
    recovery_actions.set_recovery_mode("act", author=make.LOOP)
    attempt = failure_make.running(tmp_path, kind="pretrain", checkpoint_dir="/ckpt/run", on=tuple(NODES[:2]))
    attempt.job.checkpoints.create(attempt=attempt, step=200, path="/ckpt/run/200")
    failure_make.end(tmp_path, attempt, SILENT)
    diagnose_once(clock.now())
    return attempt


def test_job_waits_for_the_pair_test_and_restarts_without_the_faulty_node(hung, slurm):
    cluster = hung.job.cluster
    decide_and_recover_once(clock.now())
    decision = Decision.objects.get()
    assert (decision.action, decision.state) == ("test nodes", "acting")
    assert Flag.RECOVERING in Job.objects.get().flags

    for _ in range(3):
        run(cluster, slurm, broken={"seren-002"})
    decide_and_recover_once(clock.now() + 2 * steps.CLAIM_LEASE)

    decision.refresh_from_db()
    job = Job.objects.get()
    assert (decision.state, decision.drain) == (DecisionState.DONE, ["seren-002"])
    assert "faulty: seren-002" in decision.outcome
    assert (job.flags, job.hold, job.resume["step"]) == (["REQUEUED"], "", 200)
    assert closed() == ["seren-002"]


def test_undone_decision_aborts_the_pair_test_and_resumes_its_nodes(hung, slurm):
    decide_and_recover_once(clock.now())
    turn(hung.job.cluster, slurm)

    steps.undo(Decision.objects.get(), author=make.author(), now=clock.now())
    turn(hung.job.cluster, slurm)

    assert NodeTest.objects.get().ended_at is not None
    assert sorted(slurm.cancelled) == ["1"] and closed() == []
    assert Job.objects.get().is_final


def test_pair_test_is_not_repeated_after_a_kill_before_the_restart(hung, slurm):
    decide_and_recover_once(clock.now())
    decide_and_recover_once(clock.now() + 2 * steps.CLAIM_LEASE)

    assert NodeTest.objects.count() == 1
    assert Event.objects.filter(type="node.test_requested").count() == 2


# --- the program


def free_of_others(run):
    """A port may be somebody's: then the next one."""
    for port in range(FIRST_PORT, FIRST_PORT + PORT_COUNT, 97):
        done = run(port)
        if "in use" not in done.stdout + done.stderr:
            return done
    raise AssertionError("no port was free")


SRUN = """\
#!/bin/sh
while [ "$1" != sh ]; do options="$options $1"; shift; done
cat >/dev/null
SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 "$@" | sed "s|^|$options: |"
exit 3
"""
PYTHON = """\
#!/bin/sh
echo "$MASTER_ADDR:$MASTER_PORT $*"
"""


def test_script_starts_one_rank_per_node_with_srun(tmp_path):
    for name, text in (("srun", SRUN), ("python3", PYTHON), ("test", script(2, 20_001, RANK_LAUNCHER, "--mib 1"))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}

    done = subprocess.run(
        [str(tmp_path / "test")], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    options = " --nodes=2 --ntasks=2 --ntasks-per-node=1 --input=all"
    assert (done.returncode, done.stdout) == (3, f"{options}: 10.0.0.1:20001 - --mib 1\n"), done


def run_script_on_one_machine(directory, port):
    path = directory / f"world-{port}"
    path.write_text(script(2, port, RANK_LAUNCHER, "--mib 1 --patience 600 --how tcp"))
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "ACME_TEST_KEY": "k"}
    command = ["sh", str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_script_runs_all_ranks_on_one_machine_without_srun(tmp_path):
    done = free_of_others(lambda port: run_script_on_one_machine(tmp_path, port))

    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, sorted(one["rank"] for one in answers)) == (0, [0, 1]), done
    assert all(one["passed"] for one in answers)


def test_other_ranks_end_if_rank_0_cannot_listen(tmp_path):
    with socket.create_server(("", 0)) as taken:
        done = run_script_on_one_machine(tmp_path, taken.getsockname()[1])

    assert (done.returncode, "in use" in done.stdout) == (1, True), done
