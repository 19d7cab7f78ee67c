"""The ledger as a command and through the API."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Cluster, clock
from scheduling.ledger.reads import table as ledger_table
from scheduling.ledger.rules.buckets import Bucket
from tests import make
from tests.jobs.api.api_make import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def home():
    home = make.cluster()
    Cluster.objects.filter(pk=home.pk).update(created_at=clock.now() - timedelta(days=50))
    return home


def said(*words):
    out = StringIO()
    call_command("ledger", *words, stdout=out)
    return out.getvalue()


def test_command_prints_a_table_and_json_that_add_up_to_the_capacity(home):
    result = json.loads(said("--from", "2026-01-01", "--json"))

    assert set(result["gpu_hours"]) == {bucket.value for bucket in Bucket}
    assert sum(result["gpu_hours"].values()) == pytest.approx(result["capacity_gpu_hours"])
    assert "capacity 768.00 GPU-hours" in said()  # a day of 32 GPUs


@pytest.mark.parametrize("words", [("--from", "yesterday"), ("--to", "2026-13-01"), ("--from", "2999-01-01")])
def test_invalid_time_is_rejected_by_name(home, words):
    with pytest.raises(CommandError, match=r"--from|--to"):
        said(*words)


def test_api_returns_the_same_figures(home):
    make.team("pretraining", ada="researcher")
    make.running(make.job(gpus_per_node=8))

    result = Caller(make.user("ada")).get("ledger/?by=team").json()

    assert result["capacity_gpu_hours"] == pytest.approx(768)
    assert sum(result["gpu_hours"].values()) == pytest.approx(768)
    assert {row["name"] for row in result["rows"]} == {"", "pretraining"}


@pytest.mark.parametrize("query", ["by=node", "from=nonsense", "from=2026-01-01T00:00:00Z", "since=1"])
def test_api_rejects_invalid_periods(home, query):
    make.team("pretraining", ada="researcher")

    assert Caller(make.user("ada")).get(f"ledger/?{query}").status_code == 400


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("", "unknown causes"),
        ("FAILED", "undiagnosed failures (FAILED)"),
        ("PREEMPTED", "preemption"),
        ("ECCError", "ECCError"),
    ],
)
def test_job_state_is_not_a_cause(cause, said):
    assert ledger_table.cause_label(cause) == said
