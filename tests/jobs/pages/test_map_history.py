"""The map at a moment that is over: who held what, what nodes were, what telemetry said; and how much that costs."""

import html
from datetime import UTC, timedelta

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as some

from jobs.actions import journal
from jobs.actions.jobs import AttemptEnd, finish
from jobs.core.gpu_map import FOREIGN_JOB, FREE_GPU, HIDDEN_JOB
from jobs.core.lifecycle import NodeFlag, NodeState, node_condition, parse_node_condition
from jobs.models import Allocation, Attempt, Cluster, Job, Node, Resolution, Sample, TeamRole, clock
from tests import make

MAPS = ("data", "errors")


@pytest.fixture
def people(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    make.cluster(created_at=ago(days=20))


def browser(name="ada"):
    client = Client()
    client.force_login(make.user(name))
    return client


def written(at):
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def data(at, name="ada"):
    return browser(name).get("/map/seren/data/", {"at": written(at)}).json()


def ran(job, since, until=None, **where):
    """An attempt that ran from then until then, or still does."""
    made = make.running(job, **where)
    if until:
        finish(made, AttemptEnd(state="COMPLETED", at=until, exit_code=0), author=make.LOOP)
    Attempt.objects.filter(pk=made.pk).update(promised_at=since, ended_at=until)
    Allocation.objects.filter(attempt=made).update(held_at=since, released_at=until)
    return made


def told(what, at, node="seren-001", **fields):
    row = Node.objects.get(name=node)
    event = journal.node_event(what, make.author(), row, **fields)
    event.at = at
    event.save()


def ago(**span):
    return clock.now().replace(microsecond=0) - timedelta(**span)


def test_who_held_a_gpu_then_is_who_is_shown(people):
    ran(make.job(gpus_per_node=2, name="first"), ago(hours=5), ago(hours=3), gpus=(0, 1))
    ran(make.job(gpus_per_node=2, name="second"), ago(hours=2), gpus=(0, 1))

    shown = {hours: data(ago(hours=hours)) for hours in (6, 4, 2.5, 1)}

    assert [shown[hours]["who"][:3] for hours in shown] == [
        [FREE_GPU] * 3,
        [0, 0, FREE_GPU],
        [FREE_GPU] * 3,
        [0, 0, FREE_GPU],
    ]
    assert [shown[hours]["jobs"][0][1] for hours in (4, 1)] == ["first", "second"]


def test_a_gpu_belongs_to_a_job_from_its_promise_up_to_its_end(people):
    begin, end = ago(hours=5), ago(hours=3)
    ran(make.job(gpus_per_node=1), begin, end, gpus=(0,))
    second = timedelta(seconds=1)

    found = [data(at)["who"][0] for at in (begin - second, begin, end - second, end)]

    assert found == [FREE_GPU, 0, 0, FREE_GPU]


def test_an_end_before_the_beginning_harms_nobody(people):
    """A cluster's clock may be wrong; the index must take the row."""
    ran(make.job(gpus_per_node=1), ago(hours=1), ago(hours=2), gpus=(0,))

    assert data(ago(hours=1.5))["who"][0] == FREE_GPU


def test_names_of_then_are_for_those_who_may_see_the_job(people):
    ran(make.job(gpus_per_node=1, name="hers"), ago(hours=5), ago(hours=3), gpus=(0,))

    his = data(ago(hours=4), "ben")

    assert (his["who"][0], his["jobs"]) == (HIDDEN_JOB, [])


def test_a_node_is_what_its_last_event_before_said(people):
    told("node.moved", ago(hours=6), from_state="UP", to_state="DOWN+NOT_RESPONDING")
    told("node.moved", ago(hours=4), from_state="DOWN+NOT_RESPONDING", to_state="UP")
    told("node.drained", ago(hours=2), why="fan 3")
    told("node.resumed", ago(hours=1))

    words = [data(ago(hours=hours))["nodes"][0][4:] for hours in (5, 3, 1.5, 0.5)]

    assert words == [["DOWN*", "bad", 0], ["IDLE", "good", 1], ["DRAINED", "drain", 0], ["IDLE", "good", 1]]


def test_before_its_first_event_a_node_was_what_that_moved_it_from(people):
    told("node.moved", ago(hours=2), from_state="DOWN", to_state="UP")

    assert [data(ago(hours=hours))["nodes"][0][4] for hours in (3, 1)] == ["DOWN", "IDLE"]


def test_a_drained_node_was_draining_while_somebody_was_there(people):
    ran(make.job(gpus_per_node=8), ago(hours=5), ago(hours=3))
    told("node.drained", ago(hours=4), why="fan 3")

    assert [data(ago(hours=hours))["nodes"][0][4] for hours in (4.5, 3.5, 2)] == ["ALLOCATED", "DRAINING", "DRAINED"]


def test_gpus_of_foreign_jobs_are_counted_where_nobody_of_ours_was(people):
    ran(make.job(gpus_per_node=1), ago(hours=5), ago(hours=3), gpus=(0,), on=["seren-001"])
    outside = ran(make.job(gpus_per_node=2), ago(hours=5), ago(hours=3), gpus=(), on=["seren-001"])
    Job.objects.filter(pk=outside.job_id).update(foreign_id="77.1")

    assert data(ago(hours=4))["who"][:4] == [0, FOREIGN_JOB, FOREIGN_JOB, FREE_GPU]


def test_telemetry_of_then_is_the_mean_of_its_five_minutes_or_the_newest_sample(people):
    node = Node.objects.get(name="seren-001")
    at = ago(hours=4).replace(minute=5, second=0)
    five = {"resolution": Resolution.FIVE_MINUTES, "gpu_temperature_c": [61.4] * 8, "xid": [0, 79]}
    Sample.objects.create(node=node, at=at, gpu_util=[40.2] * 8, **five)
    Sample.objects.create(node=node, at=ago(minutes=3), gpu_util=[70.0] * 8)

    then, lately = data(at + timedelta(minutes=4)), data(ago(minutes=3) + timedelta(seconds=20))

    assert (then["busy"][0], then["hot"][0], then["xid"]) == (40, 61, [[1, 79]])
    assert (lately["busy"][0], lately["hot"][0]) == (70, -1)


def test_the_table_tells_of_the_same_moment(people):
    ran(make.job(gpus_per_node=2), ago(hours=5), ago(hours=3), gpus=(0, 1))

    pages = [browser().get("/map/", {"at": written(ago(hours=hours))}).content.decode() for hours in (4, 2)]

    assert ['data-label="Held">2<' in page for page in pages] == [True, False]


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        ("yesterday", "at: 'yesterday' is no ISO 8601 time"),
        ("2026-11-20T12:00:00", "at: '2026-11-20T12:00:00' has no time zone; write 2026-01-31T08:00:00Z"),
        ("2199-01-01T00:00:00Z", "at: '2199-01-01T00:00:00Z' has not come yet"),
    ],
)
def test_a_moment_that_cannot_be_is_refused_in_one_sentence(people, at, sentence):
    answer = browser().get("/map/seren/data/", {"at": at})

    assert (answer.status_code, answer.content.decode()) == (400, sentence)
    page = browser().get("/map/", {"at": at})
    assert (page.status_code, html.escape(sentence) in page.content.decode()) == (400, True)


