"""The simulated weeks from which the demo makes its history."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import log
from random import Random

import pytest

from jobs.core.lifecycle import JobKind, State
from scheduling.simulation.drill.campaign_shards import answered_shards, scored_shards
from scheduling.simulation.drill.checkpoint_campaigns import samples_by_benchmark
from scheduling.simulation.drill.history import HistorySettings, SiteHistory, simulate_history
from scheduling.simulation.drill.history_figures import compare_failures, compare_jobs
from scheduling.simulation.drill.job_logs import run_of_job, step_of_program
from scheduling.simulation.machines.scripts.training_runs import shape_of_name
from scheduling.simulation.machines.workload import job_name

TEAMS = dict.fromkeys(JobKind, "other") | {JobKind.PRETRAIN: "pretraining", JobKind.EVALUATION: "evaluation"}
SETTINGS = HistorySettings(days=2, nodes=32, gpus_per_node=8, teams=TEAMS, quotas={"pretraining": 160})


@pytest.fixture(scope="module")
def history() -> SiteHistory:
    *_, result = simulate_history(SETTINGS)
    assert isinstance(result, SiteHistory)
    return result


def test_no_gpu_is_used_twice_at_the_same_time(history):
    changes = []
    for job in history.jobs:
        for life in job.lives:
            for node, gpus in life.places:
                changes.append((life.promised, 1, node, gpus))
                if life.ended is not None:
                    changes.append((life.ended, 0, node, gpus))
    held = Counter()
    for _, starts, node, gpus in sorted(changes):
        held[node] += gpus if starts else -gpus
        assert 0 <= held[node] <= SETTINGS.gpus_per_node


def test_kinds_have_the_shares_of_the_published_trace(history):
    kinds = Counter(job.kind for job in history.jobs)

    assert kinds[JobKind.EVALUATION] / len(history.jobs) == pytest.approx(0.649, abs=0.03)
    assert kinds[JobKind.SFT] / len(history.jobs) == pytest.approx(0.149, abs=0.03)


def test_every_failure_was_diagnosed_and_decided(history):
    failed = sum(life.cause not in ("", "cancelled") for job in history.jobs for life in job.lives)

    assert failed >= len(history.failures) - 5 > 100
    assert {str(incident.id) for incident in history.incidents} == {row.facts.incident for row in history.failures}
    assert all(row.decision.why for row in history.failures)


def test_attempts_of_a_job_do_not_overlap(history):
    for job in history.jobs:
        assert all(before.ended <= after.promised for before, after in pairwise(job.lives))


def test_same_seed_gives_the_same_history(history):
    *_, again = simulate_history(SETTINGS)

    assert [(job.name, [(life.promised, life.places) for life in job.lives]) for job in again.jobs] == [
        (job.name, [(life.promised, life.places) for life in job.lives]) for job in history.jobs
    ]


def test_jobs_agree_with_the_study_within_sampling_error(history):
    for row in compare_jobs(history, SETTINGS.most_gpus):
        assert row.deviation < 4, row


def test_most_failures_are_errors_of_scripts_as_in_the_study(history):
    shares = {row.subject: row.history for row in compare_failures(history)}

    assert shares["script"] == pytest.approx(73, abs=12)
    assert shares["script"] > shares["framework"] > 5
    assert shares["infrastructure"] > 3


def test_no_program_fails_to_import_after_hours(history):
    early = {"import_error", "syntax_error", "argument_error", "name_error", "model_loading_error"}

    for job in history.jobs:
        for life in job.lives:
            assert life.cause not in early or life.ended - life.promised < 3600


def test_training_runs_have_plausible_figures(history):
    runs = [run_of_job(job, history.plan) for job in history.jobs if job.kind is JobKind.PRETRAIN]

    for run in runs:
        assert 0.25 < run.mfu < 0.55
        assert 0.1e6 < run.batch_tokens < 4e6
        assert run.expected_loss(0) == pytest.approx(log(run.shape.vocabulary))
        assert run.last_step < 1000 or run.expected_loss(1) == pytest.approx(log(run.shape.vocabulary), rel=0.01)
        assert round(history.plan.checkpoint_s / run.step_s, 3) % 5 == 0


def test_pretraining_that_does_not_complete_was_planned_for_days(history):
    stopped = [job for job in history.jobs if job.kind is JobKind.PRETRAIN and job.planned_s != job.need_s]

    assert stopped
    assert all(job.planned_s >= 86_400 for job in stopped)


def test_campaigns_take_jobs_of_the_trace(history):
    trials = [trial.name for campaign in history.campaigns for trial in campaign.trials]

    assert trials
    assert len(trials) == len(set(trials))
    assert set(trials) <= {job.name for job in history.jobs if job.kind is JobKind.EVALUATION}


def test_log_of_a_run_reports_its_model_and_each_checkpoint(history):
    job = max(
        (job for job in history.jobs if job.kind is JobKind.PRETRAIN and job.saved), key=lambda job: len(job.saved)
    )
    run, life = run_of_job(job, history.plan), job.lives[-1]
    text = history.logs.end_log(job, life, life.ended or history.plan.end_s, State.COMPLETED)

    assert f"({job_name(job.kind, job.name)}): " in text.splitlines()[0]
    assert f"{run.shape.parameters / 1e9:.1f}B parameters" in text
    reported = {int(step) for step in re.findall(r"checkpoint saved at step (\d+)", text)}
    saved = {step_of_program(run, row.step) for row in job.saved if life.promised < row.at}
    assert len(saved - reported) <= 1 and len(text) < 100_000


def lost_shards(history, chance):
    """The shards of each campaign if so many of its trials had failed."""
    for campaign in history.campaigns:
        trials = [
            replace(trial, lives=[*trial.lives[:-1], replace(trial.lives[-1], cause="os_error")])
            if trial.lives and Random(trial.name).random() < chance
            else trial
            for trial in campaign.trials
        ]
        shape = shape_of_name(job_name(campaign.run.kind, campaign.run.name))
        yield answered_shards(replace(campaign, trials=trials), shape)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.7])
def test_each_sample_is_answered_once_even_if_trials_fail(history, chance):
    answered = [shards for shards in lost_shards(history, chance) if shards]

    assert answered
    for shards in answered:
        ranges = sorted((shard.range.dataset, shard.range.start, shard.range.samples) for shard in shards)
        ends = {}
        for dataset, start, samples in ranges:
            assert start == ends.get(dataset, 0) and samples > 0
            ends[dataset] = start + samples
        assert ends == samples_by_benchmark()
        assert all(shard.infer_s > 0 for shard in shards)


def test_scores_of_a_shard_come_from_a_later_job(history):
    for shards in filter(None, lost_shards(history, 0.3)):
        scored = scored_shards(shards, 1)
        assert len(scored) == len(shards)
        assert all(one.trial.lives[-1].ended < one.scoring.lives[-1].promised for one in scored)
        assert all(0 < one.scored_at_s < one.scoring.need_s for one in scored)
