"""Corrected diagnoses: decisions based on the wrong cause are withdrawn unless carried out, and made again."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client

from acmeweb.common.errors import ClaimLost
from failures.models import Decision, DecisionState, Diagnosis, RecoveryStep
from failures.recovery import decisions, steps
from jobs.core.lifecycle import State
from jobs.models import Event, Job, Node, clock
from scheduling.loops.pair_tests import advance_pair_tests_once
from scheduling.models import NodeTest
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once
from tests.failures.recovery.test_recovery_loop import HOUR, decided, job_of, mode
from tests.jobs.api.api_make import Caller
from tests.scheduling.fake import FakeCluster

pytestmark = pytest.mark.django_db


def correct(decision, cause):
    row = Diagnosis.objects.select_related("attempt__job").get(pk=decision.diagnosis_id)
    decisions.correct_diagnosis(row, cause, author=rows.author("ada"), now=clock.now())
    decision.refresh_from_db()


def newest():
    return Decision.objects.order_by("-pk").first()


def test_correction_withdraws_a_proposal_and_makes_a_new_one(tmp_path):
    old = decided(tmp_path, make.XID)
    assert (old.action, old.state) == ("test nodes", DecisionState.PROPOSED)

    correct(old, "S3StorageError")
    decide_and_recover_once(clock.now())

    assert (old.state, old.outcome) == (
        DecisionState.WITHDRAWN, "ada corrected the diagnosis from GPUFallenOffBus to S3StorageError."
    )  # fmt: skip
    new = newest()
    assert (new.action, new.state, new.facts["cause"]) == ("wait", DecisionState.PROPOSED, "S3StorageError")
    assert new.pro[0] == "The diagnosis is S3StorageError, 100% confidence."
    assert Job.objects.get().recover_by == new.expires_at
    assert Event.objects.filter(type="decision.withdrawn", by="ada").count() == 1


def test_correction_to_a_program_error_ends_the_job(tmp_path):
    old = decided(tmp_path, make.XID)

    correct(old, "TypeError")
    decide_and_recover_once(clock.now())

    assert (newest().action, newest().state) == ("stop", DecisionState.OBSERVED)
    assert job_of(old.attempt).state == State.FAILED


def test_recorded_stop_is_decided_again_after_a_correction(tmp_path):
    old = decided(tmp_path, make.TYPO)
    assert old.state == DecisionState.OBSERVED and job_of(old.attempt).is_final

    correct(old, "S3StorageError")
    decide_and_recover_once(clock.now())

    assert (old.state, newest().state) == (DecisionState.WITHDRAWN, DecisionState.OBSERVED)
    assert any("does not wait for recovery" in why for _, why in newest().limits)


def test_recorded_decision_of_a_resolved_incident_is_not_withdrawn(tmp_path):
    old = decided(tmp_path, make.TYPO)
    old.incident.state = "resolved"
    old.incident.save()

    correct(old, "S3StorageError")

    assert old.state == DecisionState.OBSERVED and decide_and_recover_once(clock.now()) == 0


def test_restarted_job_is_not_restarted_again_after_a_correction(tmp_path):
    mode("act")
    old = decided(tmp_path, make.STORAGE)
    decide_and_recover_once(clock.now())
    old.refresh_from_db()
    assert old.state == DecisionState.DONE

    correct(old, "NodeFailure")
    decide_and_recover_once(clock.now())

    assert Decision.objects.get().state == DecisionState.DONE
    assert Event.objects.filter(type="job.recovered").count() == 1


def test_drained_node_stays_drained_after_a_correction(tmp_path):
    old = decided(tmp_path, make.XID)
    decisions.approve(old, author=rows.author(), now=clock.now())
    claimed = steps.claim(Decision.objects.get(pk=old.pk), clock.now())
    steps.record_step(claimed, RecoveryStep.Kind.DRAINED, "named", Node.objects.get(name="seren-001"))

    correct(old, "S3StorageError")
    with pytest.raises(ClaimLost), transaction.atomic():
        steps.require_claim(claimed)  # the worker makes no further step
    decide_and_recover_once(clock.now())

    assert old.outcome.endswith("These steps were already carried out: drained seren-001.")
    assert (newest().action, newest().drain) == ("wait", [])
    assert RecoveryStep.objects.count() == 1


def test_node_test_of_a_withdrawn_decision_is_cancelled(tmp_path):
    mode("act")
    old = decided(tmp_path, "RuntimeError: NCCL communicator was aborted on rank 3: watchdog timeout\n")
    if not NodeTest.objects.exists():
        decide_and_recover_once(clock.now() + HOUR / 60)
    test = NodeTest.objects.get()

    correct(old, "S3StorageError")
    advance_pair_tests_once(test.cluster, FakeCluster(), clock.now())

    test.refresh_from_db()
    assert test.ended_at is not None


@pytest.mark.parametrize("answers", [[decisions.decline], [decisions.approve, steps.undo]])
def test_declined_decision_is_not_withdrawn(tmp_path, answers):
    old = decided(tmp_path, make.XID)
    for answer in answers:
        answer(old, author=rows.author(), now=clock.now())
    state = Decision.objects.get().state

    correct(old, "S3StorageError")
    decide_and_recover_once(clock.now())

    assert Decision.objects.get().state == state


def test_confirmation_withdraws_nothing_but_a_second_correction_does(tmp_path):
    old = decided(tmp_path, make.XID)
    correct(old, "GPUFallenOffBus")
    assert old.state == DecisionState.PROPOSED and decide_and_recover_once(clock.now()) == 0

    for cause in ("S3StorageError", "NodeFailure"):
        correct(newest(), cause)
        decide_and_recover_once(clock.now())
        decide_and_recover_once(clock.now())  # run twice, decided once

    states = Decision.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [DecisionState.WITHDRAWN, DecisionState.WITHDRAWN, DecisionState.PROPOSED]


def test_corrected_old_failure_is_decided_within_an_hour(tmp_path):
    old = decided(tmp_path, make.XID)
    Diagnosis.objects.update(failed_at=clock.now() - 5 * HOUR)

    correct(old, "S3StorageError")

    assert decide_and_recover_once(clock.now()) == 1
    assert newest().mode == "observe"  # what was right five hours ago never acts


def test_correction_by_page_and_by_api_withdraws_the_decision(tmp_path):
    first = decided(tmp_path, make.XID)
    rows.team("team-of-ada", ada="researcher")
    page = Client()
    page.force_login(first.attempt.job.user)
    page.post(f"/failures/diagnoses/{first.attempt.key}/", {"root_cause": "S3StorageError"})
    first.refresh_from_db()
    assert first.state == DecisionState.WITHDRAWN
    decide_and_recover_once(clock.now())

    caller = Caller(first.attempt.job.user)
    caller.patch(f"diagnoses/{first.attempt.key}/", {"root_cause": "NodeFailure"})

    assert Decision.objects.filter(state=DecisionState.WITHDRAWN).count() == 2