def test_it_asks_as_often_for_many_as_for_one(people, django_assert_num_queries):
    ran(make.job(nodes=3, gpus_per_node=8), ago(hours=5), ago(hours=3))
    ada, at = browser(), written(ago(hours=4))

    # session, user, cluster, clock; holders, nodes, Events before, first Events, jobs, readings of five minutes and raw
    with django_assert_num_queries(11):
        ada.get("/map/seren/data/", {"at": at})


def test_the_map_reaches_back_to_where_its_cluster_was_entered_and_no_further_than_a_month(people):
    begin = ago(hours=2)
    Cluster.objects.update(created_at=begin)
    make.cluster("old", created_at=ago(days=90))

    asked = [("seren", begin), ("seren", begin - timedelta(seconds=1)), ("old", ago(days=29)), ("old", ago(days=31))]
    found = [browser().get(f"/map/{name}/{what}/", {"at": written(at)}) for name, at in asked for what in MAPS]

    assert [one.status_code for one in found] == [200, 200, 400, 400] * 2
    assert (
        found[2].content.decode()
        == f"at: '{written(asked[1][1])}' is before {begin:%F %H:%M:%S} UTC, where what is known begins"
    )
    begins = [browser().get("/map/", {"cluster": name}).context["begins"] for name in ("seren", "old")]
    assert begins[0] == begin and ago(days=31) < begins[1] < ago(days=29)


@given(state=some.sampled_from(NodeState), flags=some.sets(some.sampled_from(NodeFlag)))
def test_a_condition_is_read_as_it_was_written(state, flags):
    notable = flags - {NodeFlag.COMPLETING, NodeFlag.PLANNED}

    health, worn = parse_node_condition(node_condition(state, flags))

    assert (health == "UP") == (state in ("IDLE", "MIXED", "ALLOCATED"))
    assert set(worn) == set(notable) and (health == "UP" or NodeState(health) == state)
