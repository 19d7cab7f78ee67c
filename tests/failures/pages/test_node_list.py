"""The node list: filters, telemetry, lemon scores, and its order."""

from __future__ import annotations

from datetime import timedelta

import pytest

from failures.detection.node_health import LEMON_THRESHOLD
from failures.pages import anomalies
from jobs.actions import nodes as node_actions
from jobs.core.telemetry_math import interval_start
from jobs.models import Event, Node, Resolution, Sample, TeamRole, clock
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.cluster()
    return make.browser("ada")


def node_names(response):
    return [row.node.name.removeprefix("seren-") for row in response.context["rows"]]


def outages(name, count):
    node = Node.objects.select_related("cluster").get(name=name)
    now = clock.now()
    Event.objects.bulk_create(
        Event(type="node.state_changed", at=now, cluster=node.cluster, node=node, from_state="UP", to_state="DOWN")
        for _ in range(count)
    )
    return node


def sample(name, utilization, temperature, **fields):
    node, at = Node.objects.get(name=name), interval_start(clock.now(), Resolution.RAW)
    values = {"gpu_util": utilization, "gpu_temperature_c": temperature}
    return Sample.objects.create(**{"node": node, "at": at, **values, **fields})


def test_the_nodes_show_how_many_gpus_are_held(ada):
    make.running(make.job(gpus_per_node=4))

    assert [row.held for row in ada.get("/nodes/").context["rows"]] == [4, 0, 0, 0]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=closed", ["001"]),
        ("state=drain", ["001"]),
        ("state=down", []),
        ("state=unreliable", ["003"]),
        ("cluster=kalos", []),
    ],
)
def test_the_nodes_can_be_filtered(ada, query, found):
    make.cluster("kalos", nodes=0)
    outages("seren-003", int(LEMON_THRESHOLD) + 1)
    node_actions.drain(make.node("seren-001"), author=make.LOOP, why="ECC", now=clock.now())

    assert node_names(ada.get(f"/nodes/?{query}")) == found


def test_the_node_list_takes_the_same_queries_for_any_number_of_nodes(ada, django_assert_num_queries):
    for number in range(1, 4):
        outages(f"seren-00{number}", number)
        sample(f"seren-00{number}", [50.0], [60.0])

    # session, user, two for whether she may drain, clock; held GPUs, telemetry now and before, three for lemon scores,
    # nodes, clusters
    with django_assert_num_queries(5 + 8):
        ada.get("/nodes/")


def test_a_node_has_the_same_lemon_score_in_the_list_and_on_its_page(ada):
    node = outages("seren-002", 3)

    (row,) = [row for row in ada.get("/nodes/").context["rows"] if row.node == node]

    assert row.lemon == pytest.approx(anomalies.node_anomalies(node, clock.now())["lemon"], abs=0.01) == 3
    assert not row.is_unreliable


def test_a_node_shows_its_mean_utilization_its_hottest_gpu_and_a_line_of_a_day(ada):
    sample("seren-001", [90.0, 50.0, None], [61.0, 72.0, None])
    hour = interval_start(clock.now(), Resolution.HOUR)
    for ago, busy in ((24, 0.0), (2, 100.0), (1, 50.0), (25, 70.0)):
        at = hour - timedelta(hours=ago)
        sample("seren-001", [busy], [60.0], at=at, resolution=Resolution.HOUR)

    row = ada.get("/nodes/").context["rows"][0]

    assert (row.load.utilization, row.load.temperature) == (70.0, 72.0)
    # On a scale from 0 to 100 percent, the hour before last at 22 of 23 steps
    assert row.line == "0.0,20.0 95.7,0.0 100.0,10.0"


def test_a_reading_that_is_no_longer_current_is_shown_with_its_age(ada):
    now = clock.now()
    sample("seren-001", [90.0], [61.0], at=now - timedelta(minutes=4))
    sample("seren-002", [80.0], [61.0], at=now - timedelta(hours=2))

    page = ada.get("/nodes/")

    assert [row.load.utilization for row in page.context["rows"]] == [90.0, None, None, None]
    assert page.context["rows"][0].load.outdated_since == now - timedelta(minutes=4)
    assert "4m ago" in page.content.decode()


@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ("utilization", ["003", "001", "002", "004"]),
        ("-utilization", ["001", "003", "002", "004"]),
        ("-temperature", ["003", "001", "002", "004"]),
        ("-lemon", ["002", "001", "003", "004"]),
        ("-node", ["004", "003", "002", "001"]),
        ("rack", ["001", "002", "003", "004"]),
        ("-rack", ["001", "002", "003", "004"]),
    ],
)
def test_nodes_without_a_value_are_last_and_equal_ones_stay_in_order(ada, sort, found):
    sample("seren-001", [90.0], [50.0])
    sample("seren-003", [10.0], [80.0])
    sample("seren-004", [float("nan")], [None])
    outages("seren-002", 1)

    answer = ada.get(f"/nodes/?sort={sort}")

    assert node_names(answer) == found
    assert answer.content.decode().count("aria-sort") == 1


@pytest.mark.parametrize(
    ("number", "found", "previous", "following"),
    [
        ("1", (1, 100), "", "?state=idle&sort=-node&page=2"),
        ("2", (101, 200), "?state=idle&sort=-node", "?state=idle&sort=-node&page=3"),
        ("3", (201, 204), "?state=idle&sort=-node&page=2", ""),
        ("9999", (201, 204), "?state=idle&sort=-node&page=2", ""),
        ("0", (1, 100), "", "?state=idle&sort=-node&page=2"),
    ],
)
def test_page_of_the_node_list_links_to_its_neighbors(ada, number, found, previous, following):
    make.cluster("kalos", nodes=200)

    page = ada.get(f"/nodes/?state=idle&sort=-node&page={number}").context["page"]

    assert (page.first, page.last) == found and page.count == 204
    assert (page.previous, page.following) == (previous, following)


def test_node_list_has_every_node_on_exactly_one_page(ada):
    make.cluster("kalos", nodes=200)

    names = [row.node.name for page in (1, 2, 3) for row in ada.get(f"/nodes/?page={page}").context["rows"]]

    assert names == list(Node.objects.order_by("cluster__name", "name").values_list("name", flat=True))
    assert ada.get("/nodes/?page=two").status_code == 400


def test_filters_keep_the_order_and_the_chosen_columns_are_shown(ada):
    ada.post("/nodes/columns/", {"column": ["cpus", "lemon"]})

    answer = ada.get("/nodes/?sort=-lemon")

    assert [cell.column.name for cell in answer.context["table"].headers] == ["node", "state", "lemon", "cpus"]
    assert all("sort=-lemon" in link.url for link in answer.context["filters"])
    assert ada.get("/nodes/?sort=reason").status_code == 400


def test_home_page_links_to_the_unreliable_nodes(ada):
    assert 'href="/nodes/?state=unreliable&amp;sort=-lemon"' in ada.get("/").content.decode()
