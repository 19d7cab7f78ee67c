"""The history of the demo: its rows, what pages read from them, and what happens if it is cut off or repeated."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import accumulate, pairwise
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.db.models import Count, F, Q, Sum

from failures.models import Decision, Diagnosis, Incident, IncidentState
from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.cluster_kinds import KUBERNETES
from jobs.core.lifecycle import FINAL_STATES, JobKind, State
from jobs.core.telemetry_math import aggregate_per_gpu
from jobs.models import (
    Allocation,
    Attempt,
    Checkpoint,
    Cluster,
    ClusterMinute,
    EnergyHour,
    Event,
    Job,
    LatestProgress,
    Resolution,
    Sample,
    clock,
)
from scheduling.evaluation.rules.checkpoint_paths import default_campaign_name
from scheduling.evaluation.rules.job_output import parse_job_output
from scheduling.models import Campaign, Evaluation, TrialKind
from scheduling.power.reads.energy import attempt_energy
from scheduling.simulation.demo import users
from scheduling.simulation.demo.history import write
from scheduling.simulation.demo.history.training import training_rows
from scheduling.simulation.demo.history.values import HistoryPlace, PlacedAttempt
from scheduling.simulation.drill.jobs import MIX_STEP_S, AttemptLife
from scheduling.simulation.drill.values import DrillPlan
from scheduling.simulation.machines.power_meters import supply_power_w
from tests import make

pytestmark = pytest.mark.django_db
DAYS = 2
COUNTED_J = 7.0


@pytest.fixture(scope="module", autouse=True)
def written(rows_for_module):
    cluster = make.cluster(name="seren", nodes=16, log_root="/logs")
    kalos = make.cluster(name="kalos", nodes=8, log_root="", address="kubernetes:///etc/acme/tokens/kalos")
    users.create_teams_and_users()
    write.reserve_keys()
    reports = []
    # The same time of every day, because the length of the history depends on it
    now = (clock.now() - timedelta(days=1)).replace(hour=12, minute=0, second=0, microsecond=0)
    logs = {}
    _live_rows(cluster, now)
    jobs = write.write_history({cluster: logs.update, kalos: logs.update}, now, reports.append, days=DAYS)
    return cluster.pk, now, jobs, reports, logs


def refuse(logs):
    raise AssertionError("nothing is stored")


def _live_rows(cluster, now):
    """What a demo on a slow machine has recorded before its history is written."""
    usage = {"gpus": 128, "allocated": 0, "closed": 0, "running": 0, "waiting": 7, "requested": 7}
    ClusterMinute.objects.create(cluster=cluster, at=now - timedelta(minutes=1), **usage)
    node = cluster.nodes.order_by("name").first()
    Sample.objects.create(node=node, resolution=Resolution.FIVE_MINUTES, at=now - timedelta(minutes=5), gpu_util=[7.0])
    EnergyHour.objects.create(cluster=cluster, start=now - timedelta(hours=1), counter_j=COUNTED_J)
    times = {"first_symptom_at": now, "last_symptom_at": now}
    incident = Incident.objects.create(cluster=cluster, scope="node", category="Infrastructure", **times)
    incident.nodes.add(cluster.nodes.first())


@pytest.fixture
def cluster(written):
    return Cluster.objects.get(pk=written[0])


def test_progress_is_reported_up_to_the_end(written):
    *_, jobs, reports, _ = written

    assert jobs == Job.objects.count() > 500
    assert reports == sorted(reports)
    assert reports[-1] == 1.0


def test_all_jobs_ended_within_the_history(written):
    _, now, *_ = written

    assert not Job.objects.exclude(state__in=FINAL_STATES).exists()
    assert not Attempt.objects.filter(ended_at=None).exists()
    assert not Job.objects.filter(Q(submitted_at__lt=now - timedelta(days=DAYS + 1)) | Q(ended_at__gt=now)).exists()
    assert not Job.objects.filter(started_at__lt=F("submitted_at")).exists()


def test_each_attempt_holds_the_gpus_of_its_job():
    wrong = Attempt.objects.annotate(held=Count("allocations")).exclude(held=F("job__nodes") * F("job__gpus_per_node"))

    assert list(wrong.values_list("key", "held", "job__nodes", "job__gpus_per_node", "promised_at", "ended_at")) == []


def test_no_gpu_is_held_by_two_attempts_at_the_same_time():
    spans = Allocation.objects.order_by("node", "gpu", "held_at").values_list("node", "gpu", "held_at", "released_at")
    for before, after in pairwise(spans):
        assert before[:2] != after[:2] or before[3] <= after[2]


def test_each_failed_attempt_has_its_diagnosis_in_an_incident():
    failed = Attempt.objects.filter(state__in=(State.FAILED, State.NODE_FAIL)).count()

    assert failed - 3 <= Diagnosis.objects.count() <= failed
    assert not Diagnosis.objects.filter(incident=None).exists()
    assert Incident.objects.aggregate(all=Sum("attempts"))["all"] == Diagnosis.objects.count()
    assert not Incident.objects.filter(scope="job").exclude(state=IncidentState.RESOLVED).exists()
    assert Diagnosis.objects.exclude(bundle=None).first().bundle_text


def test_recovery_decided_about_trainings_only():
    kinds = set(Decision.objects.values_list("attempt__job__kind", flat=True))

    assert kinds
    assert kinds <= {JobKind.PRETRAIN, JobKind.SFT, JobKind.MLLM}
    assert not Decision.objects.filter(at__gt=clock.now() + timedelta(minutes=1)).exists()


def test_minutes_and_samples_agree_with_the_allocations(cluster, written):
    _, now, *_ = written
    earlier = ClusterMinute.objects.filter(cluster=cluster, at__lt=now - timedelta(hours=1))
    minute = earlier.order_by("-allocated").first()
    held = cluster_allocations(cluster).filter(held_at__lte=minute.at, released_at__gt=minute.at).count()

    assert minute.allocated == held > 0
    assert minute.utilization <= 100 * minute.allocated / minute.gpus
    assert Sample.objects.filter(node__cluster=cluster).exists()


def cluster_allocations(cluster):
    return Allocation.objects.filter(node__cluster=cluster)


@pytest.mark.parametrize(
    ("model", "column"),
    [(Job, "submitted_at"), (Attempt, "promised_at"), (Incident, "opened_at"), (Campaign, "created_at")],
)
def test_rows_of_both_clusters_are_in_the_order_of_time(model, column):
    rows = model.objects.filter(pk__lt=write.RESERVED_KEYS[model]).order_by("pk").values_list(column, flat=True)

    assert list(rows) == sorted(rows)


def test_rows_refer_to_rows_of_their_own_cluster():
    assert Job.objects.filter(cluster__name="kalos").exists()
    assert not Attempt.objects.filter(allocations__isnull=False).exclude(
        job__cluster=F("allocations__node__cluster")
    )  # fmt: skip
    assert not Diagnosis.objects.exclude(cluster=F("attempt__job__cluster")).exists()
    assert not Diagnosis.objects.exclude(cluster=F("incident__cluster")).exists()
    assert not Decision.objects.exclude(cluster=F("diagnosis__cluster")).exists()
    assert not Incident.objects.filter(nodes__isnull=False).exclude(cluster=F("nodes__cluster")).exists()
    assert not Event.objects.filter(attempt__isnull=False).exclude(job=F("attempt__job")).exists()


def test_jobs_of_the_kubernetes_cluster_look_like_jobs_of_kubernetes(written):
    jobs = Job.objects.filter(cluster__name="kalos")
    logs = {path: text for path, text in written[-1].items() if "/kalos/" in path}

    assert set(jobs.values_list("kind", flat=True)) <= {"evaluation", "pretrain", "debug", "other"}
    assert all(UUID(one) for one in Attempt.objects.filter(job__in=jobs).values_list("backend_id", flat=True))
    assert not jobs.filter(Q(mounts=[]) | Q(command__contains="SLURM")).exclude(labels__has_key="campaign").exists()
    assert logs and not any(re.search("^(srun|slurmstepd):", text, re.MULTILINE) for text in logs.values())
    assert all(re.search(r"acme: end of the log of \d+ pods?: [A-Z_]+\n\Z", text) for text in logs.values())


def test_events_are_in_the_order_of_time():
    times = list(Event.objects.order_by("pk").values_list("at", flat=True))

    assert times == sorted(times)


def test_jobs_that_users_submit_come_after_the_history(cluster):
    assert make.job(cluster=cluster).pk > Job.objects.order_by("-submitted_at")[1].pk
    assert Job.objects.first().submitted_at == max(Job.objects.values_list("submitted_at", flat=True))


def test_second_run_writes_nothing(cluster, written):
    jobs = Job.objects.count()

    assert write.write_history({cluster: refuse}, clock.now(), lambda share: None, days=DAYS) == 0
    assert Job.objects.count() == jobs


def test_rows_of_the_running_demo_are_kept(cluster, written):
    _, now, *_ = written

    assert ClusterMinute.objects.get(cluster=cluster, at=now - timedelta(minutes=1)).waiting == 7
    sample = Sample.objects.get(
        node=cluster.nodes.order_by("name").first(), resolution=Resolution.FIVE_MINUTES, at=now - timedelta(minutes=5)
    )
    assert sample.gpu_util == [7.0]
    assert Incident.objects.filter(pk__gt=write.RESERVED_KEYS[Incident], nodes__isnull=False).count() == 1


def test_training_jobs_have_learned():
    rows = LatestProgress.objects.filter(attempt__job__kind=JobKind.PRETRAIN).select_related("attempt")

    assert rows
    for newest in rows:
        steps = list(newest.attempt.progress.order_by("at").values_list("step", "loss", "learning_rate"))
        assert [step for step, *_ in steps] == sorted(step for step, *_ in steps)
        assert newest.step == steps[-1][0]
        assert newest.loss < 11.6  # the logarithm of the vocabulary
    assert not LatestProgress.objects.exclude(attempt__job__kind__in=TRAINING_KINDS).exists()


def test_attempt_that_resumes_continues_its_steps(cluster):
    job, base = make.job(cluster=cluster, name="llm-7b", kind="pretrain"), 600
    life = AttemptLife(promised=0.0, base=base, first_step=10.0)
    work = SimpleNamespace(name="a", kind=JobKind.PRETRAIN, need_s=20_000.0, planned_s=0.0, saved=[], gpus=8)
    attempt = PlacedAttempt(
        work=work,
        life=life,
        ended=7210.0,
        gpus=[(0, gpu) for gpu in range(8)],
        row=Attempt(job=job, key="a.2"),
        job=job,
    )

    [rows] = training_rows([attempt], HistoryPlace(cluster=cluster, nodes=[], users={}, began=make.NOON), DrillPlan())
    points = rows.points

    seconds_before = points[0].step * points[0].step_time_s - (points[0].at - make.NOON).total_seconds()
    assert seconds_before == pytest.approx(base * MIX_STEP_S, rel=0.05)
    assert points[-1].at == make.NOON + timedelta(seconds=7210)


def test_checkpoints_limit_what_a_failure_loses():
    saved = Checkpoint.objects.select_related("attempt", "job")

    assert saved
    for row in saved:
        assert row.attempt.promised_at <= row.saved_at <= row.attempt.ended_at
        assert row.path.startswith(row.job.checkpoint_dir)


def test_log_of_each_failure_is_what_its_diagnosis_read(written):
    logs = written[-1]
    diagnoses = Diagnosis.objects.exclude(bundle=None).select_related("attempt__job__cluster")

    for row in diagnoses:
        assert logs[row.attempt.log_path] == row.bundle_text
        number = r"\d+" if row.attempt.job.cluster.kind is KUBERNETES else row.attempt.backend_id
        assert re.search(rf"job {number} \({re.escape(row.attempt.job.name)}\): ", row.bundle_text)
        for line in row.evidence:
            assert line["text"] in row.bundle_text


def test_last_step_in_the_log_of_a_training_job_is_its_progress(written):
    logs = written[-1]
    newest = LatestProgress.objects.filter(attempt__job__kind=JobKind.PRETRAIN).select_related("attempt__job")

    for row in newest:
        steps = re.findall(r"step +(\d+) \| loss", logs[row.attempt.log_path])
        run_steps = (row.attempt.ended_at - row.attempt.promised_at).total_seconds() / row.step_time_s
        assert int(steps[-1]) == pytest.approx(row.step, abs=max(10, run_steps / 50))


def test_campaign_has_the_rows_that_the_coordinator_writes(written):
    logs = written[-1]
    campaigns = list(Campaign.objects.order_by("id"))

    assert campaigns
    assert campaigns == sorted(campaigns, key=lambda campaign: campaign.created_at)
    for campaign in campaigns:
        assert campaign.name == default_campaign_name(campaign.checkpoints, str(campaign.suite))
        assert campaign.created_at < campaign.started_at < campaign.ended_at
        assert not campaign.evaluations.exclude(state="COMPLETED").exists()
        for trial in campaign.trials.select_related("job__cluster"):
            assert trial.job.labels == {"campaign": campaign.public_id}
            output = parse_job_output(logs[trial.job.attempts.last().log_path].split("\n"), trial.nonce)
            done = (trial.inferred if trial.kind == TrialKind.INFER else trial.scored).values_list("pk", flat=True)
            assert trial.job.state != State.COMPLETED or {part.part for part in output.parts} == set(done)


def test_shards_of_an_evaluation_cover_its_samples_once():
    evaluations = Evaluation.objects.filter(reused=None).select_related("dataset").prefetch_related("shards")

    assert evaluations
    for row in evaluations:
        shards = sorted(row.shards.all(), key=lambda shard: shard.start)
        assert [shard.start for shard in shards] == list(accumulate((s.samples for s in shards[:-1]), initial=0))
        assert sum(shard.samples for shard in shards) == row.dataset.samples == row.given
        assert all(shard.inferred_by.job.ended_at <= shard.scored_by.job.started_at for shard in shards)
        assert 0 <= row.scores["accuracy"] < 1


def test_campaign_evaluates_a_checkpoint_that_exists():
    saved = set(Checkpoint.objects.values_list("path", flat=True))

    assert all(saved.issuperset(campaign.checkpoints) for campaign in Campaign.objects.all())


def test_telemetry_agrees_with_the_jobs_on_each_gpu(cluster):
    """In full intervals, a GPU of a training job is busy and a free one is idle."""
    five = timedelta(seconds=Resolution.FIVE_MINUTES)
    for sample in Sample.objects.filter(resolution=Resolution.FIVE_MINUTES).order_by("at", "node")[::97]:
        held = Allocation.objects.filter(node=sample.node, held_at__lt=sample.at + five, released_at__gt=sample.at)
        kinds = dict(held.values_list("gpu", "attempt__job__kind"))
        whole = held.filter(held_at__lte=sample.at, released_at__gte=sample.at + five).values_list("gpu", flat=True)
        for gpu, busy in enumerate(sample.gpu_util):
            assert busy is None or gpu in kinds or busy == 0
            assert busy is None or gpu not in whole or kinds[gpu] not in TRAINING_KINDS or busy > 80


def test_energy_is_that_of_the_power_in_the_telemetry(cluster):
    """Each joule is in the row of an attempt or in that of the GPUs that no attempt held."""
    fine = Sample.objects.filter(node__cluster=cluster, resolution=Resolution.FIVE_MINUTES)
    watts = [value for row in fine for value in row.gpu_power_w if value is not None]
    hours = EnergyHour.objects.filter(cluster=cluster)

    assert sum(hours.values_list("power_j", flat=True)) == pytest.approx(sum(watts) * Resolution.FIVE_MINUTES)
    assert sum(hours.values_list("gpu_s", flat=True)) == pytest.approx(len(watts) * Resolution.FIVE_MINUTES)
    assert not hours.filter(Q(power_j__lt=0) | Q(host_j__lt=0) | Q(gpu_s__lt=0)).exists()
    by_node = (sum(row.gpu_power_w) for row in fine if row.gpu_power_w and None not in row.gpu_power_w)
    host_w = sum(supply_power_w(gpus_w) - gpus_w for gpus_w in by_node)
    assert sum(hours.values_list("host_j", flat=True)) == pytest.approx(host_w * Resolution.FIVE_MINUTES)
    assert hours.filter(attempt=None).exists()


def test_energy_of_an_attempt_covers_the_time_of_its_gpus(cluster):
    held = Allocation.objects.filter(node__cluster=cluster).values("attempt").annotate(
        held=Sum(F("released_at") - F("held_at"))
    )  # fmt: skip
    energy = dict(
        EnergyHour.objects.filter(cluster=cluster).exclude(attempt=None).values_list("attempt").annotate(Sum("gpu_s"))
    )
    seconds = {row["attempt"]: row["held"].total_seconds() for row in held}

    assert set(energy) <= set(seconds)
    assert all(covered <= seconds[attempt] + 0.01 for attempt, covered in energy.items())
    assert sum(energy.values()) > 0.95 * sum(seconds.values())


def test_job_of_the_history_shows_measured_energy(cluster):
    longest = Attempt.objects.annotate(ran=F("ended_at") - F("promised_at")).filter(
        job__cluster=cluster, job__gpus_per_node=8
    ).latest("ran")  # fmt: skip

    use = attempt_energy([longest.pk])[longest.pk]

    gpu_hours = longest.job.gpus * longest.ran / timedelta(hours=1)
    assert use.basis == "measured"
    assert use.gpu_hours == pytest.approx(gpu_hours, rel=0.05)
    assert 0.06 < (use.kwh - use.host_kwh) / use.gpu_hours < 0.4  # between an idle GPU and one at full power


def test_energy_of_nodes_that_report_no_power_is_that_of_their_gpus():
    kalos = EnergyHour.objects.filter(cluster__name="kalos")

    assert kalos.filter(power_j__gt=0).exists()
    assert not kalos.filter(host_j__gt=0).exists()


def test_energy_is_added_to_what_the_demo_has_counted(cluster, written):
    """Both count the GPUs that no attempt held in the hour in which the demo started."""
    _, now, *_ = written
    row = EnergyHour.objects.get(cluster=cluster, start=now - timedelta(hours=1), attempt=None)

    assert row.counter_j == COUNTED_J
    assert row.power_j > 0


def test_hourly_telemetry_is_the_rollup_of_five_minutes(cluster):
    hour = Sample.objects.filter(resolution=Resolution.HOUR, node__samples__xid__contains=[79.0]).first()
    hour = hour or Sample.objects.filter(resolution=Resolution.HOUR).order_by("-at").first()
    fine = Sample.objects.filter(
        node=hour.node, resolution=Resolution.FIVE_MINUTES, at__gte=hour.at, at__lt=hour.at + timedelta(hours=1)
    )
    rows = list(fine.order_by("at"))

    for column in ("gpu_util", "gpu_temperature_c", "xid"):
        expected = aggregate_per_gpu(column, [getattr(row, column) for row in rows])
        assert getattr(hour, column) == pytest.approx(expected, abs=0.06)


def test_requests_of_users_show_nothing_of_the_simulation():
    jobs = Job.objects.values_list("command", "environment", "labels", "time_limit", "kind")

    assert not any("SIM_" in f"{command}{environment}{labels}" for command, environment, labels, *_ in jobs)
    assert max(limit for *_, limit, kind in jobs if kind == JobKind.PRETRAIN) > timedelta(days=1)
    assert not Job.objects.filter(ended_at__gt=F("started_at") + F("time_limit")).exists()
