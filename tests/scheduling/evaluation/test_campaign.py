"""The coordinator: eligible rows, the normal course, failures, and concurrent coordinators."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from acmeweb.common.errors import InvalidField, StateConflict
from jobs.core.lifecycle import NodeState, State
from jobs.models import ClusterMode, Event, Job, Node, clock
from scheduling.evaluation.actions import campaigns as campaign_actions
from scheduling.evaluation.loops.campaigns import coordinate_campaign_once, coordinate_campaigns_once
from scheduling.evaluation.loops.staging import advance_stagings_once
from scheduling.evaluation.reads import campaign_board as campaigns
from scheduling.evaluation.reads.campaigns import campaign_probability
from scheduling.models import Campaign, Evaluation, Shard, Staging, Trial
from tests import make
from tests.scheduling.evaluation.campaign_make import A, B, Played, campaign, suite, trials
from tests.statements import failing_statement

pytestmark = pytest.mark.django_db


@pytest.fixture
def played(tmp_path):
    return Played(tmp_path)


def states(of: Campaign) -> dict[str, str]:
    return dict(Evaluation.objects.filter(campaign=of).values_list("dataset__name", "state"))


# --- the happy path


def test_campaign_infers_on_gpus_scores_on_cpus_and_has_all_results(played):
    asked = campaign(played.cluster)

    played.run_all()

    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    found = Evaluation.objects.filter(campaign=asked).values_list("dataset__name", "scores")
    assert dict(found) == {"alpha": {"accuracy": 0.5}, "beta": {"accuracy": 0.5}}
    assert all(trial.job.gpus == 1 and trial.job.preemptible for trial in trials(asked, "infer"))
    assert all(trial.job.gpus == 0 for trial in trials(asked, "score"))


def test_every_sample_is_in_exactly_one_shard(played):
    asked = campaign(played.cluster, A, B)

    played.run_all()

    for row in Evaluation.objects.filter(campaign=asked).select_related("dataset"):
        edges = sorted((shard.start, shard.start + shard.samples) for shard in row.shards.all())
        assert edges[0][0] == 0
        assert edges[-1][1] == row.dataset.samples
        assert all(one[1] == other[0] for one, other in pairwise(edges))


def test_a_dataset_that_must_stay_whole_is_one_shard(played):
    asked = campaign(played.cluster)

    played.run_all()

    assert Shard.objects.filter(evaluation__campaign=asked, evaluation__dataset__name="beta").count() == 1


def test_shards_count_by_their_samples_in_the_result():
    from scheduling.evaluation.rules.job_output import merge_scores

    assert merge_scores([(300, {"accuracy": 0.5}), (100, {"accuracy": 0.9})]) == {"accuracy": pytest.approx(0.6)}


def test_inference_reports_the_result_without_a_metric_command(played):
    asked = campaign(played.cluster, of=suite(metric=""))

    played.run_all()

    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    assert not trials(asked, "score")


def test_campaign_has_a_plan_before_its_first_trial(played):
    asked = campaign(played.cluster)

    played.turn()

    asked.refresh_from_db()
    assert asked.plan["makespan_s"] >= asked.plan["lower_bound_s"] > 0
    assert asked.plan["gpu_hours"] > 0


def test_deadline_selects_the_fewest_nodes_that_meet_it(played):
    of = suite(datasets=[{"name": f"d{n}", "samples": 1000, "infer_s": 3600} for n in range(16)])
    hurried = campaign(played.cluster, of=of, nodes=None, deadline_at="2099-01-01T00:00:00Z")

    played.turn()

    hurried.refresh_from_db()
    assert hurried.nodes == 1
    assert hurried.plan["meets_deadline"] is True
    assert campaign_probability(hurried, 0.0, clock.now()) > 0.99


def test_earlier_campaigns_decide_how_likely_a_deadline_is(played):
    of = suite(datasets=[{"name": "d", "samples": 1000, "infer_s": 3600}])
    late = campaign(played.cluster, of=of)
    played.turn()
    now = clock.now()
    planned_s = Campaign.objects.get(pk=late.pk).plan["makespan_s"]
    Campaign.objects.filter(pk=late.pk).update(deadline_at=now + timedelta(seconds=1.5 * planned_s))
    late.refresh_from_db()
    before = campaign_probability(late, 0.0, now)

    for _ in range(30):
        slow = campaign(played.cluster, of=of, rerun=True)
        times = {"created_at": now - timedelta(seconds=3 * planned_s), "ended_at": now}
        Campaign.objects.filter(pk=slow.pk).update(state="COMPLETED", plan={"makespan_s": planned_s}, **times)

    assert before > 0.8
    assert campaign_probability(late, 0.0, now) < 0.3 < campaign_probability(late, 70.0, now)
    late.deadline_at = None
    assert campaign_probability(late, 0.0, now) is None


# --- staging


@pytest.fixture
def staged():
    return suite(stage_root="/dev/shm/models")


def test_a_model_is_copied_once_to_a_node_before_any_trial_runs_there(played, staged):
    asked = campaign(played.cluster, of=staged)

    played.turn()
    played.turn()

    (copy,) = played.waiting()
    assert copy.gpus == 0
    assert copy.required_node
    assert not trials(asked, "infer")
    played.run(copy)
    played.turn()
    on = {trial.job.required_node for trial in trials(asked, "infer")}
    assert on == {copy.required_node}
    told = played.told(trials(asked, "infer")[0].job)
    assert told["model"] == Staging.objects.get().path


def test_campaigns_of_a_team_share_a_copy_and_the_last_removes_it(played, staged):
    first, second = campaign(played.cluster, of=staged), campaign(played.cluster, of=staged, rerun=True)

    played.run_all()

    assert set(Campaign.objects.values_list("state", flat=True)) == {"COMPLETED"}
    copies = Staging.objects.filter(checkpoint=A)
    assert {copy.state for copy in copies} == {"REMOVED"}
    assert copies.values("node").distinct().count() == copies.count() == 1
    assert first.pk != second.pk


def test_copy_whose_log_is_still_being_copied_waits_without_a_log_line(played, staged, caplog):
    campaign(played.cluster, of=staged)
    played.turn()
    (copy,) = played.waiting()
    played.run(copy)
    copy.attempts.update(log_pending=True)

    played.turn()
    waiting = Staging.objects.get().state
    copy.attempts.update(log_pending=False)
    played.turn()

    assert (waiting, Staging.objects.get().state) == ("COPYING", "READY")
    assert caplog.records == []


def test_another_team_gets_a_copy_of_its_own(played, staged):
    other = suite("core", team=make.team("alignment", ada="researcher"), stage_root="/dev/shm/models")
    campaign(played.cluster, of=staged)
    campaign(played.cluster, of=other)

    played.turn()

    assert Staging.objects.count() == 2
    assert len(set(Staging.objects.values_list("path", flat=True))) == 2


def test_evaluations_fail_with_the_copys_error_if_all_copies_fail(played, staged):
    asked = campaign(played.cluster, of=staged)

    for _ in range(6):
        played.turn()
        for job in played.waiting():
            played.start(job)
            played.says(job, failed="there is no /checkpoints/run/step-1000")
            played.end(job, State.FAILED, code=1)

    asked.refresh_from_db()
    assert asked.state == "FAILED"
    whys = set(Evaluation.objects.filter(campaign=asked).values_list("why", flat=True))
    assert whys == {"The checkpoint could not be copied to a node: there is no /checkpoints/run/step-1000"}
    assert not trials(asked, "infer")


def test_missing_copy_is_made_again_and_no_shard_fails(played, staged):
    asked = campaign(played.cluster, of=staged)
    played.turn()
    played.run(*played.waiting())
    played.turn()
    path = Staging.objects.get().path
    for job in played.waiting():
        played.start(job)
        played.says(job, failed=f"there is no {path}")
        played.end(job, State.FAILED, code=1)

    played.run_all()

    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    assert set(Shard.objects.values_list("tries", flat=True)) == {0}
    assert Staging.objects.count() == 2


# --- what goes wrong


def test_a_shard_whose_command_fails_is_tried_three_times_and_alone(played):
    asked = campaign(played.cluster)
    for _ in range(12):
        played.turn()
        for job in played.waiting():
            _run_but(played, job, "alpha")

    asked.refresh_from_db()
    assert states(asked) == {"alpha": "FAILED", "beta": "COMPLETED"}
    assert asked.state == "FAILED"
    assert asked.why == "1 evaluation failed; the others have results."
    failed = Shard.objects.filter(state="FAILED")
    assert {shard.tries for shard in failed} == {3}
    assert Evaluation.objects.get(campaign=asked, dataset__name="alpha").why == "The command ended with exit code 2."


def _run_but(played: Played, job: Job, dataset: str) -> None:
    played.start(job)
    failed = False
    for part in played.told(job)["parts"]:
        code = 2 if part["dataset"] == dataset else 0
        failed |= bool(code)
        scores = {"accuracy": 0.5} if part["scores"] else None
        played.says(job, part=part["id"], code=code, took=2.0, scores=scores)
    played.end(job, State.FAILED if failed else State.COMPLETED, code=int(failed))


def test_retry_repeats_failed_evaluations_only(played):
    asked = campaign(played.cluster)
    for _ in range(12):
        played.turn()
        for job in played.waiting():
            _run_but(played, job, "alpha")
    asked.refresh_from_db()
    before = Job.objects.count()

    campaign_actions.retry(asked, author=make.author(), now=clock.now())
    played.run_all()

    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    parts = [part["dataset"] for job in Job.objects.order_by("id")[before:] for part in played.told(job)["parts"]]
    assert set(parts) == {"alpha"}


def test_a_metric_that_fails_is_tried_again_without_another_inference(played):
    asked = campaign(played.cluster)
    played.turn()
    for job in played.waiting():
        played.run(job)
    inferences = len(trials(asked, "infer"))
    played.turn()
    for job in played.waiting():
        _run_but(played, job, "alpha")

    played.run_all()

    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    assert len(trials(asked, "infer")) == inferences


@pytest.mark.parametrize("end", [State.NODE_FAIL, State.PREEMPTED, State.CANCELLED])
def test_results_of_an_interrupted_trial_count_and_the_other_shards_are_reassigned(played, end):
    asked = campaign(played.cluster, of=suite(datasets=[{"name": n, "samples": 10, "infer_s": 4} for n in "abcdefgh"]))
    played.turn()
    job = max(played.waiting(), key=lambda job: len(played.told(job)["parts"]))
    played.start(job)
    first, *rest = played.told(job)["parts"]
    played.says(job, part=first["id"], code=0, took=2.0)
    played.end(job, end)

    played.turn()

    assert Shard.objects.get(pk=first["id"]).state in ("INFERRED", "SCORING")
    assert not Shard.objects.filter(pk__in=[part["id"] for part in rest], trial=Trial.objects.get(job=job)).exists()
    played.run_all()
    asked.refresh_from_db()
    assert asked.state == "COMPLETED"
    assert set(Shard.objects.values_list("tries", flat=True)) == {0}


def test_trial_that_hits_its_time_limit_gets_four_times_as_long(played):
    campaign(played.cluster, of=suite(datasets=[{"name": "slow", "samples": 10, "parts": 1, "infer_s": 60}]))
    played.turn()
    (job,) = played.waiting()
    played.start(job)
    played.end(job, State.TIMEOUT)

    played.turn()

    (again,) = played.waiting()
    assert again.time_limit == 4 * job.time_limit


def test_estimate_that_is_20_times_too_low_is_corrected_by_measurements(played):
    asked = campaign(played.cluster, of=suite(datasets=[{"name": n, "samples": 1000, "infer_s": 4000} for n in "abcd"]))
    played.turn()
    first = trials(asked, "infer")
    for trial in first:
        played.start(trial.job)
        for part in played.told(trial.job)["parts"]:
            took = 20 * 4.0 * part["samples"]
            played.says(trial.job, part=part["id"], code=0, took=took)
        played.end(trial.job)

    played.turn()

    later = [trial for trial in trials(asked, "infer") if trial.pk not in {one.pk for one in first}]
    rates = [
        part["expected_s"] / part["samples"]
        for trial in later
        for part in played.told(trial.job)["parts"]
        if "expected_s" in part
    ]
    assert later
    assert all(rate == pytest.approx(80.0) for rate in rates)


def test_unmeasured_dataset_is_probed_before_it_gets_all_gpus(played):
    asked = campaign(played.cluster, of=suite(datasets=[{"name": "a", "samples": 1000, "infer_s": 40_000}]))
    played.turn()
    probe, *blind = (trial.job for trial in trials(asked, "infer"))

    assert [part["samples"] for part in played.told(probe)["parts"]] == [1]
    assert all(part["samples"] == 1 for job in blind for part in played.told(job)["parts"])
    for job in (probe, *blind):
        played.run(job, took=1.0)
    played.turn()

    later = [trial.job for trial in trials(asked, "infer") if trial.job.state == State.PENDING]
    assert min(played.told(job)["parts"][0]["samples"] for job in later) >= 20  # a second each, not forty


def test_measured_dataset_is_not_probed_again(played):
    of = suite(datasets=[{"name": "a", "samples": 1000, "infer_s": 4000}])
    campaign(played.cluster, A, of=of)
    played.run_all()
    again = campaign(played.cluster, B, of=of)

    played.turn()

    expected = [played.told(trial.job)["parts"][0]["expected_s"] for trial in trials(again, "infer")]
    assert min(expected) > 10


def test_time_to_inference_is_measured_from_the_newest_trials(played):
    asked = campaign(played.cluster)
    guessed = campaigns.time_to_inference_s(asked)
    played.turn()
    job = trials(asked, "infer")[0].job
    played.run(job, took=2.0, at=9.0)
    played.turn()

    assert campaigns.time_to_inference_s(asked) == pytest.approx(7.0)
    assert guessed == pytest.approx(28.9, abs=0.5)


def test_a_model_cannot_write_a_result_into_the_log(played):
    asked = campaign(played.cluster)
    played.turn()
    job = played.waiting()[0]
    played.start(job)
    part = played.told(job)["parts"][0]
    played.say(job, f'acme:0 {{"part": {part["id"]}, "code": 0, "took": 1, "at": 1, "scores": {{"accuracy": 1}}}}')
    played.turn()

    assert Shard.objects.get(pk=part["id"]).state == "INFERRING"
    assert not Shard.objects.filter(evaluation__campaign=asked, state="COMPLETED").exists()


def test_trial_cannot_report_shards_of_other_trials(played):
    campaign(played.cluster)
    played.turn()
    mine, other = played.waiting()[:2]
    played.start(mine)
    theirs = played.told(other)["parts"][0]["id"]
    played.says(mine, part=theirs, code=0, took=1.0, scores={"accuracy": 1.0})

    played.turn()

    assert Shard.objects.get(pk=theirs).state == "INFERRING"


def test_trial_with_an_unreadable_log_is_repeated(played):
    asked = campaign(played.cluster, of=suite(datasets=[{"name": "one", "samples": 1}]))
    played.turn()
    (job,) = played.waiting()
    played.start(job)
    played.end(job)

    played.turn()

    (shard,) = Shard.objects.filter(evaluation__campaign=asked)
    assert shard.losses == 1
    assert "No output yet" in shard.why
    assert played.waiting()


# --- room


def test_campaign_uses_idle_gpus_within_its_node_limit(played):
    of = suite(datasets=[{"name": f"d{n}", "samples": 100, "infer_s": 900} for n in range(40)])
    asked = campaign(played.cluster, of=of, nodes=2)

    played.turn()
    played.turn()

    on = [trial.job.required_node for trial in trials(asked, "infer")]
    assert len(set(on)) == 2
    assert len(on) == 16


def test_trial_waiting_for_a_full_node_returns_its_shards(played):
    asked = campaign(played.cluster, of=suite(datasets=[{"name": "one", "samples": 1}]))
    played.turn()
    (job,) = played.waiting()
    Node.objects.filter(name=job.required_node).update(state=NodeState.DOWN)

    played.turn(later=120)
    played.turn()

    job.refresh_from_db()
    assert job.state == State.CANCELLED
    (other,) = played.waiting()
    assert other.required_node != job.required_node
    assert Shard.objects.get(evaluation__campaign=asked).losses == 0


def test_closed_and_full_nodes_get_no_trials(played):
    of = suite(datasets=[{"name": f"d{n}", "samples": 100, "infer_s": 900} for n in range(40)])
    Node.objects.filter(name="seren-001").update(state=NodeState.DOWN)
    make.running(make.job(nodes=1, gpus_per_node=8, by="ada"), on=("seren-002",))
    asked = campaign(played.cluster, of=of, nodes=4)

    played.turn()

    assert {trial.job.required_node for trial in trials(asked, "infer")} == {"seren-003", "seren-004"}


def test_trials_start_on_their_planned_node_only(played):
    from scheduling.engine.policies import LIVE_POLICIES
    from scheduling.queries import snapshot

    campaign(played.cluster, of=suite(datasets=[{"name": "one", "samples": 1}]))
    played.turn()
    (job,) = played.waiting()
    Job.objects.filter(pk=job.pk).update(required_node="seren-003")

    decided = LIVE_POLICIES["acme"](snapshot.take_snapshot(played.cluster, played.now))

    third = Node.objects.get(name="seren-003")
    assert [set(start.places) for start in decided.starts] == [{third.pk}]


# --- actions of users


def test_repeated_campaign_reuses_existing_results(played):
    of = suite()
    campaign(played.cluster, A, of=of)
    played.run_all()
    before = Job.objects.count()

    again = campaign(played.cluster, A, of=of)
    played.run_all()

    again.refresh_from_db()
    assert again.state == "COMPLETED"
    assert Job.objects.count() == before
    assert Evaluation.objects.filter(campaign=again, reused__isnull=False).count() == 2


def test_new_suite_version_is_evaluated_again(played):
    campaign(played.cluster, A, of=suite())
    played.run_all()

    newer = suite(metric="python score.py --strict")
    again = campaign(played.cluster, A, of=newer)

    assert newer.version == 2
    assert not Evaluation.objects.filter(campaign=again, reused__isnull=False).exists()


def test_identical_suite_keeps_its_version():
    assert suite().pk == suite().pk


def test_a_cancelled_campaign_withdraws_its_jobs_and_keeps_its_results(played):
    asked = campaign(played.cluster)
    played.turn()
    runs = played.waiting()[0]
    played.start(runs)
    campaign_actions.cancel(Campaign.objects.get(pk=asked.pk), author=make.author(), now=clock.now())

    played.turn()
    played.turn()

    runs.refresh_from_db()
    assert not played.waiting()
    assert runs.attempts.get().stop_state == State.CANCELLED
    assert set(states(asked).values()) == {"CANCELLED"}


def test_each_state_change_of_a_campaign_is_an_event(played):
    asked = campaign(played.cluster)

    played.run_all()

    rows = Event.objects.filter(detail__campaign=asked.public_id).order_by("id")
    assert list(rows.values_list("type", "to_state")) == [
        ("campaign.created", "PENDING"),
        ("campaign.state_changed", "RUNNING"),
        ("campaign.state_changed", "COMPLETED"),
    ]


# --- two at once; being killed anywhere is in test_campaign_killed


def test_only_one_of_two_concurrent_coordinators_changes_anything(played):
    campaign(played.cluster)
    slow, fast = (Campaign.objects.select_related("cluster", "team", "suite").get() for _ in "ab")
    coordinate_campaign_once(fast, played.now)
    before = Job.objects.count()

    with pytest.raises(StateConflict):
        coordinate_campaign_once(slow, played.now)

    assert Job.objects.count() == before


@pytest.mark.parametrize("error", [StateConflict("a bad day"), InvalidField("cluster", "is not it"), KeyError("ours")])
def test_error_in_one_campaign_does_not_stop_the_others(played, error):
    bad, good = campaign(played.cluster, A), campaign(played.cluster, B)
    Campaign.objects.filter(pk=bad.pk).update(state="PENDING", deadline_at=None)
    Shard.objects.all().delete()

    with failing_statement('"scheduling_evaluation"."campaign_id" = %s', bad.pk, error=error):
        coordinate_campaigns_once(clock.now())

    good.refresh_from_db()
    assert good.state == "RUNNING"


def test_copy_is_removed_once(played, staged):
    campaign(played.cluster, of=staged)
    played.run_all()

    assert advance_stagings_once(clock.now()) == 0
    assert Staging.objects.get().state == "REMOVED"


def test_campaign_waits_while_its_cluster_is_observed_and_continues_later(played, staged):
    asked = campaign(played.cluster, of=staged)
    elsewhere = make.cluster("kalos", log_root=str(played.log_root))
    other = campaign(elsewhere, B, of=staged)
    observed(played.cluster, ClusterMode.OBSERVE)
    for _ in range(2):
        played.turn()

    assert [one.state for one in fresh(asked, other)] == ["PENDING", "RUNNING"]
    assert "seren is in mode observe" in fresh(asked)[0].why and fresh(other)[0].why == ""
    assert played.waiting() == []

    observed(played.cluster, ClusterMode.DRIVE)
    Campaign.objects.filter(pk=other.pk).delete()
    played.run_all()
    assert [(one.state, one.why) for one in fresh(asked)] == [("COMPLETED", "")]


def test_running_trials_count_while_their_cluster_is_observed(played):
    asked = campaign(played.cluster)
    played.turn()
    (job, *_) = played.waiting()
    observed(played.cluster, ClusterMode.OBSERVE)
    played.run(job)
    before = Job.objects.count()
    played.turn()
    played.turn()

    assert Shard.objects.exclude(infer_s=None).exists() and Job.objects.count() == before
    assert fresh(asked)[0].state == "RUNNING" and "in mode observe" in fresh(asked)[0].why


def test_copy_stays_on_an_observed_cluster_and_is_removed_later(played, staged):
    asked = campaign(played.cluster, of=staged)
    played.turn()
    played.run(played.waiting()[0])
    played.turn()
    campaign_actions.cancel(asked, author=make.author(), now=clock.now())
    observed(played.cluster, ClusterMode.OBSERVE)
    played.turn()
    played.turn()
    assert [row.state for row in Staging.objects.all()] == ["READY"]

    observed(played.cluster, ClusterMode.DRIVE)
    played.run_all()
    assert [row.state for row in Staging.objects.all()] == ["REMOVED"]


def observed(cluster, mode: str) -> None:
    type(cluster).objects.filter(pk=cluster.pk).update(mode=mode)


def fresh(*campaigns: Campaign) -> list[Campaign]:
    return [Campaign.objects.get(pk=one.pk) for one in campaigns]
