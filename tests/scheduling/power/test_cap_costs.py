"""What a cap cost a job, as its page says it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from jobs.models import Allocation, Node, NodeClock, clock
from scheduling.power.reads.caps import job_cap_times
from scheduling.power.rules.caps import NodeCap, cap_times
from scheduling.power.rules.clock_curves import model_speed
from tests import make
from tests.jobs.api.api_make import Caller

NOON, MINUTE = make.NOON, timedelta(minutes=1)
LATER = NOON + 60 * MINUTE


def cap(began, ended, speed=0.9):
    return NodeCap(NOON + began * MINUTE, NOON + ended * MINUTE, speed)


def test_job_has_the_speed_of_its_slowest_node():
    (found,) = cap_times([cap(0, 10, 0.9), cap(5, 10, 0.5)], LATER)

    assert found.lost_share == pytest.approx((5 * 0.1 + 5 * 0.5) / 10)


def test_steps_of_one_cap_are_one_time_and_a_gap_ends_it():
    times = cap_times([cap(0, 3), cap(3, 6, 0.8), cap(8, 9), cap(8, 9), cap(9, 9)], LATER)

    assert [(one.began, one.ended) for one in times] == [
        (NOON, NOON + 6 * MINUTE),
        (NOON + 8 * MINUTE, NOON + 9 * MINUTE),
    ]
    assert times[0].lost_share == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (cap(-9, -2, 0.97), "Capped from 11:51 to 11:58 UTC, cost about 3% of the speed"),
        (cap(-9, 0, 0.5), "Capped since 11:51 UTC, cost about 50% of the speed"),
        (cap(-9, 0, 0.999), "Capped since 11:51 UTC, cost less than 1% of the speed"),
        (cap(-1440, -1430), "Capped from 2026-11-20 12:00 to 2026-11-20 12:10 UTC, cost about 10% of the speed"),
    ],
)
def test_text_of_a_cap(row, text):
    assert cap_times([row], NOON)[0].text(NOON) == text


@pytest.mark.django_db
def test_job_page_says_when_it_was_capped_and_what_it_cost():
    attempt = make.running(make.job(nodes=2, gpus_per_node=8), on=["seren-001", "seren-002"])
    now = clock.now()
    Allocation.objects.update(held_at=now - 20 * MINUTE)
    began = now - 15 * MINUTE
    for name, mhz, ended, confirmed in (
        ("seren-001", 1110, now - 5 * MINUTE, began),
        ("seren-002", 288, now - 5 * MINUTE, None),  # its command failed
        ("seren-003", 288, None, began),  # not a node of the job
    ):
        node = Node.objects.get(name=name)
        NodeClock.objects.create(node=node, mhz=mhz, began_at=began, ended_at=ended, confirmed_at=confirmed)
    browser = Client()
    browser.force_login(make.user("ada"))

    (found,) = job_cap_times([attempt.pk], now)
    page = browser.get(f"/jobs/{attempt.job.public_id}/gpus/").content.decode()

    assert (found.began, found.ended) == (began, now - 5 * MINUTE)
    assert found.lost_share == pytest.approx(1 - model_speed(1110, "a100"))
    assert "cost about 7% of the speed." in page and "Power caps" in page
    (answer,) = Caller(make.user("ada")).get(f"jobs/{attempt.job.public_id}/power-caps/").json()["caps"]
    assert answer["lost_share"] == pytest.approx(found.lost_share) and answer["ended_at"]
    assert Caller(make.user("ben")).get(f"jobs/{attempt.job.public_id}/power-caps/").status_code == 404


@pytest.mark.django_db
def test_node_page_says_that_its_gpus_are_capped():
    node = make.node("seren-001")
    NodeClock.objects.create(node=node, mhz=1110, began_at=clock.now(), confirmed_at=clock.now())
    browser = Client()
    browser.force_login(make.user("ada"))

    assert "capped to 1110 MHz" in browser.get("/nodes/seren/seren-001/").content.decode()
    assert "capped to" not in browser.get("/nodes/seren/seren-002/").content.decode()


@pytest.mark.django_db
def test_only_the_time_in_which_the_job_had_its_nodes_counts():
    attempt = make.running(make.job(gpus_per_node=8), on=["seren-001"])
    now = clock.now()
    Allocation.objects.update(held_at=now - 5 * MINUTE)
    node = Node.objects.get(name="seren-001")
    NodeClock.objects.create(node=node, mhz=1110, began_at=now - 9 * MINUTE, confirmed_at=now - 9 * MINUTE)

    (found,) = job_cap_times([attempt.pk], now)

    assert (found.began, found.ended) == (now - 5 * MINUTE, None)
