"""Quotas for a GPU model on a live cluster: admin, turns, pages, API and command line."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from jobs.models import Job, Node, Quota, Team, clock
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.ledger.reads import team_usage
from scheduling.loops.schedule import schedule_once
from tests import make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seren():
    """Two nodes with H100, two with A100. Team ada may hold 8 H100, and 24 GPUs in all."""
    row = make.cluster()
    Node.objects.filter(name__in=["seren-001", "seren-002"]).update(gpu_model="h100")
    team = make.team("ada", ada="researcher")
    Quota.objects.create(cluster=row, team=team, kind="", gpus=24)
    Quota.objects.create(cluster=row, team=team, kind="", gpu_model="h100", gpus=8)
    return row


def schedule(cluster, policy="fifo-skip"):
    return schedule_once(cluster, LIVE_POLICIES[policy], clock.now(), lambda: None)


def test_turn_enforces_the_quota_and_says_so(seren):
    first, second, third = make.jobs(
        {"gpus_per_node": 8, "gpu_model": "h100"},
        {"gpus_per_node": 8, "gpu_model": "h100"},
        {"gpus_per_node": 8, "gpu_model": "h100|a100"},
    )

    assert schedule(seren) == 2
    waits = Job.objects.get(pk=second.pk)
    assert (waits.reason, waits.why) == (
        "AssocGrpGRES",
        "Team ada holds 8 of its 8 h100 GPUs; this job needs 8.",
    )
    assert Job.objects.get(pk=first.pk).is_configuring and Job.objects.get(pk=third.pk).is_configuring
    assert third.attempts.get().nodelist == "seren-003"


def test_quota_of_an_unknown_model_and_a_second_one_are_refused(seren):
    team = Team.objects.get(name="ada")

    with pytest.raises(ValidationError, match="No node of seren has 'h1000'"):
        Quota(cluster=seren, team=team, gpu_model="h1000", gpus=8).full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        Quota.objects.create(cluster=seren, team=team, kind="", gpu_model="h100", gpus=9)


def test_api_lists_what_the_team_holds_of_each_model():
    make.running(make.job(gpus_per_node=4, gpu_model="h100"), on=["seren-001"])
    make.running(make.job(gpus_per_node=2, gpu_model="a100"), on=["seren-003"])
    caller = Caller(make.user())

    rows = caller.get("quotas/").json()["results"]
    team = caller.get("teams/ada/").json()

    assert [(row["gpu_model"], row["gpus"], row["used"], row["remaining"]) for row in rows] == [
        ("", 24, 6, 18),
        ("h100", 8, 4, 4),
    ]
    assert [quota["gpu_model"] for quota in team["quotas"]] == ["", "h100"]
    assert [row["gpus"] for row in caller.get("quotas/", {"gpu_model": "h100"}).json()["results"]] == [8]


def test_pages_show_the_quota_with_its_model(seren, client):
    make.running(make.job(gpus_per_node=4, gpu_model="h100"), on=["seren-001"])
    client.force_login(make.user())

    queue, team, teams = (
        " ".join(client.get(path).content.decode().split())
        for path in ("/queue/?cluster=seren", "/settings/teams/of/ada/", "/settings/teams/")
    )

    assert '<strong>ada</strong> <span class="muted">h100</span>' in queue
    assert "<b>4.0</b> of 8 allocated" in queue or "<b>4</b> of 8 allocated" in queue
    assert "8 h100 GPUs" in team
    assert "8 h100 on seren" in teams


def test_preview_names_the_quotas_that_apply():
    caller = Caller(make.user())
    job = {"command": "true", "gpus_per_node": 8}

    def models(model):
        answer = caller.post("jobs/preview/", job | {"cluster": "seren", "gpu_model": model})
        return [quota["gpu_model"] for quota in answer.json()["quotas"]]

    assert (models("a100"), models("h100|a100")) == ([""], ["", "h100"])


def test_quota_for_a_model_is_not_the_quota_of_the_team(seren):
    assert team_usage.team_quota(seren, "ada") == 24
