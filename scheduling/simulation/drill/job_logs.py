"""The logs of the jobs of a simulated history, as the simulated cluster would have written them. Pure.

The log of a failure is also what the diagnosis read, so its evidence is found at the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from jobs.core.attempt_end import TRAINING_KINDS
from jobs.core.lifecycle import JobKind, State
from scheduling.simulation.drill import symptoms
from scheduling.simulation.drill.jobs import MIX_STEP_S, AttemptLife, DrillJob
from scheduling.simulation.drill.simulation import DrillSimulation
from scheduling.simulation.drill.values import DrillPlan
from scheduling.simulation.machines.faults import FaultKind
from scheduling.simulation.machines.scripts.failure_output import FailureContext
from scheduling.simulation.machines.scripts.job_output import PlannedLog, lines_until
from scheduling.simulation.machines.scripts.play import SimulatedRun
from scheduling.simulation.machines.scripts.training_runs import TrainingRun, training_run, with_whole_steps
from scheduling.simulation.machines.values import ProcessExit
from scheduling.simulation.machines.workload import job_name

START_S = 2.0  # from the allocation until the command starts
MAX_LINES = {JobKind.PRETRAIN: 400}  # of progress
MAX_OTHER_LINES = 100
ALMOST_S = 0.001
SLURM_LINES = ("srun:", "slurmstepd:")
PRETRAINING_BATCH_TOKENS, PRETRAINING_STEP_S = 1e6, (4.0, 16.0)  # the batch if a step then takes so long


def run_of_job(work: DrillJob, plan: DrillPlan) -> TrainingRun | None:
    """What a training job trains, with a whole number of steps between two checkpoints; None for other jobs."""
    if work.kind not in TRAINING_KINDS:
        return None
    return _planned_run(work.kind, work.name, work.gpus, max(work.planned_s, work.need_s), plan.checkpoint_s)


@lru_cache(maxsize=20_000)  # the log of each attempt, its progress and its checkpoints need it
def _planned_run(kind: JobKind, name: str, gpus: int, planned_s: float, checkpoint_s: float) -> TrainingRun:
    run = training_run(kind, job_name(kind, name), gpus, planned_s=planned_s, environment={}, dice=name)
    if kind is JobKind.PRETRAIN:
        low, high = PRETRAINING_STEP_S
        step_s = min(high, max(low, PRETRAINING_BATCH_TOKENS / (run.tokens_per_s_per_gpu * run.ranks)))
        run = replace(run, target_step_s=step_s)
    whole = with_whole_steps(run, checkpoint_s)
    return replace(whole, last_step=max(1, round(planned_s / whole.step_s)))


def step_of_program(run: TrainingRun, step: int) -> int:
    """The step that the program reports at a step of the simulation."""
    return round(step * MIX_STEP_S / run.step_s)


@dataclass(frozen=True, kw_only=True)
class HistoryLogs:
    """Writes the logs of attempts whose history began at `began_s`, in seconds since 1970."""

    plan: DrillPlan
    began_s: float
    are_pods: bool = False  # jobs are pods of Kubernetes, and Acme copied their logs

    def failure_log(self, stage: DrillSimulation, work: DrillJob, now: float, kind: str, rank: int) -> str:
        life = work.current_attempt
        silent_s = now if work.silent_since is None else work.silent_since
        script = self.planned_log(work, life, silent_s)
        body = lines_until(script, 0, script.play.duration_s - ALMOST_S)
        run = script.training
        scene = FailureContext(
            job=life.number, reason="", exit_code=1, nodes=script.nodes, gpus_per_node=script.gpus_per_node, rank=rank,
            step=step_of_program(run, work.step) if run else work.step, dice=script.play.dice,
        )  # fmt: skip
        lines = [*body, *symptoms.failure_tail(kind, scene)]
        if self.are_pods:
            why = "NodeLost" if kind == FaultKind.DEATH else "Error, exit code 1"
            state = State.NODE_FAIL if kind == FaultKind.DEATH else State.FAILED
            lines = [*_without_slurm(lines), *_end_lines(work, scene.nodes, why, state)]
        return "".join(f"{line}\n" for line in lines)

    def end_log(self, work: DrillJob, life: AttemptLife, ended: float, state: State) -> str:
        """The log of an attempt that did not fail."""
        script = self.planned_log(work, life, ended)
        until_s = inf if state == State.COMPLETED else script.play.duration_s - ALMOST_S
        if self.are_pods:
            why = "succeeded" if state == State.COMPLETED else "Error, exit code 143"
            lines = [*_without_slurm(lines_until(script, 0, until_s)), *_end_lines(work, script.nodes, why, state)]
        elif state == State.COMPLETED:
            lines = lines_until(script, 0, until_s)
        else:
            stopped = f"slurmstepd: error: *** JOB {life.number} ON {script.nodes[0]} CANCELLED ***"
            lines = [*lines_until(script, 0, until_s), stopped]
        return "".join(f"{line}\n" for line in lines)

    def planned_log(self, work: DrillJob, life: AttemptLife, until: float) -> PlannedLog:
        """The log up to this time of the simulation."""
        run = run_of_job(work, self.plan)
        ran_s = max(ALMOST_S * 2, until - life.promised - START_S)
        play = SimulatedRun(
            kind=work.kind, duration_s=ran_s, planned_s=max(work.need_s, 1.0), state=State.COMPLETED,
            exit=ProcessExit(), dice=f"{self.plan.seed}:{work.name}:{life.number}",
        )  # fmt: skip
        return PlannedLog(
            play=play, job_id=life.number, name=job_name(work.kind, work.name),
            nodes=tuple(self.plan.node_names[node] for node in life.nodes),
            gpus_per_node=min(work.gpus, self.plan.gpus_per_node), began_at=self.began_s + life.promised + START_S,
            training=replace(run, first_step=step_of_program(run, life.base)) if run else None,
            max_lines=MAX_LINES.get(work.kind, MAX_OTHER_LINES),
            checkpoint_steps=round(self.plan.checkpoint_s / run.step_s) if run else 0,
        )  # fmt: skip


def _without_slurm(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not line.startswith(SLURM_LINES)]


def _end_lines(work: DrillJob, nodes: Sequence[str], why: str, state: State) -> list[str]:
    """What Acme adds to the end of a log that it has copied. The first pod is at fault; more are not named."""
    count = f"{len(nodes)} {'pod' if len(nodes) == 1 else 'pods'}"
    return [
        f"acme: pod acme-{work.name}-0 on node {nodes[0]} ended: {why}",
        f"acme: end of the log of {count}: {state.value}",
    ]
