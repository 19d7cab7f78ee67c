"""Incidents: opening, joining, acknowledging, resolving, and reviews of diagnoses."""

from __future__ import annotations

import pytest

from acmeweb.common.errors import StateConflict
from failures.actions import incidents as incident_actions
from failures.loops.diagnose import diagnose_once
from failures.models import Decision, Diagnosis, Incident, IncidentState
from jobs.models import Event, Job, clock
from tests import make as rows
from tests.failures import make

pytestmark = pytest.mark.django_db


def act(verb, incident, **how):
    verb(incident, author=rows.author(), now=clock.now(), **how)


def test_storage_outage_of_three_jobs_of_two_teams_is_one_incident(tmp_path):
    diagnoses = [
        make.diagnosed(tmp_path, make.STORAGE, by=user, on=(node,))
        for user, node in (("ada", "seren-001"), ("ben", "seren-002"), ("ada", "seren-003"))
    ]

    incident = Incident.objects.get()
    assert {row.incident_id for row in diagnoses} == {incident.pk}
    assert (incident.scope, incident.attempts, incident.lead_id) == ("service", 3, diagnoses[0].pk)
    assert incident.gpu_hours_lost == pytest.approx(48, rel=0.01)
    assert incident.first_symptom_at <= incident.last_symptom_at


def test_failed_node_of_two_jobs_is_one_incident_despite_different_symptoms(tmp_path):
    wide = make.running(tmp_path, on=("seren-002", "seren-001"), gpus_per_node=4)
    small = make.running(tmp_path, on=("seren-003", "seren-004", "seren-001"), gpus_per_node=2, gpus=(6, 7), by="ben")
    make.dies("seren-001")
    make.end(tmp_path, wide, make.DEAD_PEER)
    make.end(tmp_path, small, "step 1\n", state="NODE_FAIL")
    diagnose_once(clock.now())

    first, second = make.of(wide), make.of(small)
    assert (first.root_cause, second.root_cause) == ("NodeFailure", "SlurmNodeFail")
    incident = Incident.objects.get()
    assert [node.name for node in incident.nodes.all()] == ["seren-001"]
    assert incident.title == "NodeFailure · seren-001"


def test_program_errors_of_two_jobs_are_two_incidents_and_a_retry_is_not(tmp_path):
    first = make.diagnosed(tmp_path, job=(job := rows.job(cluster=make.cluster(tmp_path), gpus_per_node=1)))
    make.diagnosed(tmp_path)
    type(job).objects.filter(pk=job.pk).update(state="PENDING", ended_at=None)
    job.refresh_from_db()
    again = make.diagnosed(tmp_path, job=job)

    assert again.incident_id == first.incident_id
    assert Incident.objects.count() == 2


def test_failure_after_the_incident_was_resolved_opens_another(tmp_path):
    make.diagnosed(tmp_path, make.STORAGE)
    act(incident_actions.resolve, Incident.objects.get(), why="the store is back")
    make.diagnosed(tmp_path, make.STORAGE)

    assert sorted(Incident.objects.values_list("state", flat=True)) == ["open", "resolved"]


def test_acknowledged_incident_cannot_be_acknowledged_again(tmp_path):
    incident = make.diagnosed(tmp_path).incident

    act(incident_actions.acknowledge, incident)

    with pytest.raises(StateConflict, match="already acknowledged"):
        act(incident_actions.acknowledge, incident)
    incident.refresh_from_db()
    assert (incident.state, incident.acknowledged_by) == (IncidentState.ACKNOWLEDGED, "ada")


def test_incident_is_resolved_when_its_jobs_complete(tmp_path):
    mended, still = make.diagnosed(tmp_path), make.diagnosed(tmp_path)
    Incident.objects.update(category="Framework")
    service = make.diagnosed(tmp_path, make.STORAGE)
    Job.objects.filter(pk__in=[mended.attempt.job_id, service.attempt.job_id]).update(state="COMPLETED")

    assert incident_actions.resolve_settled_incidents(clock.now()) == 1

    states = {row.pk: row.incident.state for row in map(make.of, [mended.attempt, still.attempt, service.attempt])}
    assert states == {mended.pk: "resolved", still.pk: "open", service.pk: "open"}
    assert Event.objects.get(type="incident.resolved").by == "diagnosis"
    assert incident_actions.resolve_settled_incidents(clock.now()) == 0


