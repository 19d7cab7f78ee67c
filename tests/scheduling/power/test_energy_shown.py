"""Energy next to GPU-hours: reports, CSV, REST, job pages and metrics agree, and hide what readers may not see."""

from __future__ import annotations

import csv
from datetime import timedelta
from io import StringIO

import pytest
from django.test import Client

from jobs.core.lifecycle import State
from jobs.models import Allocation, Attempt, Cluster, EnergyClock, EnergyHour, Job, clock
from scheduling.ledger.loops.figures import update_ledger_metrics_once
from scheduling.ledger.reads import table as ledger_table
from tests import make
from tests.jobs.api.api_make import Caller

HOUR = timedelta(hours=1)
KWH = 3.6e6


@pytest.fixture
def site(db):
    """Ada's team used 8 kWh in two attempts, of which one failed; Rita's team used 2; 5 were used by free GPUs."""
    cluster = make.cluster(kwh_price=0.5, co2_g_per_kwh=100)
    now = clock.now().replace(minute=0, second=0, microsecond=0) - HOUR
    Cluster.objects.filter(pk=cluster.pk).update(created_at=now - 48 * HOUR)
    make.team("pretraining", ada="researcher")
    make.team("vision", rita="researcher")
    EnergyClock.objects.create(cluster=cluster, counted_until=clock.now())
    job = make.job(by="ada", gpus_per_node=8, kind="pretrain")
    failed = attempt(job, now - 6 * HOUR, now - 4 * HOUR, State.FAILED)
    again = attempt(job, now - 3 * HOUR, now - HOUR, State.COMPLETED)
    other = attempt(make.job(by="rita", gpus_per_node=1), now - 3 * HOUR, now - 2 * HOUR, State.COMPLETED)
    for hour in (6, 5):
        use(cluster, now - hour * HOUR, failed, counter_j=2 * KWH)
    use(cluster, now - 3 * HOUR, again, counter_j=2 * KWH)
    use(cluster, now - 2 * HOUR, again, estimate_j=1 * KWH, host_j=1 * KWH)
    use(cluster, now - 3 * HOUR, other, counter_j=2 * KWH)
    use(cluster, now - 3 * HOUR, None, counter_j=5 * KWH)
    return cluster, job, failed


def attempt(job, start, end, state):
    made = make.running(job)
    Allocation.objects.filter(attempt=made).update(held_at=start, released_at=end)
    Attempt.objects.filter(pk=made.pk).update(promised_at=start, confirmed_at=start, ended_at=end, state=state)
    again = state == State.FAILED
    Job.objects.filter(pk=job.pk).update(
        state=State.PENDING if again else state, submitted_at=start, ended_at=None if again else end, flags=[]
    )
    job.refresh_from_db()
    return made


def use(cluster, start, attempt, **sums):
    EnergyHour.objects.create(cluster=cluster, start=start, attempt=attempt, gpu_s=3600, **sums)


def table(by, teams=None):
    return ledger_table.table(by, clock.now() - 24 * HOUR, clock.now(), teams)


def page(name, path, **query):
    client = Client()
    client.force_login(make.user(name))
    return client.get(path, query).content.decode()


@pytest.mark.parametrize("by", ledger_table.GROUPINGS)
def test_rows_of_every_grouping_add_up_to_the_energy(site, by):
    found = table(by)

    assert sum(row.energy.all.kwh for row in found.rows if row.energy.all) == pytest.approx(15)
    assert (found.energy.kwh, found.energy.cost, found.energy.co2_kg) == pytest.approx((15, 7.5, 1.5))
    assert found.energy.basis.startswith("partly estimated")


def test_energy_of_hidden_teams_has_no_name_and_is_not_that_of_free_gpus(site):
    team = make.team("pretraining").pk

    (unnamed,) = [row for row in table("team", [team]).rows if not row.name]

    assert (unnamed.energy.held.kwh, unnamed.energy.unallocated.kwh) == pytest.approx((2, 5))


def test_lost_energy_has_the_causes_of_the_lost_gpu_hours_and_their_share(site):
    found = table("team")

    # The team used 0.25 kWh in each GPU-hour
    hours = {cause: lost / 3.6e9 for cause, lost in found.lost.items()}
    assert {cause: part.kwh for cause, part in found.lost_energy.items()} == pytest.approx(
        {cause: 0.25 * lost for cause, lost in hours.items()}, rel=0.05
    )
    assert sum(hours.values()) >= 16


def test_report_and_its_csv_and_the_api_show_the_same_energy(site):
    text = page("ada", "/reports/gpu-hours.csv", days="1", by="kind")
    shown = page("ada", "/reports/", days="1", by="kind")
    printed = page("ada", "/reports/export/", days="1")
    answer = Caller(make.user("ada")).get("ledger/?by=kind").json()

    rows = {row["kind"]: row for row in csv.DictReader(StringIO(text))}
    assert [
        float(rows["pretrain"][name]) for name in ("kwh", "estimated_kwh", "host_kwh", "energy_cost", "co2_kg")
    ] == (pytest.approx([8, 1, 1, 4, 0.8]))
    (row,) = [row for row in answer["rows"] if row["name"] == "pretrain"]
    assert (row["kwh"], row["energy_cost"]) == pytest.approx((8, 4))
    assert (answer["kwh"], answer["energy_basis"]) == (pytest.approx(15), table("kind").energy.basis)
    assert sum(part["kwh"] for part in answer["lost"]) > 0
    for one in (shown, printed):
        assert ">kWh<" in one and "15.0<small>kWh" in one.replace("\n", "").replace("  ", "")


def test_report_without_telemetry_has_no_column_of_energy(db):
    make.cluster()
    make.team("pretraining", ada="researcher")

    assert "kWh" not in page("ada", "/reports/", days="1")
    assert Caller(make.user("ada")).get("ledger/").json()["kwh"] is None


def test_job_shows_the_energy_of_its_attempts(site):
    _, job, _ = site

    answer = Caller(make.user("ada")).get(f"jobs/{job.public_id}/energy/").json()
    shown = page("ada", f"/jobs/{job.public_id}/gpus/")

    assert [(row["attempt"], row["kwh"]) for row in answer["attempts"]] == [
        (1, pytest.approx(4)),
        (2, pytest.approx(4)),
    ]
    assert (answer["kwh"], answer["energy_cost"], answer["co2_kg"]) == pytest.approx((8, 4, 0.8))
    assert "<b>8.0</b> kWh" in shown and "partly estimated" in shown


def test_energy_of_jobs_of_other_teams_is_not_found(site):
    _, job, _ = site

    assert Caller(make.user("rita")).get(f"jobs/{job.public_id}/energy/").status_code == 404


def test_metrics_of_the_last_day_contain_the_energy_by_basis_and_cause(site):
    stored = {}

    update_ledger_metrics_once(clock.now(), lambda kind, name, figures, ttl: stored.update({name: figures}))

    figures = stored["seren"]
    assert figures["kwh"] == pytest.approx({"counter": 13, "power": 0, "estimate": 1, "host": 1})
    assert figures["energy_cost"] == pytest.approx(7.5)
    assert sum(figures["kwh_lost"].values()) == pytest.approx(
        sum(part.kwh for part in table("team").lost_energy.values()), rel=0.01
    )
