"""What is late, on pages, in the API, in /readyz and in the metrics."""

import json
import time
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.test import Client

from acmeweb.common import metrics_store
from acmeweb.loops.health import backlogs, read_health
from acmeweb.loops.process import add_missing_loops
from acmeweb.loops.table import ALL_LOOPS
from acmeweb.pages.health import shared_health
from acmeweb.updates import web_load
from jobs.models import Loop, LoopFailure, clock
from tests import make
from tests.acmeweb.test_metrics_store import needs_valkey
from tests.jobs.api import api_make
from tests.page_text import page_text

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def cluster():
    """A cluster whose loops have all just run."""
    row = make.cluster(name="kalos")
    add_missing_loops()
    Loop.objects.update(finished_at=clock.now())
    shared_health.forget()
    return row


def age(name, minutes, **fields):
    Loop.objects.filter(name=name).update(finished_at=clock.now() - minutes * MINUTE, **fields)


def sentences(page=""):
    return read_health(clock.now()).sentences(page)


def test_loops_that_have_just_run_are_not_late(cluster):
    assert sentences() == [] and len(read_health(clock.now()).loops) == len(ALL_LOOPS)


def test_a_late_loop_says_what_it_means_and_since_when(cluster):
    age("turn", 4)

    assert sentences() == [
        "Turn on kalos has not finished for 4 min: jobs neither start nor stop, and their states may be outdated."
    ]


def test_a_loop_that_fails_is_late_although_it_runs(cluster):
    age("recovery", 5, last_error="KeyError: 'node'", failed_at=clock.now())

    assert sentences() == ["Recovery has failed for 5 min: failed jobs wait for their restart."]


def test_a_loop_that_never_ran_is_late_since_it_was_added(cluster):
    Loop.objects.filter(name="recovery").update(finished_at=None, created_at=clock.now() - 10 * MINUTE)

    assert sentences()[0].startswith("Recovery has not finished for 10 min")


def test_work_that_can_wait_is_named_only_on_pages_that_it_feeds(cluster):
    age("ledger", 60)
    age("recovery", 60)

    assert [len(sentences(page)) for page in ("reports", "home", "jobs")] == [2, 2, 1]


def test_many_late_loops_become_a_few_sentences(cluster):
    for name in list(ALL_LOOPS)[:8]:
        age(name, 600)

    assert len(sentences()) == 4 and sentences()[-1] == "5 other loops are late."


def test_workers_that_do_not_run_are_one_sentence(cluster):
    Loop.objects.update(finished_at=clock.now() - timedelta(days=1))

    expected = ["No loop has run for 24 h: nothing here is current. Are the workers running?"]
    assert sentences() == sentences("job") == expected


def test_pages_ask_for_what_is_late(cluster):
    age("recovery", 4)

    answer = make.browser("olga").get("/health/late/?page=home")

    assert "failed jobs wait for their restart" in page_text(answer) and b"data-late" in answer.content


def test_health_page_lists_loops_and_backlogs(cluster):
    age("recovery", 4)

    text = page_text(make.browser("olga").get("/health/"))

    assert "Recovery has not finished for 4 min" in text and "Commands to clusters" in text and "Turn" in text


def test_errors_are_shown_to_operators_only(cluster):
    LoopFailure.count_one(Loop.objects.get(name="recovery").pk, "KeyError in recovery.py:decide", "secret job")

    assert "secret job" in page_text(make.browser("olga", "operate_cluster").get("/health/"))
    assert "secret job" not in page_text(make.browser("ada").get("/health/"))


def test_readyz_names_late_loops_if_asked(cluster):
    age("pod logs", 10)

    assert Client().get("/readyz").json() == {"status": "ok"}
    assert Client().get("/readyz?verbose").json() == {"status": "ok", "loops": "late", "late": ["pod logs"]}


def test_health_in_the_api(cluster):
    age("recovery", 4)
    api_make.team("platform")
    token = api_make.token(api_make.person("ada", "platform"))

    answer = Client().get("/api/v1/health/", headers={"Authorization": f"Bearer {token}"}).json()

    assert answer["status"] == "late" and answer["sentences"][0].startswith("Recovery has not finished")
    assert {row["loop"] for row in answer["loops"] if row["late"]} == {"recovery"}


def test_command_fails_if_a_loop_is_late(cluster, capsys):
    call_command("health")
    assert f"All {len(ALL_LOOPS)} loops run in time." in capsys.readouterr().out
    age("recovery", 4)

    with pytest.raises(SystemExit, match="2"):
        call_command("health")

    Loop.objects.all().delete()
    with pytest.raises(SystemExit, match="1"):
        call_command("health")


def test_an_installation_whose_workers_never_ran_is_down(db):
    health = read_health(clock.now())

    assert health.status == "down"
    assert health.sentences("job") == ["No loop has run yet. Are the workers running?"]
    assert "No loop has run yet" in page_text(make.browser("olga").get("/health/"))


def test_a_failure_that_the_diagnosis_loop_has_not_seen_waits_for_a_verdict(cluster):
    make.ended(state="FAILED")

    assert {row.kind: row.count for row in backlogs(clock.now())}["diagnoses"] == 1


@needs_valkey
def test_sockets_of_web_processes_are_added_up_until_they_are_old():
    now = time.time()
    row = {"at": now, "sockets": 3, "connections": 1, "max_connections": 8, "waiting": 0}
    old = row | {"at": now - 2 * web_load.MAX_AGE_S}
    figures = {"a:1": row, "a:2": row, "a:3": old}
    metrics_store.valkey.ask(
        [("DEL", web_load.PLACE), *(("HSET", web_load.PLACE, key, json.dumps(value)) for key, value in figures.items())]
    )

    assert web_load.read_web_load() == web_load.WebLoad(sockets=6, connections=2, max_connections=16)


@needs_valkey
def test_a_web_process_stores_its_figures_once_per_interval():
    metrics_store.valkey.ask([("DEL", web_load.PLACE)])
    reporter = web_load.LoadReporter()

    reporter.report(3)
    reporter.report(5)

    assert web_load.read_web_load().sockets == 3
