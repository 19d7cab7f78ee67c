"""Makes the rows of evaluation campaigns from a simulated history, as the coordinator writes them."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from jobs.actions.journal import Author
from jobs.core.public_id import public_id
from jobs.models import Job
from scheduling.evaluation.actions.campaigns import COORDINATOR
from scheduling.evaluation.rules import job_output, orders
from scheduling.evaluation.rules.checkpoint_paths import default_campaign_name
from scheduling.evaluation.rules.orders import TrialPart
from scheduling.models import (
    Campaign,
    CampaignState,
    Evaluation,
    Shard,
    ShardState,
    Suite,
    SuiteDataset,
    Trial,
    TrialKind,
)
from scheduling.simulation.demo.history.values import DemoUser, EventValues, HistoryPlace, HistoryRows, new_event
from scheduling.simulation.drill.campaign_shards import AnsweredShard, answered_shards, scored_shards
from scheduling.simulation.drill.checkpoint_campaigns import (
    READY_S,
    CheckpointCampaign,
    benchmark_cost_s,
    checkpoint_gb,
)
from scheduling.simulation.drill.history import SiteHistory
from scheduling.simulation.drill.job_logs import run_of_job, step_of_program
from scheduling.simulation.drill.jobs import DrillJob
from scheduling.simulation.machines.scripts.benchmark_scores import draw_score
from scheduling.simulation.machines.scripts.training_runs import shape_of_name
from scheduling.simulation.machines.workload import job_name

FIRST_ID_NUMBER = 12_000  # in public ids; those of jobs of the same millisecond are lower
TURN_S = 2.0  # between two turns of the coordinator
OVERVIEW_DELAY_S = 600.0  # after the last campaign of a run
MIN_OVERVIEW_CHECKPOINTS = 2


@dataclass(kw_only=True)
class CampaignOutcome:
    """A campaign of the simulation that evaluated its checkpoint."""

    source: CheckpointCampaign
    suite: Suite
    public_id: str
    user: DemoUser
    shards: list[AnsweredShard]
    checkpoint: str = ""  # known when the row of the run exists
    row: Campaign | None = None
    evaluations: dict[str, Evaluation] = field(default_factory=dict)

    @property
    def ends(self) -> float:
        return TURN_S + max(shard.scoring.lives[-1].ended or 0.0 for shard in self.shards if shard.scoring)

    @property
    def gb(self) -> float:
        return round(checkpoint_gb(shape_of_name(self.run_name)), 1)

    @property
    def run_name(self) -> str:
        return job_name(self.source.run.kind, self.source.run.name)

    @cached_property
    def jobs(self) -> dict[str, DrillJob]:
        """The jobs of its trials by name: those that answered or failed, and those that scored."""
        scorings = (shard.scoring for shard in self.shards if shard.scoring)
        return {job.name: job for job in [*(one for one in self.source.trials if one.lives), *scorings]}


class CampaignBuilder:
    """Knows which jobs are trials before their rows exist, and makes the rows of campaigns afterwards."""

    def __init__(self, history: SiteHistory, place: HistoryPlace, suites: Mapping[int, Suite]) -> None:
        self._history, self._place = history, place
        self._datasets = {suite.pk: {row.name: row for row in suite.datasets.all()} for suite in suites.values()}
        self.logs: dict[str, str] = {}  # of trials that completed, by the name of their job in the simulation
        self.outcomes = list(self._outcomes(suites))
        self._by_job = {name: outcome for outcome in self.outcomes for name in outcome.jobs}

    def _outcomes(self, suites: Mapping[int, Suite]) -> Iterator[CampaignOutcome]:
        next_number = max((life.number for job in self._history.jobs for life in job.lives), default=0) + 1
        for number, source in enumerate(self._history.campaigns):
            name = job_name(source.run.kind, source.run.name)
            answers = answered_shards(source, shape_of_name(name)) if source.ends is not None else []
            if not answers:
                continue
            shards = scored_shards(answers, next_number)
            next_number += len({shard.scoring.name for shard in shards if shard.scoring})
            users = self._place.users[source.trials[0].kind]
            yield CampaignOutcome(
                source=source, suite=suites[source.gpus], user=users[number % len(users)], shards=shards,
                public_id=public_id(self._place.at(source.begins), FIRST_ID_NUMBER + number),
            )  # fmt: skip

    @property
    def scoring_jobs(self) -> list[DrillJob]:
        return list({
            shard.scoring.name: shard.scoring
            for outcome in self.outcomes for shard in outcome.shards if shard.scoring
        }.values())  # fmt: skip

    def user_of_trial(self, work: DrillJob) -> DemoUser | None:
        """The user of the campaign to which the job belongs; None for other jobs."""
        outcome = self._by_job.get(work.name)
        return outcome.user if outcome else None

    def complete_job(self, work: DrillJob, job: Job) -> None:
        """Change the row of a trial's job to the request of the coordinator."""
        outcome = self._by_job.get(work.name)
        if outcome is None:
            return
        scores = work.gpus == 0
        job.name = f"{'score' if scores else 'eval'}-{outcome.public_id}"
        job.command, job.workdir = orders.script(), f"/home/{outcome.user.name}"
        job.labels = {"campaign": outcome.public_id}
        job.preemptible, job.requeue_limit = True, 0
        suite = outcome.suite
        job.cpus_per_node, job.memory_per_node_mb = (1, 0) if scores else (suite.cpus, suite.memory_mb)
        job.required_node = "" if scores else self._place.nodes[work.lives[-1].nodes[0]].name
        job.time_limit = orders.trial_time_limit([])

    def add_rows(self, rows: HistoryRows, jobs: Mapping[str, Job]) -> None:
        """Add the rows of all campaigns in the order of time, because campaigns are listed by their keys."""
        steps = [(one.source.begins, partial(self._add_outcome, one, rows, jobs)) for one in self.outcomes]
        by_run = groupby(sorted(self.outcomes, key=_run_and_suite), key=_run_and_suite)
        for _, group in by_run:
            outcomes = sorted(group, key=lambda one: one.source.step)
            begins = max(one.ends for one in outcomes) + OVERVIEW_DELAY_S
            if len(outcomes) >= MIN_OVERVIEW_CHECKPOINTS and begins < self._history.plan.end_s:
                steps.append((begins, partial(self._add_overview, outcomes, rows, begins)))
        for _, add in sorted(steps, key=itemgetter(0)):
            add()

    def _add_outcome(self, outcome: CampaignOutcome, rows: HistoryRows, jobs: Mapping[str, Job]) -> None:
        self._set_checkpoint(outcome, jobs[outcome.source.run.name])
        self._add_campaign(outcome, rows)
        trials = {name: self._trial(rows, outcome, work, jobs[name]) for name, work in outcome.jobs.items()}
        self._add_evaluations(outcome, rows)
        self._add_shards(outcome, rows, trials)
        self._add_instructions(outcome, rows, trials)

    def _set_checkpoint(self, outcome: CampaignOutcome, run_row: Job) -> None:
        run = run_of_job(outcome.source.run, self._history.plan)
        assert run is not None  # only pretraining runs are evaluated
        outcome.checkpoint = f"{run_row.checkpoint_dir}/step-{step_of_program(run, outcome.source.step)}"

    def _add_campaign(self, outcome: CampaignOutcome, rows: HistoryRows) -> None:
        begins, ends = outcome.source.begins, outcome.ends
        outcome.row = self._campaign(rows, outcome, [outcome.checkpoint], outcome.public_id, begins, ends)

    def _campaign(
        self, rows: HistoryRows, outcome: CampaignOutcome, checkpoints: list[str], name: str, begins: float, ends: float
    ) -> Campaign:
        place, author = self._place, Author(by=outcome.user.name, user_id=outcome.user.id)
        row = Campaign(
            pk=len(rows.campaigns) + 1, public_id=name, cluster=place.cluster, team_id=outcome.user.team_id,
            user_id=outcome.user.id, suite=outcome.suite, checkpoints=checkpoints, checkpoint_gb=outcome.gb,
            name=default_campaign_name(checkpoints, str(outcome.suite)), state=CampaignState.COMPLETED,
            created_at=place.at(begins), started_at=place.at(begins + TURN_S),
            ended_at=place.at(ends), turn=4 + len(outcome.shards),
        )  # fmt: skip
        rows.campaigns.append(row)
        coordinator = Author(by=COORDINATOR, user_id=outcome.user.id)
        rows.events += [
            self._event("campaign.created", author, row, begins, "", CampaignState.PENDING),
            self._event("campaign.state_changed", coordinator, row, begins + TURN_S, "PENDING", CampaignState.RUNNING),
            self._event("campaign.state_changed", coordinator, row, ends, "RUNNING", CampaignState.COMPLETED),
        ]
        return row

    def _event(self, what: str, author: Author, row: Campaign, at: float, before: str, after: str) -> EventValues:
        detail = {"campaign": row.public_id, "suite": str(row.suite), "checkpoints": len(row.checkpoints)}
        return new_event(
            what, author, self._place.at(at), row.cluster_id, from_state=before, to_state=after,
            detail=json.dumps(detail),
        )  # fmt: skip

    def _trial(self, rows: HistoryRows, outcome: CampaignOutcome, work: DrillJob, job: Job) -> Trial:
        ended_at = (job.ended_at or self._place.at(outcome.ends)) + timedelta(seconds=TURN_S / 2)
        kind = TrialKind.INFER if work.gpus else TrialKind.SCORE
        nonce = hashlib.sha256(f"nonce:{job.public_id}".encode()).hexdigest()[:24]
        row = Trial(
            pk=len(rows.trials) + 1, campaign=outcome.row, job=job, kind=kind, checkpoint=outcome.checkpoint,
            nonce=nonce, log_read_at=ended_at, ended_at=ended_at, why=f"The job ended with state {job.state}.",
        )  # fmt: skip
        rows.trials.append(row)
        return row

    def _add_evaluations(self, outcome: CampaignOutcome, rows: HistoryRows) -> None:
        for dataset in self._datasets[outcome.suite.pk].values():
            done_at = max(
                self._scored_at(shard) for shard in outcome.shards if shard.range.dataset == dataset.name
            )  # fmt: skip
            outcome.evaluations[dataset.name] = self._evaluation(
                rows, outcome.row, dataset, outcome.checkpoint, ended_at=done_at
            )

    def _evaluation(
        self, rows: HistoryRows, campaign: Campaign | None, dataset: SuiteDataset, checkpoint: str, **values: Any
    ) -> Evaluation:
        row = Evaluation(
            pk=len(rows.evaluations) + 1, campaign=campaign, checkpoint=checkpoint, dataset=dataset,
            state=CampaignState.COMPLETED, given=dataset.samples, **values,
        )  # fmt: skip
        rows.evaluations.append(row)
        return row

    def _scored_at(self, shard: AnsweredShard) -> datetime:
        assert shard.scoring is not None
        life = shard.scoring.lives[-1]
        return self._place.at((life.first_step or life.promised) + shard.scored_at_s)

    def _add_shards(self, outcome: CampaignOutcome, rows: HistoryRows, trials: Mapping[str, Trial]) -> None:
        scores: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
        for shard in outcome.shards:
            part = shard.range
            assert shard.scoring is not None
            score = {"accuracy": draw_score(outcome.checkpoint, part.dataset, part.start, part.samples)}
            scores[part.dataset].append((part.samples, score))
            rows.shards.append(
                Shard(
                    pk=len(rows.shards) + 1, evaluation=outcome.evaluations[part.dataset], start=part.start,
                    samples=part.samples, state=ShardState.COMPLETED, inferred_by=trials[shard.trial.name],
                    scored_by=trials[shard.scoring.name], losses=part.losses, infer_s=round(shard.infer_s, 3),
                    inferred_at_s=round(shard.inferred_at_s, 3), score_s=round(shard.score_s, 3),
                    scored_at_s=round(shard.scored_at_s, 3), scores=score,
                )
            )  # fmt: skip
        for name, parts in scores.items():
            outcome.evaluations[name].scores = job_output.merge_scores(parts)

    def _add_instructions(self, outcome: CampaignOutcome, rows: HistoryRows, trials: Mapping[str, Trial]) -> None:
        """Write what each trial was asked to do into the environment of its job."""
        ours = rows.shards[-len(outcome.shards) :]
        for name, trial in trials.items():
            scores = trial.kind == TrialKind.SCORE
            mine = [row for row in ours if trial in (row.scored_by if scores else row.inferred_by,)]
            parts = [self._part(outcome, row, scores=scores) for row in mine]
            model = "" if scores else orders.copy_path(outcome.suite.stage_root, "evaluation", outcome.checkpoint)
            instructions = orders.trial_instructions(
                parts, checkpoint=outcome.checkpoint, serve="", nonce=trial.nonce, model=model
            )
            trial.job.environment = {orders.INSTRUCTIONS_VARIABLE: instructions}
            trial.job.time_limit = orders.trial_time_limit(parts)
            trial.expected_s = sum(part.expected_s for part in parts)
            self.logs[name] = _trial_log(trial, outcome.jobs[name].lives[-1].number, mine, scores=scores)

    def _part(self, outcome: CampaignOutcome, row: Shard, *, scores: bool) -> TrialPart:
        dataset = row.evaluation.dataset
        shape = shape_of_name(outcome.run_name)
        expected_s = row.score_s if scores else benchmark_cost_s(dataset.name, row.samples, shape, outcome.source.gpus)
        return TrialPart(
            shard=row.pk, dataset=dataset.name, start=row.start, samples=row.samples, scores=scores,
            whole=row.samples == dataset.samples, command=outcome.suite.metric if scores else outcome.suite.infer,
            output=f"{outcome.suite.output_root}/{outcome.public_id}/{row.evaluation_id}/{row.start}",
            expected_s=expected_s or 0.0,
        )  # fmt: skip

    def _add_overview(self, outcomes: Sequence[CampaignOutcome], rows: HistoryRows, begins: float) -> None:
        """Add the campaign with which a user compares all checkpoints of a run. It reuses all results."""
        last = max(outcomes, key=lambda one: one.ends)
        name = public_id(self._place.at(begins), FIRST_ID_NUMBER + len(rows.campaigns))
        checkpoints = [one.checkpoint for one in outcomes]
        campaign = self._campaign(rows, last, checkpoints, name, begins, begins + 2 * TURN_S)
        for outcome in outcomes:
            for earlier in outcome.evaluations.values():
                self._evaluation(
                    rows, campaign, earlier.dataset, outcome.checkpoint, scores=earlier.scores, reused=earlier,
                    why="Reused from an earlier campaign.", ended_at=campaign.created_at,
                )  # fmt: skip


def _trial_log(trial: Trial, number: int, shards: Sequence[Shard], *, scores: bool) -> str:
    """What the program of a trial (`scheduling/evaluation/program.py`) prints."""
    reports: list[dict[str, Any]] = [{"ready": True, "at": READY_S}] if shards and not scores else []
    for row in shards:
        took_s, at_s = (row.score_s, row.scored_at_s) if scores else (row.infer_s, row.inferred_at_s)
        result = row.scores if scores else None
        reports.append({"part": row.pk, "code": 0, "took": took_s, "scores": result, "why": "", "at": at_s})
    head = f"job {number} ({trial.job.name}): {len(shards)} shards of {trial.checkpoint}"
    return "".join(f"{line}\n" for line in [head, *(f"acme:{trial.nonce} {json.dumps(one)}" for one in reports)])


def _run_and_suite(outcome: CampaignOutcome) -> tuple[str, int]:
    return outcome.source.run.name, outcome.source.gpus
