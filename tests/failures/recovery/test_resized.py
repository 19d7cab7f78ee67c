"""Changed requests after an out of memory error: proposed, approved, automatic only with the label, undone."""

from __future__ import annotations

import pytest
from django.test import Client

from failures.loops.diagnose import diagnose_once
from failures.models import Decision
from failures.recovery import decisions, reads, steps
from jobs.actions import jobs as job_actions
from jobs.actions import recovery as recovery_actions
from jobs.core.lifecycle import State
from jobs.models import Event, Job, clock
from tests import make as rows
from tests.failures import make
from tests.failures.make import decide_and_recover_once

pytestmark = pytest.mark.django_db

NO_MEMORY = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of"
    " 79.1 GiB of which 1.10 GiB is free.\n"
)
COMMAND = "torchrun train.py --micro-batch-size 8 --global-batch-size 256"
SMALLER = COMMAND.replace("size 8", "size 4")


def decided(root, text=NO_MEMORY, *, how=None, **asked) -> Decision:
    usual = {"kind": "pretrain", "command": COMMAND, "checkpoint_dir": "/ckpt/run", "on": ("seren-001", "seren-002")}
    attempt = make.running(root, **(usual | asked))
    attempt.job.checkpoints.create(attempt=attempt, step=200, path="/ckpt/run/200")
    make.end(root, attempt, text, **(how or {}))
    diagnose_once(clock.now())
    decide_and_recover_once(clock.now())
    return Decision.objects.get(attempt=attempt)


def job_of(decision) -> Job:
    return Job.objects.get(pk=decision.attempt.job_id)


def acts() -> None:
    recovery_actions.set_recovery_mode("act", author=rows.LOOP)


def approved(decision) -> Job:
    decisions.approve(decision, author=rows.author(), now=clock.now())
    decide_and_recover_once(clock.now())
    return job_of(decision)


def test_smaller_batch_is_proposed_and_the_job_waits_for_approval(tmp_path):
    decision = decided(tmp_path)

    assert (decision.action, decision.state) == ("ask for more", "proposed")
    assert "--micro-batch-size 4 instead of --micro-batch-size 8, from step 200" in decisions.decision_summary(decision)
    job = job_of(decision)
    assert job.command == COMMAND and job.state == State.PENDING and job.recover_by == decision.expires_at


def test_approval_restarts_the_changed_job_from_its_newest_checkpoint(tmp_path):
    decision = decided(tmp_path)

    job = approved(decision)

    assert (job.command, job.state, job.hold) == (SMALLER, State.PENDING, "")
    assert job.resume == {"path": "/ckpt/run/200", "step": 200}
    assert Event.objects.get(type="job.recovered").detail["changed"] == ["command"]
    decision.refresh_from_db()
    assert decision.state == "done"


@pytest.mark.parametrize("model", ["", "a100", "h100|a100"], ids=["any", "one", "several"])
def test_more_memory_is_requested_after_a_host_out_of_memory(tmp_path, model):
    how = {"state": "OUT_OF_MEMORY", "reason": "OutOfMemory"}
    text = "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been OOM Killed.\n"

    job = approved(decided(tmp_path, text, how=how, memory_per_node="100G", gpu_model=model))

    assert job.memory_per_node_mb == 150 * 1024 and job.command == COMMAND


def test_data_loader_without_shared_memory_does_not_get_more_memory(tmp_path):
    text = (
        "RuntimeError: DataLoader worker (pid 5150) is killed by signal: Bus error. It is possible that dataloader's"
        " workers are out of shared memory. Please try to raise your shared memory limit.\n"
    )

    job = approved(decided(tmp_path, text, memory_per_node="100G", command="t.py --num-workers 8"))

    assert (job.command, job.memory_per_node_mb) == ("t.py --num-workers 4", 100 * 1024)


@pytest.mark.parametrize(("label", "state"), [({}, "proposed"), ({"acme-resize": "on"}, "done")])
def test_change_is_automatic_only_if_mode_and_label_allow_it(tmp_path, label, state):
    acts()

    decision = decided(tmp_path, labels=label)

    assert decision.state == state
    assert job_of(decision).command == (SMALLER if state == "done" else COMMAND)


def test_label_alone_does_not_make_a_change_automatic(tmp_path):
    assert decided(tmp_path, labels={"acme-resize": "on"}).state == "proposed"


