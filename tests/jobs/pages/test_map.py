"""The map: its data, the visibility of job names, and the size of the response."""

from datetime import timedelta

import pytest
from django.test import Client

from jobs.actions import nodes as node_actions
from jobs.core.charts import gpu_map
from jobs.core.charts.gpu_map import FOREIGN_JOB, FREE_GPU, HIDDEN_JOB, GpuReadings, MapNode, VisibleJob
from jobs.models import Cluster, Node, Sample, TeamRole, clock
from tests import make


def spot(number, **fields):
    given = {"name": f"n{number:04d}", "rack": "r1", "leaf": "l1", "gpus": 8, "word": "IDLE", "tone": "good"}
    return MapNode(id=number, **{"is_schedulable": True, **given, **fields})


def test_gpus_are_listed_in_the_order_of_the_nodes():
    there = [spot(2, leaf="l2", gpus=2), spot(1, gpus=2, foreign=(1,))]

    drawn = gpu_map.gpu_map_payload(
        there,
        [(2, 0, 7, 1000), (2, 1, 9, 1000)],
        {7: VisibleJob(public_id="a", name="n", team="t", user="u")},
        {1: GpuReadings(busy=(5.4, float("nan")), xid=(0, 79))},
    )

    assert [node[0] for node in drawn["nodes"]] == ["n0001", "n0002"]
    assert drawn["who"] == [FREE_GPU, FOREIGN_JOB, 0, HIDDEN_JOB]
    assert drawn["busy"] == [5, -1, -1, -1]
    assert drawn["hot"] == [-1] * 4
    assert drawn["xid"] == [(1, 79)]


def test_a_rack_counts_each_gpu_once():
    there = [spot(1), spot(2, is_schedulable=False), spot(3, rack="r2")]

    first, second = gpu_map.rack_summaries(there, {1: 3, 2: 2})

    assert (first.gpus, first.held, first.closed, first.free) == (16, 5, 6, 5)
    assert (second.rack, second.free) == ("r2", 8)


@pytest.fixture
def people(db):
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("evaluation", ben=TeamRole.RESEARCHER)
    make.cluster()


def test_jobs_are_named_to_their_team_only(people):
    make.running(make.job(gpus_per_node=2, name="hers"), gpus=(0, 1))

    hers, his = (make.browser(name).get("/map/seren/data/").json() for name in ("ada", "ben"))

    assert hers["jobs"][0][1:] == ["hers", "pretraining", "ada"] and hers["who"][:3] == [0, 0, FREE_GPU]
    assert his["jobs"] == [] and his["who"][:3] == [HIDDEN_JOB, HIDDEN_JOB, FREE_GPU]
    assert [node[4] for node in hers["nodes"]] == [node[4] for node in his["nodes"]]


def test_the_map_data_contains_only_jobs_that_hold_a_gpu(people):
    make.running(make.job(name="with"), gpus=(0,))
    make.running(make.job(name="without"), gpus=())

    answer = make.browser("ada").get("/map/seren/data/").json()

    assert [job[1] for job in answer["jobs"]] == ["with"]
    assert answer["who"][:2] == [0, FREE_GPU]


def test_the_map_shows_a_closed_node_as_closed(people):
    node_actions.drain(Node.objects.get(name="seren-002"), author=make.author(), why="x", now=clock.now())

    nodes = make.browser("ada").get("/map/seren/data/").json()["nodes"]

    assert [node[6] for node in nodes] == [1, 0, 1, 1]
    assert nodes[1][4].startswith("DRAIN")


def test_only_fresh_readings_are_shown(people):
    now = clock.now()
    for name, at in (("seren-001", now - timedelta(seconds=10)), ("seren-002", now - timedelta(hours=1))):
        Sample.objects.create(
            node=Node.objects.get(name=name), at=at, gpu_util=[40.0] * 8, gpu_temperature_c=[61.2] * 8
        )

    answer = make.browser("ada").get("/map/seren/data/").json()

    assert answer["busy"][:9] == [40] * 8 + [-1]
    assert answer["hot"][0] == 61


def test_the_number_of_map_queries_does_not_depend_on_the_number_of_nodes(people, django_assert_num_queries):
    make.running(make.job(nodes=3, gpus_per_node=8))
    ada = make.browser("ada")

    with django_assert_num_queries(8):  # session, user, cluster, clock; nodes, holders, jobs, readings
        ada.get("/map/seren/data/")


def test_the_map_data_of_ten_thousand_gpus_takes_at_most_150_kilobytes(people):
    seren = Cluster.objects.get()
    rows = [
        Node(cluster=seren, name=f"big-{n:04d}", gpus=8, rack=f"r{n // 16}", leaf=f"l{n // 32}", state="IDLE")
        for n in range(1246)
    ]
    now = clock.now()
    hot = [40.0 + gpu for gpu in range(8)]
    Sample.objects.bulk_create(
        Sample(node=node, at=now, gpu_util=[(node.pk * 7 + g) % 101 for g in range(8)], gpu_temperature_c=hot)
        for node in Node.objects.bulk_create(rows)
    )

    answer = make.browser("ada").get("/map/seren/data/", headers={"Accept-Encoding": "gzip"})

    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(answer.content) < 150_000


def test_the_map_page_has_the_same_data_as_a_table(people):
    make.running(make.job(gpus_per_node=2))

    page = make.browser("ben").get("/map/").content.decode()

    assert 'data-label="Held">2<' in page and 'data-label="Free">30<' in page


def test_the_map_requires_a_login(people):
    assert Client().get("/map/seren/data/").status_code == 302
