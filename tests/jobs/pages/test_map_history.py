"""The map of a past moment: holders, node states, telemetry, and the cost of the queries."""

import html
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobs.actions import journal
from jobs.actions.jobs import AttemptEnd, finish
from jobs.core.charts.gpu_map import FOREIGN_JOB, FREE_GPU, HIDDEN_JOB
from jobs.core.lifecycle import NodeFlag, NodeState, node_condition, parse_node_condition
from jobs.models import Allocation, Attempt, Cluster, Job, Node, Resolution, Sample, TeamRole, clock
from tests import make

MAPS = ("data", "errors")


@pytest.fixture
def people(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    make.cluster(created_at=ago(days=20))


def written(at):
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def data(at, name="ada"):
    return make.browser(name).get("/map/seren/data/", {"at": written(at)}).json()


def ran(job, since, until=None, **where):
    """An attempt that ran between two times, or still runs."""
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


def test_the_past_map_shows_the_holders_of_that_time(people):
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


def test_a_gpu_belongs_to_a_job_from_its_assignment_to_its_end(people):
    begin, end = ago(hours=5), ago(hours=3)
    ran(make.job(gpus_per_node=1), begin, end, gpus=(0,))
    second = timedelta(seconds=1)

    found = [data(at)["who"][0] for at in (begin - second, begin, end - second, end)]

    assert found == [FREE_GPU, 0, 0, FREE_GPU]


def test_an_allocation_that_ends_before_it_begins_is_ignored(people):
    """A cluster's clock may be wrong; the index must accept the row."""
    ran(make.job(gpus_per_node=1), ago(hours=1), ago(hours=2), gpus=(0,))

    assert data(ago(hours=1.5))["who"][0] == FREE_GPU


def test_the_past_map_names_jobs_only_to_users_who_can_see_them(people):
    ran(make.job(gpus_per_node=1, name="hers"), ago(hours=5), ago(hours=3), gpus=(0,))

    his = data(ago(hours=4), "ben")

    assert (his["who"][0], his["jobs"]) == (HIDDEN_JOB, [])


def test_a_past_node_state_comes_from_the_last_event_before_that_time(people):
    told("node.state_changed", ago(hours=6), from_state="UP", to_state="DOWN+NOT_RESPONDING")
    told("node.state_changed", ago(hours=4), from_state="DOWN+NOT_RESPONDING", to_state="UP")
    told("node.drained", ago(hours=2), why="fan 3")
    told("node.resumed", ago(hours=1))

    words = [data(ago(hours=hours))["nodes"][0][4:] for hours in (5, 3, 1.5, 0.5)]

    assert words == [["DOWN*", "bad", 0], ["IDLE", "good", 1], ["DRAINED", "drain", 0], ["IDLE", "good", 1]]


def test_a_node_before_its_first_event_has_that_events_from_state(people):
    told("node.state_changed", ago(hours=2), from_state="DOWN", to_state="UP")

    assert [data(ago(hours=hours))["nodes"][0][4] for hours in (3, 1)] == ["DOWN", "IDLE"]


def test_a_drained_node_is_shown_as_draining_while_a_job_ran_there(people):
    ran(make.job(gpus_per_node=8), ago(hours=5), ago(hours=3))
    told("node.drained", ago(hours=4), why="fan 3")

    assert [data(ago(hours=hours))["nodes"][0][4] for hours in (4.5, 3.5, 2)] == ["ALLOCATED", "DRAINING", "DRAINED"]


def test_gpus_of_foreign_jobs_are_counted_where_no_acme_job_ran(people):
    ran(make.job(gpus_per_node=1), ago(hours=5), ago(hours=3), gpus=(0,), on=["seren-001"])
    outside = ran(make.job(gpus_per_node=2), ago(hours=5), ago(hours=3), gpus=(), on=["seren-001"])
    Job.objects.filter(pk=outside.job_id).update(foreign_id="77.1")

    assert data(ago(hours=4))["who"][:4] == [0, FOREIGN_JOB, FOREIGN_JOB, FREE_GPU]


def test_past_telemetry_is_the_five_minute_mean_or_the_newest_sample(people):
    node = Node.objects.get(name="seren-001")
    at = ago(hours=4).replace(minute=5, second=0)
    five = {"resolution": Resolution.FIVE_MINUTES, "gpu_temperature_c": [61.4] * 8, "xid": [0, 79]}
    Sample.objects.create(node=node, at=at, gpu_util=[40.2] * 8, **five)
    Sample.objects.create(node=node, at=ago(minutes=3), gpu_util=[70.0] * 8)

    then, lately = data(at + timedelta(minutes=4)), data(ago(minutes=3) + timedelta(seconds=20))

    assert (then["busy"][0], then["hot"][0], then["xid"]) == (40, 61, [[1, 79]])
    assert (lately["busy"][0], lately["hot"][0]) == (70, -1)


def test_the_table_shows_the_same_time_as_the_map(people):
    ran(make.job(gpus_per_node=2), ago(hours=5), ago(hours=3), gpus=(0, 1))

    pages = [make.browser().get("/map/", {"at": written(ago(hours=hours))}).content.decode() for hours in (4, 2)]

    assert ['data-label="Held">2<' in page for page in pages] == [True, False]


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        ("yesterday", "at: 'yesterday' is not an ISO 8601 time"),
        ("2026-11-20T12:00:00", "at: '2026-11-20T12:00:00' has no time zone; write 2026-01-31T08:00:00Z"),
        ("2199-01-01T00:00:00Z", "at: '2199-01-01T00:00:00Z' is in the future"),
    ],
)
def test_an_invalid_time_is_refused_with_a_reason(people, at, sentence):
    answer = make.browser().get("/map/seren/data/", {"at": at})

    assert (answer.status_code, answer.content.decode()) == (400, sentence)
    page = make.browser().get("/map/", {"at": at})
    assert (page.status_code, html.escape(sentence) in page.content.decode()) == (400, True)


