"""Evaluates the checkpoints of long pretraining runs in a simulated history, with evaluation jobs of the trace. Pure.

Every few checkpoints of a long run become a campaign. Its trials are not additional work: evaluation jobs that users
would submit later are submitted now, with their own sizes, run times and flaws. So the jobs of the history keep their
published distribution, and a campaign waits, fails and is retried like all other work.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from jobs.core.lifecycle import JobKind
from jobs.traces.trace import Trace
from scheduling.evaluation.rules import priors
from scheduling.evaluation.rules.work import datasets
from scheduling.simulation.drill.jobs import MIX_STEP_S, DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.machines.scripts.evaluation_jobs import dataset_cost
from scheduling.simulation.machines.scripts.training_runs import ModelShape, shape_of_name
from scheduling.simulation.machines.workload import job_name

BENCHMARKS = (
    *("mmlu", "ceval", "gsm8k", "humaneval", "mbpp", "hellaswag", "race_middle", "commonsenseqa", "boolq", "piqa"),
    *("winogrande", "arc_challenge", "openbookqa"),
)
MIN_RUN_S = 16 * 3600.0  # shorter runs are not evaluated
CAMPAIGNS_OF_RUN = 14  # about so many, evenly spread over the run
MIN_CHECKPOINTS_BETWEEN = 3
BYTES_PER_PARAMETER = 2
MAX_GB_OF_ONE_GPU = 60.0  # a larger model is evaluated on a whole node
NODE_EFFICIENCY = 0.7  # of a model that is divided among the GPUs of a node
TRIAL_RUN_TIMES_S = (150.0, 7200.0)  # an evaluation job of another length does not become a trial
READY_S = 45.0  # from the start of a trial until its model answers
UPLOAD_S = 60.0  # until a checkpoint is in remote storage
CHECK_INTERVAL_S = 60.0
LAST_START_S = 6 * 3600.0  # before the end of the history, so that all campaigns end


@dataclass(kw_only=True)
class CheckpointCampaign:
    """One checkpoint of a run, evaluated with all benchmarks."""

    run: DrillJob
    step: int  # of the checkpoint, in steps of the simulation
    begins: float
    gpus: int  # of a trial
    work_s: float  # that inference takes on the GPUs of one trial
    trials: list[DrillJob] = field(default_factory=list)
    ends: float | None = None


def checkpoint_gb(shape: ModelShape) -> float:
    return shape.parameters * BYTES_PER_PARAMETER / 1e9


def trial_gpus(shape: ModelShape, gpus_per_node: int) -> int:
    return 1 if checkpoint_gb(shape) <= MAX_GB_OF_ONE_GPU else gpus_per_node


def samples_by_benchmark() -> dict[str, int]:
    """All samples of each benchmark."""
    return {row.name: row.samples for row in datasets() if row.name in BENCHMARKS}


def benchmark_cost_s(name: str, samples: int, shape: ModelShape, gpus: int) -> float:
    """Seconds that the inference of so many samples takes on the GPUs of one trial."""
    cost = dataset_cost(name, samples).gpu_s * checkpoint_gb(shape) / priors.phases().checkpoint_gb
    return cost if gpus == 1 else cost / (gpus * NODE_EFFICIENCY)


def answering_s(trial: DrillJob) -> float:
    """Seconds in which the last attempt of a trial answered samples: results of earlier attempts are not read."""
    if not trial.lives or trial.lives[-1].first_step is None or trial.lives[-1].ended is None:
        return 0.0
    return max(0.0, trial.lives[-1].ended - trial.lives[-1].first_step - READY_S)


class EvaluationArrivals:
    """The evaluation jobs of the trace that were not submitted yet, in order of time."""

    def __init__(self, trace: Trace, rows: Sequence[int]) -> None:
        self._taken = set[int]()
        kinds = trace.kinds
        low, high = TRIAL_RUN_TIMES_S
        self._waiting: dict[int, deque[tuple[float, int]]] = defaultdict(deque)  # by GPUs: time of arrival, and row
        for row in rows:
            if kinds.words[kinds.codes[row]] == JobKind.EVALUATION and low <= trace.runtime_s[row] <= high:
                self._waiting[int(trace.gpus[row])].append((float(trace.submit_s[row]), row))

    def is_taken(self, row: int) -> bool:
        return row in self._taken

    def take(self, now: float, gpus: int) -> int | None:
        """The next job of this size, which then does not arrive at its own time."""
        waiting = self._waiting[gpus]
        while waiting and waiting[0][0] <= now:
            waiting.popleft()
        if not waiting:
            return None
        _, found = waiting.popleft()
        self._taken.add(found)
        return found


SubmitRow = Callable[[int, float], DrillJob]


class CampaignService:
    """Starts campaigns for checkpoints, and submits trials until all samples are answered."""

    def __init__(self, stage: DrillSimulation, arrivals: EvaluationArrivals, submit: SubmitRow) -> None:
        self._stage, self._arrivals, self._submit = stage, arrivals, submit
        self.campaigns: list[CheckpointCampaign] = []

    def plan_run(self, run: DrillJob) -> None:
        """Schedule the campaigns for the checkpoints that this attempt will save."""
        life = run.current_attempt
        if run.kind is not JobKind.PRETRAIN or run.need_s < MIN_RUN_S or life.first_step is None:
            return
        for step in self._evaluated_steps(run):
            if step > life.base:
                at = life.first_step + (step - life.base) * MIX_STEP_S + UPLOAD_S
                self._stage.plan_in_attempt(at, run, partial(self._begin, step))

    def _evaluated_steps(self, run: DrillJob) -> Iterator[int]:
        every = int(self._stage.plan.checkpoint_s / MIX_STEP_S)
        saves = int(run.need_s / MIX_STEP_S) // every
        stride = every * max(MIN_CHECKPOINTS_BETWEEN, round(saves / CAMPAIGNS_OF_RUN))
        return iter(range(stride, saves * every + 1, stride))

    def _begin(self, step: int, run: DrillJob, now: float) -> None:
        if now > self._stage.plan.end_s - LAST_START_S or any(c.run is run and c.step == step for c in self.campaigns):
            return
        shape = shape_of_name(job_name(run.kind, run.name))
        gpus = trial_gpus(shape, self._stage.plan.gpus_per_node)
        work_s = sum(benchmark_cost_s(name, count, shape, gpus) for name, count in samples_by_benchmark().items())
        campaign = CheckpointCampaign(run=run, step=step, begins=now, gpus=gpus, work_s=work_s)
        self.campaigns.append(campaign)
        self._continue(campaign, now)

    def _continue(self, campaign: CheckpointCampaign, now: float) -> None:
        """Submit trials for the samples that no trial has answered or will answer, or end the campaign."""
        open_trials = [trial for trial in campaign.trials if trial.running or trial.waiting]
        ended = [trial for trial in campaign.trials if not (trial.running or trial.waiting)]
        promised_s = sum(trial.need_s - READY_S for trial in open_trials)
        missing_s = campaign.work_s - sum(map(answering_s, ended)) - promised_s
        while missing_s > 0 and (row := self._arrivals.take(now, campaign.gpus)) is not None:
            campaign.trials.append(self._submit(row, now))
            missing_s -= campaign.trials[-1].need_s - READY_S
            open_trials.append(campaign.trials[-1])
        if open_trials:
            self._stage.agenda.at(now + CHECK_INTERVAL_S, self._continue, campaign)
        else:
            campaign.ends = now
