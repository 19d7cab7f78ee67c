"""Comparing runs on a job's metrics tab: the URL, suggestions and permissions. ben is in another team than ada."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import LatestProgress, TeamRole, clock
from tests import make

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    make.cluster()
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    return make.browser("ada")


def training(node, name="llama", by="ada", gpus=(0,)):
    attempt = make.running(make.job(by=by, name=name, kind="pretrain", gpus_per_node=1), on=(node,), gpus=gpus)
    LatestProgress.objects.create(attempt=attempt, at=clock.now(), step=7, loss=2.0)
    return attempt.job


def many(count):
    return [training("seren-001", gpus=(number,)) for number in range(count)]


def metrics(client, job, **query):
    return client.get(f"/jobs/{job}/", {"tab": "metrics", **query})


def runs(answer):
    return [run.job.public_id for run in answer.context["progress"]()["runs"]]


def suggestions(answer):
    return [run.job.name for run in answer.context["progress"]()["suggested"]()]


def test_the_url_names_the_other_runs(ada):
    own, first, second = (training(f"seren-00{n}") for n in (1, 2, 3))

    answer = metrics(ada, own, compare=f"{second}, {first},{second},{own}")

    assert runs(answer) == [str(own), str(second), str(first)]
    shown = answer.content.decode()
    assert f'href="/jobs/{own}/?tab=metrics&amp;compare={first}"' in shown  # removes the other one
    assert f'hx-get="/jobs/{own}/?tab=metrics&amp;compare={second},{first}"' in shown


def test_the_form_adds_a_run_to_those_of_the_url(ada):
    own, first, second = (training(f"seren-00{n}") for n in (1, 2, 3))

    assert runs(metrics(ada, own, compare=str(first), add=f" {second} ")) == [str(own), str(first), str(second)]


@pytest.mark.parametrize("parameter", ["compare", "add"])
def test_a_job_that_the_user_cannot_see_is_answered_like_one_that_does_not_exist(ada, parameter):
    own, foreign = training("seren-001"), training("seren-002", by="ben")

    answers = [metrics(ada, own, **{parameter: id}) for id in (str(foreign), "0nosuchjob")]

    for answer, id in zip(answers, (foreign, "0nosuchjob"), strict=True):
        assert answer.status_code == 400 and runs(answer) == [str(own)]
        assert f"{parameter}: there is no job &#x27;{id}&#x27; that you can see" in answer.content.decode()


def test_at_most_five_runs_are_shown(ada):
    own, *others = many(6)

    five = metrics(ada, own, compare=",".join(map(str, others[:4])))
    six = metrics(ada, own, compare=",".join(map(str, others)))

    assert len(runs(five)) == 5 and suggestions(five) == []
    assert six.status_code == 400 and "at most 4 can be compared with this one" in six.content.decode()


def test_suggestions_are_runs_of_the_team_with_the_same_name_first(ada):
    same, own = training("seren-001"), training("seren-002")
    training("seren-003", name="mamba")
    training("seren-004", by="ben")
    make.job(by="ada", name="llama", kind="pretrain")  # has not reported

    assert suggestions(metrics(ada, own)) == ["llama", "mamba"]
    assert suggestions(metrics(ada, own, compare=str(same))) == ["mamba"]


def test_the_panel_takes_as_many_queries_with_five_runs_as_with_two(ada):
    own, *others = many(5)
    url = f"/jobs/{own}/?tab=metrics&compare="
    fragment = {"HX-Request": "true", "HX-Target": "section#progress"}

    counts = []
    for chosen in (others[:1], others[:3]):
        with CaptureQueriesContext(connection) as asked:
            ada.get(url + ",".join(map(str, chosen)), headers=fragment)
        counts.append(len(asked))

    assert counts[0] == counts[1] <= 22