def test_the_number_of_map_queries_does_not_depend_on_the_number_of_nodes(people, django_assert_num_queries):
    ran(make.job(nodes=3, gpus_per_node=8), ago(hours=5), ago(hours=3))
    ada, at = make.browser(), written(ago(hours=4))

    # session, user, cluster, clock; holders, nodes, Events before, first Events, jobs, readings of five minutes and raw
    with django_assert_num_queries(11):
        ada.get("/map/seren/data/", {"at": at})


def test_the_map_history_reaches_back_to_the_clusters_creation_and_at_most_a_month(people):
    begin = ago(hours=2)
    Cluster.objects.update(created_at=begin)
    make.cluster("old", created_at=ago(days=90))

    asked = [("seren", begin), ("seren", begin - timedelta(seconds=1)), ("old", ago(days=29)), ("old", ago(days=31))]
    found = [make.browser().get(f"/map/{name}/{what}/", {"at": written(at)}) for name, at in asked for what in MAPS]

    assert [one.status_code for one in found] == [200, 200, 400, 400] * 2
    assert (
        found[2].content.decode()
        == f"at: '{written(asked[1][1])}' is before the history begins, {begin:%F %H:%M:%S} UTC"
    )
    begins = [make.browser().get("/map/", {"cluster": name}).context["begins"] for name in ("seren", "old")]
    assert begins[0] == begin and ago(days=31) < begins[1] < ago(days=29)


@given(state=some.sampled_from(NodeState), flags=some.sets(some.sampled_from(NodeFlag)))
def test_a_stored_node_condition_is_parsed_as_written(state, flags):
    notable = flags - {NodeFlag.COMPLETING, NodeFlag.PLANNED}

    health, worn = parse_node_condition(node_condition(state, flags))

    assert (health == "UP") == (state in ("IDLE", "MIXED", "ALLOCATED"))
    assert set(worn) == set(notable) and (health == "UP" or NodeState(health) == state)