def test_change_of_the_global_batch_always_needs_approval(tmp_path):
    acts()

    decision = decided(tmp_path, command="train.py --batch-size 8", labels={"acme-resize": "on"})

    assert decision.state == "proposed" and any("global batch" in why for _, why in decision.limits)


def test_job_ends_with_advice_if_no_change_is_known(tmp_path):
    acts()

    decision = decided(tmp_path, command="sh train.sh", labels={"acme-resize": "on"})

    assert (decision.state, decision.change) == ("observed", [])
    assert job_of(decision).state == State.FAILED


def test_undo_restores_the_previous_request(tmp_path):
    decision = decided(tmp_path)
    approved(decision)

    steps.undo(decision, author=rows.author(), now=clock.now())

    job = job_of(decision)
    assert job.command == COMMAND and job.hold


def test_undo_keeps_a_later_change_by_the_owner(tmp_path):
    decision = decided(tmp_path)
    approved(decision)
    Job.objects.update(command="mine.py")

    steps.undo(decision, author=rows.author(), now=clock.now())

    assert job_of(decision).command == "mine.py"
    assert "not restored" in decision.steps.last().text


def test_job_released_meanwhile_is_not_changed(tmp_path):
    decision = decided(tmp_path)
    job_actions.release(job_of(decision), author=rows.author())

    job = approved(decision)

    assert job.command == COMMAND
    decision.refresh_from_db()
    assert "no longer waits for recovery" in decision.outcome


def test_option_inside_a_variable_is_changed(tmp_path):
    environment = {"ARGS": "--lr 1 --micro-batch-size 8 --global-batch-size 64"}

    job = approved(decided(tmp_path, command="sh run.sh", environment=environment))

    assert job.environment["ARGS"] == "--lr 1 --micro-batch-size 4 --global-batch-size 64"


@pytest.mark.parametrize("by_now", ["mine.py", f"{COMMAND} && {COMMAND}"])
def test_change_that_cannot_be_applied_fails_and_releases_the_job(tmp_path, by_now):
    decision = decided(tmp_path)
    Job.objects.update(command=by_now)

    job = approved(decision)

    decision.refresh_from_db()
    assert decision.state == "failed" and "--micro-batch-size 8" in decision.outcome
    assert (job.command, job.state, job.recover_by, job.hold) == (by_now, State.FAILED, None, "")


def test_summary_without_a_checkpoint_names_the_change_and_the_reason(tmp_path):
    decision = decided(tmp_path)
    decision.checkpoint_step = None

    assert "instead of --micro-batch-size 8. The same batch needs" in decisions.decision_summary(decision)


def test_replay_shows_the_changed_request_of_the_current_rules(tmp_path):
    difference = next(one for one in reads.compare_with_replay(decided(tmp_path)) if one.field == "changed request")

    assert difference.is_same and difference.current == "command --micro-batch-size 4"


# --- pages and API


def client(name: str) -> Client:
    found = Client()
    found.force_login(rows.user(name))
    return found


def test_page_shows_the_changes_before_approval(tmp_path):
    decision = decided(tmp_path)

    page = client("ada").get(f"/failures/{decision.incident_id}/").content.decode()

    assert "<code>--micro-batch-size 8</code>" in page and "<code>--micro-batch-size 4</code>" in page
    assert "new-job" not in page  # it still waits for its yes


def test_api_shows_the_changes_and_approves(tmp_path):
    decision = decided(tmp_path)
    where = f"/api/v1/incidents/{decision.incident_id}/decisions/{decision.pk}/"

    shown = client("ada").get(where).json()

    assert [(one["before"], one["after"]) for one in shown["change"]] == [
        ("--micro-batch-size 8", "--micro-batch-size 4")
    ]


def test_ended_job_is_offered_as_a_new_job_with_the_changes(tmp_path):
    decision = decided(tmp_path, kind="debug", checkpoint_dir="", labels={})
    where = f"/failures/{decision.incident_id}/decisions/{decision.pk}/new-job/"

    page = client("ada").get(f"/failures/{decision.incident_id}/").content.decode()
    form = client("ada").get(where).content.decode()

    assert decision.state == "observed" and where in page
    assert SMALLER in form and "ACME_CHECKPOINT=/ckpt/run/200" in form


def test_user_of_another_team_gets_no_form(tmp_path):
    decision = decided(tmp_path, kind="debug", checkpoint_dir="")

    where = f"/failures/{decision.incident_id}/decisions/{decision.pk}/new-job/"

    assert client("mallory").get(where).status_code == 404
