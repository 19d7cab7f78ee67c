"""Reports: months, bars that add up, idle GPUs per user, and which names a reader may see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from acmeweb.common.errors import InvalidField
from jobs.models import Allocation, Attempt, Cluster, Job, Node, Resolution, Sample, TeamRole, clock
from jobs.models.permissions import Caller
from scheduling.ledger.pages.reports import ENERGY_COLUMNS
from scheduling.ledger.reads import gpu_usage
from scheduling.ledger.rules import report_rows, waste
from scheduling.ledger.rules.buckets import Bucket
from scheduling.ledger.rules.parts import US_PER_HOUR
from tests import make

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def job_use(**fields):
    usual = {"public_id": "j1", "name": "train", "kind": "pretrain", "gpus": 8}
    return waste.JobGpuUse(**usual | {"never_used": 0, "measured_h": 80.0, "idle_h": 0.0} | fields)


def use(user="ada", team="pretraining", held_h=80.0, **fields):
    """The use of one user with one job."""
    job = job_use(**fields)
    sizes = {"jobs": 1, "held_h": held_h, "measured_h": job.measured_h, "idle_h": job.idle_h}
    return waste.TeamGpuUse(user=user, team=team, worst=[job] if job.idle_h else [], **sizes)


# --- periods


def test_month_is_a_calendar_month_up_to_now():
    past, current = report_rows.parse_period("", "2026-02", NOW), report_rows.parse_period("7", "2026-11", NOW)

    assert (past.since, past.until) == (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert (current.since, current.until) == (datetime(2026, 11, 1, tzinfo=UTC), NOW)
    assert past.title == "February 2026"


@pytest.mark.parametrize(
    "days, month, said",
    [
        ("8", "", "days: '8' is not one of"),
        ("", "2026-13", "not a month. Use YYYY-MM, such as 2026-11"),
        ("", "2026-12", "is in the future"),
    ],
)
def test_invalid_period_is_reported(days, month, said):
    with pytest.raises(InvalidField, match=said):
        report_rows.parse_period(days, month, NOW)


def test_months_go_back_across_the_new_year():
    assert report_rows.months(datetime(2026, 1, 31, tzinfo=UTC), 3) == ["2026-01", "2025-12", "2025-11"]


def test_last_days_are_a_period_up_to_now():
    for days, asked, title in (("", "7", "last 7 days"), ("1", "1", "last 24 hours"), ("30", "30", "last 30 days")):
        period = report_rows.parse_period(days, "", NOW)

        assert (period.since, period.until, period.title) == (NOW - int(asked) * 24 * HOUR, NOW, title)
        assert period.params == {"days": asked} and not period.is_month


def test_month_of_a_long_and_a_short_month_ends_at_the_next_first():
    for month, following in (("2026-01", (2026, 2, 1)), ("2025-12", (2026, 1, 1)), ("2024-02", (2024, 3, 1))):
        period = report_rows.parse_period("", month, NOW)

        assert period.until == datetime(*following, tzinfo=UTC)
        assert period.params == {"month": month} and period.is_month


def test_month_that_begins_now_has_no_report_yet():
    first = datetime(2026, 11, 1, tzinfo=UTC)

    with pytest.raises(InvalidField, match="2026-11 is in the future"):
        report_rows.parse_period("", "2026-11", first)
    assert report_rows.parse_period("", "2026-11", first + timedelta(seconds=1)).since == first


def test_a_year_of_months_is_offered():
    months = report_rows.months(NOW)

    assert (len(months), months[0], months[-1]) == (12, "2026-11", "2025-12")


# --- bars


def test_bar_part_has_the_hours_and_the_place_of_its_buckets():
    hour = US_PER_HOUR
    sizes = {Bucket.PRODUCTIVE: 5 * hour, Bucket.START_UP: hour, Bucket.CHECKPOINT_STALL: hour, Bucket.DOWN: 3 * hour}

    parts = {part.group.name: part for part in report_rows.report_bar_parts(sizes)}

    assert [(name, part.hours, part.start, part.share) for name, part in parts.items() if part.hours] == [
        ("productive", 5, 0, 50),
        ("overhead", 2, 50, 20),
        ("closed", 3, 70, 30),
    ]
    assert (parts["lost"].start, parts["lost"].share) == (70, 0)


def test_row_has_its_hours_and_the_sum_of_its_costs():
    sizes = {Bucket.PRODUCTIVE: 3 * US_PER_HOUR, Bucket.FREE: US_PER_HOUR}

    free = report_rows.report_row("llm", sizes, 0.75)
    priced = report_rows.report_row("llm", sizes, 0.75, {Bucket.PRODUCTIVE: 6.0, Bucket.FREE: 2.0})

    assert (free.name, free.hours, free.goodput, free.cost) == ("llm", 4, 0.75, None)
    assert priced.cost == 8 and report_rows.total_cost({Bucket.FREE: 0.0}) == 0


def test_unnamed_row_is_split_by_whether_a_job_held_the_gpus():
    sizes = {bucket: number for number, bucket in enumerate(Bucket, 1)}

    held_sizes, unheld = report_rows.split_held_sizes(sizes)

    closed = {Bucket.ASLEEP, Bucket.DRAINED, Bucket.DOWN}
    assert set(unheld) == {Bucket.RESERVED_IDLE, Bucket.FRAGMENTED, Bucket.FREE, *closed}
    assert held_sizes | unheld == sizes and not held_sizes.keys() & unheld.keys()


def test_every_bucket_is_in_exactly_one_group():
    grouped = [bucket for group in report_rows.BUCKET_GROUPS for bucket in group.buckets]

    assert sorted(grouped) == sorted(Bucket)


def test_bar_parts_have_no_gaps():
    parts = report_rows.report_bar_parts({bucket: 7 * (number + 1) for number, bucket in enumerate(Bucket)})

    assert sum(part.share for part in parts) == pytest.approx(100)
    for before, after in pairwise(parts):
        assert after.start == pytest.approx(before.start + before.share)


def test_empty_bar_has_empty_parts():
    assert [part.share for part in report_rows.report_bar_parts({})] == [0.0] * len(report_rows.BUCKET_GROUPS)


# --- advice


def test_user_with_most_idle_hours_comes_first_with_advice():
    people = waste.waste_per_user(
        [use(idle_h=2, user="ben"), use(idle_h=30, public_id="j2", name="notebook", kind="debug"), use(idle_h=10)]
    )

    assert [(one.user, one.idle_h, one.share) for one in people] == [("ada", 40, 25), ("ben", 2, 2.5)]
    assert [one.name for one in people[0].worst] == ["notebook", "train"]
    assert "shorter time limit" in people[0].advice


@pytest.mark.parametrize("idle, measured", [(0.5, 1.0), (5.0, 80.0)])
def test_little_waste_gets_no_advice(idle, measured):
    assert waste.waste_per_user([use(idle_h=idle, measured_h=measured)])[0].advice == ""


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"never_used": 8}, "never used a GPU"),
        ({"never_used": 6}, "used 2 of its 8 GPUs"),
        ({"never_used": 1}, "used 7 of its 8 GPUs"),
        ({"kind": "sft"}, "between steps"),
        ({"kind": "mllm"}, "between steps"),
        ({"kind": "pretrain"}, "between steps"),
        ({"kind": "debug"}, "end it when you leave"),
        ({"kind": "evaluation"}, "stage the model once"),
        ({"kind": "other"}, "in a job without GPUs"),
    ],
)
def test_advice_matches_the_measurements(fields, said):
    assert said in waste.advice(job_use(idle_h=20, **fields))


@pytest.mark.parametrize("idle, measured, advised", [(1.0, 10.0, True), (0.99, 9.0, False), (1.0, 10.1, False)])
def test_advice_begins_at_one_idle_hour_and_a_tenth_of_the_measured_time(idle, measured, advised):
    assert bool(waste.waste_per_user([use(idle_h=idle, measured_h=measured)])[0].advice) is advised


def test_figures_of_a_user_are_the_sums_of_the_jobs():
    uses = [
        use(public_id=f"j{number}", team=team, idle_h=idle, held_h=10.0, measured_h=8.0)
        for number, (team, idle) in enumerate([("b", 1.0), ("a", 3.0), ("b", 3.0), ("a", 2.0), ("a", 0.0)])
    ]

    (user,) = waste.waste_per_user(uses)

    assert (user.teams, user.jobs, user.held_h, user.measured_h, user.idle_h) == (["a", "b"], 5, 50, 40, 9)
    assert [job.public_id for job in user.worst] == ["j1", "j2", "j3"]


def test_users_with_equal_waste_are_listed_by_name():
    people = waste.waste_per_user([use(user="ben", idle_h=3), use(user="ada", idle_h=3), use(user="cleo", idle_h=4)])

    assert [one.user for one in people] == ["cleo", "ada", "ben"]


def test_unmeasured_time_is_not_idle():
    one = waste.waste_per_user([use(measured_h=0)])[0]

    assert (one.share, one.idle_h, one.advice) == (None, 0, "")


# --- from rows


@pytest.fixture
def held(db):
    """ada held four GPUs for four hours and used one of them; ben held two for two hours and used both."""
    make.team("pretraining", ada=TeamRole.RESEARCHER)
    make.team("speech", ben=TeamRole.RESEARCHER)
    now = clock.now().replace(minute=30, second=0, microsecond=0)
    Cluster.objects.filter(pk=make.cluster().pk).update(created_at=now - 100 * HOUR)
    for by, gpus, hours, on in (("ada", 4, 4, "seren-001"), ("ben", 2, 2, "seren-002")):
        one = make.running(make.job(by=by, gpus_per_node=gpus, kind="debug"), on=[on])
        Attempt.objects.filter(pk=one.pk).update(promised_at=now - hours * HOUR, confirmed_at=now - hours * HOUR)
        Job.objects.filter(pk=one.job_id).update(submitted_at=now - hours * HOUR)
        Allocation.objects.filter(attempt=one).update(held_at=now - hours * HOUR)
    return now


def measured(node, util, now, hours=5, resolution=Resolution.FIVE_MINUTES):
    row = Node.objects.get(name=node)
    count = int(timedelta(hours=hours) / timedelta(seconds=resolution))
    Sample.objects.bulk_create(
        Sample(node=row, resolution=resolution, at=now - timedelta(seconds=resolution) * one, gpu_util=util)
        for one in range(1, count + 1)
    )


def found(caller, now, back=24):
    return {one.user: one for one in gpu_usage.gpu_uses(Caller(user=make.user(caller)), now - back * HOUR, now)}


def operator(name="olga"):
    person = make.user(name)
    person.user_permissions.add(Permission.objects.get(codename="operate_cluster"))
    return person


def test_gpus_below_the_threshold_are_idle_while_held(held):
    measured("seren-001", [90, 0, 1, 4.9, 0, 0, 0, 0], held)

    ada = found("ada", held)["ada"]
    assert [(job.gpus, job.never_used, job.idle_h) for job in ada.worst] == [(4, 3, pytest.approx(12))]
    assert (ada.jobs, ada.held_h, ada.measured_h, ada.idle_h) == (
        1,
        pytest.approx(16),
        pytest.approx(16),
        pytest.approx(12),
    )


def test_gaps_and_missing_values_are_neither_used_nor_idle(held):
    measured("seren-001", [90, None], held, hours=2)

    ada = found("ada", held)["ada"]
    assert (ada.held_h, ada.measured_h, ada.idle_h) == (pytest.approx(16), pytest.approx(2), 0)


def test_longer_periods_are_read_by_the_hour(held):
    on_the_hour = held.replace(minute=0)
    measured("seren-001", [0] * 8, on_the_hour, hours=10, resolution=Resolution.HOUR)

    assert found("ada", held, back=72)["ada"].idle_h == pytest.approx(12)  # only whole hours within the four


def test_use_of_several_jobs_is_added_up_and_the_most_idle_come_first(held):
    for number in range(1, 6):  # one GPU each for as many hours, the newest of which is not over
        one = make.running(
            make.job(by="ada", gpus_per_node=1, name=f"number {number}"), on=["seren-003"], gpus=(number,)
        )
        Job.objects.filter(pk=one.job_id).update(submitted_at=held - 9 * HOUR)
        Attempt.objects.filter(pk=one.pk).update(promised_at=held - number * HOUR)
        Allocation.objects.filter(attempt=one).update(held_at=held - number * HOUR)
    measured("seren-003", [0] * 8, held)

    ada = found("ada", held)["ada"]

    assert [job.name for job in ada.worst] == ["number 5", "number 4", "number 3"]
    assert (ada.jobs, ada.held_h, ada.idle_h) == (6, pytest.approx(16 + 15), pytest.approx(15))


def test_gpus_held_for_less_than_an_interval_are_held_and_not_measured(held):
    Allocation.objects.update(released_at=held - 2 * HOUR, held_at=held - 2 * HOUR - timedelta(minutes=30))
    measured("seren-001", [0] * 8, held.replace(minute=0), hours=10, resolution=Resolution.HOUR)

    ada = found("ada", held, back=72)["ada"]

    assert (ada.jobs, ada.held_h, ada.measured_h, ada.worst) == (1, pytest.approx(2), 0, [])


def test_user_of_a_job_submitted_outside_acme_is_the_one_of_the_cluster(held):
    Job.objects.filter(user=make.user("ada")).update(foreign_id="77", foreign_user="ada.l")

    assert set(found("ada", held)) == {"ada.l"}


def test_users_see_their_teams_and_operators_see_all(held):
    operator()

    assert set(found("ada", held)) == {"ada"}
    assert set(found("olga", held)) == {"ada", "ben"}


def test_job_that_ended_before_the_period_is_excluded(held):
    Attempt.objects.update(ended_at=held - 2 * HOUR)
    Job.objects.update(ended_at=held - 2 * HOUR, state="COMPLETED")
    Allocation.objects.update(released_at=held - 2 * HOUR)

    assert found("ada", held, back=1) == {}


# --- the pages


def page(name, path="/reports/", **asked):
    client = Client()
    client.force_login(make.user(name))
    answer = client.get(path, asked)
    return answer, answer.content.decode()


def test_page_adds_up_to_the_total_and_gives_advice(held):
    measured("seren-001", [0] * 8, held)

    answer, text = page("ada", days="1", by="team")

    assert answer.status_code == 200
    assert sum(part.share for part in answer.context["whole"].parts) == pytest.approx(100)
    assert "never used a GPU" in text
    assert [row.name for row in answer.context["rows"]] == ["other teams", "unallocated", "pretraining"]


def test_names_of_other_teams_are_not_shown(held):
    for path in ("/reports/", "/reports/export/", "/reports/gpu-hours.csv"):
        for by in ("team", "kind", "day", "cluster"):
            _, text = page("ada", path, days="1", by=by)
            assert "speech" not in text and ">ben<" not in text, (path, by)


def test_export_is_self_contained(held):
    answer, text = page("ada", "/reports/export/", month=f"{held:%Y-%m}")

    assert answer["Content-Disposition"] == f'attachment; filename="acme-report-{held:%Y-%m}.html"'
    assert "<style>" in text and "@media print" in text
    assert "<link" not in text and "<script" not in text and "src=" not in text


def test_csv_has_every_bucket(held):
    _, text = page("ada", "/reports/gpu-hours.csv", days="1", by="cluster")

    heading, row = (line.split(",") for line in text.strip().splitlines())
    assert heading == ["cluster", *(bucket.value for bucket in Bucket), "goodput", "cost", *ENERGY_COLUMNS]
    assert row[-6:] == [""] * 6
    assert sum(map(float, row[1 : 1 + len(Bucket)])) == pytest.approx(32 * 24, abs=0.01)


def test_week_of_a_new_cluster_uses_the_fine_measurements(held):
    measured("seren-001", [0] * 8, held)
    assert found("ada", held, back=24 * 7)["ada"].measured_h == 0  # there are no hourly means

    Cluster.objects.update(created_at=held - 5 * HOUR)

    assert found("ada", held, back=24 * 7)["ada"].measured_h > 10


def test_reports_show_the_cost_of_each_row_if_there_is_a_price(held):
    assert ">USD<" not in page("ada", days="1", by="team")[1]
    Cluster.objects.update(gpu_hour_price=2.5)

    _, text = page("ada", "/reports/gpu-hours.csv", days="1", by="team")
    shown = [page("ada", path, days="1", by="team")[1] for path in ("/reports/", "/reports/export/")]

    for line in text.strip().splitlines()[1:]:
        _, *hours, _, cost = line.split(",")[: -len(ENERGY_COLUMNS)]
        assert float(cost) == pytest.approx(2.5 * sum(map(float, hours)), abs=0.01)
    for one in shown:  # the total, which no row of a team contains
        assert f"<dd>{32 * 24 * 2.5:,.0f} USD</dd>" in one and ">USD<" in one


def test_clusters_without_a_price_are_left_out_of_the_cost(held):
    Cluster.objects.update(gpu_hour_price=1.0)
    make.cluster("kalos", nodes=1)

    _, text = page("ada", "/reports/gpu-hours.csv", days="1", by="cluster")

    assert [line.split(",")[len(Bucket) + 2] for line in text.strip().splitlines()[1:]] == ["", "768.0"]


def test_hostile_job_name_is_escaped(held):
    Job.objects.filter(user=make.user("ada")).update(name="<script>alert(1)</script>")
    measured("seren-001", [0] * 8, held)

    for path in ("/reports/", "/reports/export/"):
        assert "<script>alert" not in page("ada", path, days="1")[1]


def test_number_of_queries_does_not_depend_on_jobs(held):
    with CaptureQueriesContext(connection) as few:
        page("ada", days="1")
    for _ in range(10):
        make.running(make.job(by="ada", gpus_per_node=0))

    with CaptureQueriesContext(connection) as many:
        page("ada", days="1")

    assert len(many) <= len(few) <= 51
