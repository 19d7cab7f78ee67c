"""An unreadable row does not change its job or node, and is shown to operators."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from acmeweb.metrics import AcmeCollector
from jobs.core.lifecycle import NodeFlag, NodeState, State
from jobs.models import Attempt, Cluster, ClusterCommand, Job, Node, clock
from scheduling.backends.base import OutcomeUnknown, UnreadableRow
from scheduling.loops.commands.send import send_commands_once
from scheduling.loops.observe.outcome_evidence import MISSING_GRACE
from scheduling.loops.observe.sync import sync_cluster_once, unreadable_text
from tests import make
from tests.page_text import page_text
from tests.scheduling.fake import failing

LATER = MISSING_GRACE + timedelta(minutes=10)
NAMELESS = UnreadableRow(kind="job", sentence="a job without a readable id: an entry of jobs is a int, not an object")


@pytest.fixture
def sent(cluster, slurm):
    """An attempt that runs on the cluster."""
    make.attempt(make.job(gpus_per_node=2))
    send_commands_once(cluster, slurm, clock.now())
    attempt = Attempt.objects.get()
    slurm.start(attempt.key, clock.now())
    sync(cluster, slurm)
    return Attempt.objects.get()


def sync(cluster, slurm, later=timedelta(0)):
    return sync_cluster_once(Cluster.objects.get(pk=cluster.pk), slurm, clock.now() + later)


def shown(cluster):
    row = Cluster.objects.get(pk=cluster.pk)
    return row.unreadable_count, row.unreadable_rows


def test_an_attempt_whose_row_cannot_be_read_is_neither_missing_nor_ended(cluster, slurm, sent):
    slurm.garble(sent.backend_id)

    assert sync(cluster, slurm) == 0
    assert sync(cluster, slurm, later=LATER) == 0

    assert (Job.objects.get().state, Attempt.objects.get().missing_since) == (State.RUNNING, None)


def test_no_attempt_is_missing_while_a_row_has_neither_id_nor_key(cluster, slurm, sent):
    slurm.forget(sent.key)
    slurm.unreadable_jobs.append(NAMELESS)

    sync(cluster, slurm)
    sync(cluster, slurm, later=LATER)

    assert (Job.objects.get().state, Attempt.objects.get().missing_since) == (State.RUNNING, None)


def test_a_readable_attempt_is_followed_beside_a_row_that_cannot_be_read(cluster, slurm, sent):
    slurm.unreadable_jobs.append(NAMELESS)
    slurm.end(sent.key, State.COMPLETED, clock.now(), exit_code=0)

    sync(cluster, slurm)

    assert Job.objects.get().state == State.COMPLETED


def test_a_foreign_job_whose_row_cannot_be_read_stays_and_keeps_its_gpus(cluster, slurm):
    backend_id = slurm.foreign(
        nodes=("seren-001",), gpus={"seren-001": (0, 1)}, submitted_at=clock.now(), started_at=clock.now()
    )
    sync(cluster, slurm)
    slurm.garble(backend_id)

    sync(cluster, slurm, later=LATER)
    sync(cluster, slurm, later=2 * LATER)

    assert Job.objects.get().state == State.RUNNING
    assert Node.objects.get(name="seren-001").foreign_gpus == [0, 1]


def test_a_node_whose_row_cannot_be_read_keeps_its_state_and_takes_no_work(cluster, slurm):
    sync(cluster, slurm)
    machine = slurm.machines["seren-002"]
    slurm.garble_node("seren-002")

    sync(cluster, slurm)

    node = Node.objects.get(name="seren-002")
    assert (node.state, node.flags, node.gpus) == (NodeState.IDLE, [NodeFlag.UNREADABLE], 8)
    assert (node in Node.objects.usable(), node.badge.label) == (False, "UNREADABLE")

    slurm.unreadable_nodes.clear()
    slurm.machines["seren-002"] = machine
    sync(cluster, slurm)
    assert Node.objects.get(name="seren-002").flags == []


def test_nodes_that_are_not_listed_keep_their_state_while_a_row_has_no_name(cluster, slurm):
    sync(cluster, slurm)
    del slurm.machines["seren-002"]
    slurm.unreadable_nodes.append(UnreadableRow(kind="node", sentence="a node without a name: name is missing"))

    sync(cluster, slurm)

    states = dict(Node.objects.values_list("name", "flags"))
    assert (states["seren-001"], states["seren-002"]) == ([], [NodeFlag.UNREADABLE])
    assert Node.objects.get(name="seren-002").state == NodeState.IDLE


def test_a_submission_in_doubt_waits_while_an_unreadable_row_may_be_it_and_the_others_go_on(cluster, slurm):
    make.attempt(make.job(gpus_per_node=1))
    slurm.after = failing(OutcomeUnknown("no answer"), "submit")
    send_commands_once(cluster, slurm, clock.now())
    slurm.after = lambda verb: None
    slurm.garble("1")
    ClusterCommand.objects.update(due_at=clock.now())
    make.attempt(make.job(gpus_per_node=1), on=["seren-002"])

    send_commands_once(cluster, slurm, clock.now())

    doubtful, other = Attempt.objects.order_by("pk")
    assert [sent.key for sent in slurm.sent] == [doubtful.key, other.key]
    assert "unreadable row" in ClusterCommand.objects.get(attempt=doubtful).outcome


def test_unreadable_rows_are_shown_and_logged_once_per_change(cluster, slurm, sent, caplog):
    slurm.garble(sent.backend_id)
    sync(cluster, slurm)
    sync(cluster, slurm)

    assert shown(cluster) == (1, "job 1: job_state is a int")
    assert [record.message for record in caplog.records if "unreadable rows" in record.message] == [
        "cluster seren: 1 unreadable rows: job 1: job_state is a int"
    ]

    slurm.unreadable_jobs.clear()
    sync(cluster, slurm)
    assert shown(cluster) == (0, "")


def test_many_unreadable_rows_make_one_short_text():
    rows = [UnreadableRow(kind="job", name=str(n), sentence=f"job {n}: {'x' * 1000}") for n in range(100)]

    text = unreadable_text(rows)

    assert text.startswith("job 0: xxx")
    assert text.endswith("; and 97 more")
    assert len(text) < 700


def test_operators_see_unreadable_rows_on_pages_in_the_api_and_in_metrics(cluster):
    Cluster.objects.update(last_contact_at=clock.now(), unreadable_count=2, unreadable_rows="job 7: <odd>; job 8: odd")
    olga = make.user("olga")
    olga.user_permissions.add(*Permission.objects.filter(codename__in=["operate_cluster"]))
    client = Client()
    client.force_login(olga)

    summary = "2 rows of its answer cannot be read"
    for path, sentence in (
        ("/", summary),
        ("/settings/clusters/", summary),
        ("/settings/clusters/of/seren/", "2 unreadable rows in the cluster's response."),
    ):
        page = page_text(client.get(path))
        assert sentence in page
        assert "job 7: &lt;odd&gt;; job 8: odd" in page
    shape = client.get("/api/v1/clusters/seren/").json()
    assert (shape["unreadable_count"], shape["unreadable_rows"]) == (2, "job 7: <odd>; job 8: odd")
    found = {family.name: family for family in AcmeCollector(clock.now(), Job.objects.none()).collect()}
    (sample,) = found["acme_cluster_unreadable_rows"].samples
    assert (sample.labels, sample.value) == ({"cluster": "seren"}, 2)