@pytest.mark.parametrize(
    ("category", "job_state", "has_proposal", "state"),
    [
        ("Script", "FAILED", False, "resolved"),
        ("Script", "CANCELLED", False, "resolved"),
        ("Script", "FAILED", True, "open"),
        ("Script", "PENDING", False, "open"),
        ("Infrastructure", "FAILED", False, "open"),
        ("Unknown", "FAILED", False, "open"),
    ],
)
def test_incident_of_a_program_error_is_resolved_when_its_jobs_end(tmp_path, category, job_state, has_proposal, state):
    incident = make.diagnosed(tmp_path).incident
    Incident.objects.update(category=category)
    Job.objects.update(state=job_state)
    if has_proposal:
        Decision.objects.create(
            cluster=incident.cluster,
            incident=incident,
            attempt=incident.lead.attempt,
            diagnosis=incident.lead,
            state="proposed",
            at=clock.now(),
            not_before=clock.now(),
            expires_at=clock.now(),
            facts={},
            history={},
            policy={},
        )

    incident_actions.resolve_settled_incidents(clock.now())

    incident.refresh_from_db()
    assert incident.state == state


def test_each_step_of_an_incident_is_an_event_with_its_author(tmp_path):
    incident = make.diagnosed(tmp_path).incident
    act(incident_actions.acknowledge, incident)
    act(incident_actions.resolve, incident, why="fixed")

    events = Event.objects.filter(type__startswith="incident.").order_by("id")
    assert [(one.type, one.by) for one in events] == [
        ("incident.opened", "diagnosis"),
        ("incident.acknowledged", "ada"),
        ("incident.resolved", "ada"),
    ]
    assert all(one.detail == {"incident": incident.pk} for one in events)


# --- verdicts that people judge


def test_a_correction_keeps_what_the_engine_said_and_renames_the_incident(tmp_path):
    row = make.diagnosed(tmp_path)

    incident_actions.correct_verdict(
        row, "DatasetLoadingError", author=rows.author(), now=clock.now(), note="the shard is torn"
    )

    row = make.of(row.attempt)
    assert (row.root_cause, row.engine_root_cause, row.review, row.category) == (
        "DatasetLoadingError",
        "TypeError",
        "corrected",
        "Framework",
    )
    assert (row.reviewed_by, row.review_note) == (rows.user(), "the shard is torn")
    assert "data set" in row.action
    assert row.incident.root_cause == "DatasetLoadingError"


def test_every_correction_is_an_event_with_its_author(tmp_path):
    row = make.diagnosed(tmp_path)

    for cause in ("KeyError", "OSError", "TypeError"):
        incident_actions.correct_verdict(row, cause, author=rows.author(), now=clock.now())

    events = Event.objects.filter(attempt=row.attempt, type__startswith="diagnosis.").order_by("id")
    assert [(one.type, one.from_state, one.to_state) for one in events][1:] == [
        ("diagnosis.corrected", "TypeError", "KeyError"),
        ("diagnosis.corrected", "KeyError", "OSError"),
        ("diagnosis.confirmed", "OSError", "TypeError"),
    ]


def test_confirmation_changes_only_the_review(tmp_path):
    row = make.diagnosed(tmp_path)
    before = (row.root_cause, row.evidence, row.action)

    incident_actions.confirm(row, author=rows.author(), now=clock.now())

    assert (row.root_cause, row.evidence, row.action) == before
    assert row.review == "confirmed"


def test_undiagnosed_attempt_cannot_be_reviewed(tmp_path):
    make.failed(tmp_path)
    incident_actions.add_missing_diagnoses(clock.now().replace(year=2000), clock.now())

    with pytest.raises(StateConflict, match="not diagnosed yet"):
        incident_actions.confirm(Diagnosis.objects.get(), author=rows.author(), now=clock.now())
