"""What needs attention on the page Now: grouped by action, ranked by GPUs, answered in place."""

from __future__ import annotations

import pytest
from django.test import Client

from acmeweb.pages.attention import MAX_ROWS_PER_KIND, MAX_ROWS_SHOWN, AttentionItems, AttentionRow, attention_items
from failures.models import Decision
from jobs.actions import jobs as job_actions
from jobs.actions import nodes as node_actions
from jobs.core.lifecycle import Flag, StateBadge
from jobs.models import Job, clock
from jobs.models.permissions import Caller
from scheduling.models import NodeSleep
from tests import make
from tests.failures.recovery.test_recovery_loop import proposal

BADGE = StateBadge(label="x", code="x", tone="warn", icon="?")


def row(action, gpus, number=0):
    return AttentionRow(id=f"{action}-{number}", action=action, badge=BADGE, name="n", text="t", gpus=gpus)


def items(user="ada"):
    return attention_items(Caller(user=make.user(user)), clock.now())


def test_rows_beyond_the_first_five_are_shown_on_request():
    rows = [row("a", 9 - number, number) for number in range(MAX_ROWS_SHOWN + 2)]
    few, all_of_them = AttentionItems(rows=rows), AttentionItems(rows=rows, shows_all=True)

    assert [len(found.groups[0].rows) for found in (few, all_of_them)] == [MAX_ROWS_SHOWN, MAX_ROWS_SHOWN + 2]
    assert few.other_count == all_of_them.other_count == 2


def test_groups_come_in_the_order_of_their_largest_row():
    found = AttentionItems(rows=[row("b", 64), row("a", 16), row("b", 8)])

    assert [(group.action, len(group.rows)) for group in found.groups] == [("b", 2), ("a", 1)]


@pytest.mark.django_db
def test_rows_are_ranked_by_gpus_at_stake():
    small = make.attempt(make.job(by="ada", gpus_per_node=1, name="small"))
    job_actions.record_submit_refusal(small, "Invalid account", now=clock.now(), author=make.LOOP)
    node_actions.drain(make.node("seren-004"), author=make.LOOP, why="ECC errors", now=clock.now())

    assert [(one.gpus, one.action) for one in items().rows] == [
        (8, "Repair and return to service"),
        (1, "Correct and release"),
    ]


@pytest.mark.django_db
def test_limit_of_rows_keeps_the_old_job_with_the_most_gpus():
    jobs = make.jobs({"gpus_per_node": 8}, *[{"gpus_per_node": 1}] * MAX_ROWS_PER_KIND)
    for job in jobs:
        Job.objects.filter(pk=job.pk).update(flags=[Flag.OUTCOME_UNKNOWN], reason="OutcomeUnknown")

    found = [one.gpus for one in items().rows]

    assert (len(found), found[0]) == (MAX_ROWS_PER_KIND, 8)


@pytest.mark.django_db
def test_jobs_held_for_the_same_reason_share_a_row():
    for number in range(3):
        attempt = make.attempt(make.job(by="ada", gpus_per_node=1), gpus=(number,))
        job_actions.record_submit_refusal(attempt, "Invalid account", now=clock.now(), author=make.LOOP)

    (only,) = items().rows

    assert (only.gpus, only.detail, only.name.endswith("and 2 more")) == (3, "3 jobs", True)


@pytest.mark.django_db
def test_nodes_with_the_same_reason_share_a_row():
    for name in ("seren-003", "seren-004"):
        node_actions.drain(make.node(name), author=make.LOOP, why="no power in rack r01", now=clock.now())

    (only,) = items().rows

    assert (only.gpus, only.text) == (16, "no power in rack r01")


@pytest.mark.django_db
def test_nodes_proposed_for_sleep_share_a_row():
    for name in ("seren-003", "seren-004"):
        node = make.node(name)
        NodeSleep.objects.create(cluster=node.cluster, node=node, state="proposed")
    NodeSleep.objects.create(cluster=node.cluster, node=make.node("seren-001"), state="observed")

    (only,) = items().rows

    assert (only.gpus, only.name, only.text, only.url) == (16, "seren", "2 nodes would sleep", "/sleeping/seren/")


@pytest.mark.django_db
def test_proposal_is_approved_in_place(tmp_path):
    decision = proposal(tmp_path)
    browser = Client()
    browser.force_login(make.user("ada"))

    page = browser.get("/").content.decode()
    address = f"/failures/{decision.incident_id}/decisions/{decision.pk}/approve/"
    answer = browser.post(address, {"from": "home"})

    assert f'action="{address}"' in page and "approve within" in page
    assert answer.headers["Location"] == "/"
    assert Decision.objects.get().state != "proposed"


@pytest.mark.django_db
def test_proposal_has_no_buttons_for_users_who_may_not_answer(tmp_path):
    decision = proposal(tmp_path)
    Job.objects.update(user=make.user("grace"))
    team = decision.attempt.job.team
    make.team(team.name, eve="viewer")

    (only,) = items("eve").rows

    assert only.decision is None and only.until == decision.expires_at
