"""Applies faults to the jobs that they hit. Pure; part of the simulation. Each job that is hit opens a case."""

from __future__ import annotations

from collections.abc import Callable

from scheduling.simulation.drill.counts import FaultCase
from scheduling.simulation.drill.faults import BUG, RESTARTABLE_REASONS, draw_bug_reason
from scheduling.simulation.drill.jobs import GANG_JOB, MIX_STEP_S, DrillJob
from scheduling.simulation.drill.simulation import NODE_LOST_S, TEARDOWN_S, DrillSimulation, symptom_delay_s
from scheduling.simulation.drill.values import DrillFault
from scheduling.simulation.machines.failure_reasons import TRAINING_KINDS
from scheduling.simulation.machines.faults import STORAGE_HIT_RATE, FaultKind

BAD_STEPS = 12  # length of a data range that spoils the weights
# Diagnosis labels that count as correct; labels that call for the same action are equivalent
ACCEPTED_LABELS: dict[str, frozenset[str]] = {
    FaultKind.DEATH: frozenset({"SlurmNodeFail", "NodeFailure"}),
    FaultKind.OFF_BUS: frozenset({"GPUFallenOffBus"}),
    FaultKind.ECC: frozenset({"ECCError"}),
    FaultKind.NVLINK: frozenset({"NVLinkError"}),
    FaultKind.FABRIC: frozenset({"NetworkError", "NCCLRemoteError"}),
    FaultKind.HANG: frozenset({"Hang", "NCCLTimeoutError"}),
    FaultKind.SLOW: frozenset({"SlowNode"}),
    FaultKind.STORAGE: frozenset({"S3StorageError"}),
    FaultKind.LOSS: frozenset({"LossNaNOrSpike"}),
    "cuda_error": frozenset({"CUDAError"}),
    "nccl_timeout_error": frozenset({"NCCLTimeoutError", "Hang"}),  # reported late, by the watchdog
    "nccl_remote_error": frozenset({"NCCLRemoteError", "NetworkError"}),
    "s3_storage_error": frozenset({"S3StorageError"}),
    "os_error": frozenset({"OSError"}),
}


def accepted_labels(kind: str) -> frozenset[str]:
    return ACCEPTED_LABELS.get(kind, frozenset({kind.title().replace("_", "")}))


class FaultInjector:
    def __init__(self, stage: DrillSimulation) -> None:
        self.stage = stage

    def apply_fault(self, fault: DrillFault, now: float) -> None:
        stage = self.stage
        if fault.kind == FaultKind.STORAGE:
            self._fail_storage(fault, now)
            return
        if fault.kind in (BUG, FaultKind.LOSS):
            self._break_program(fault, now)
            return
        stage.broken[fault.node].append(fault)
        if fault.kind == FaultKind.SLOW:
            stage.slowed.append(fault)
        if fault.kind == FaultKind.DEATH:
            self._lose_node(fault, now)
        hit_jobs = [work for work in self._running_on(fault.node) if self._affects_job(fault, work)]
        if not hit_jobs:
            stage.tally.idle.append(fault.kind)
        for work in hit_jobs:
            self._hit_job(fault, work, now)

    def _running_on(self, node: int) -> list[DrillJob]:
        return [work for work in self.stage.running.values() if node in work.nodes and not work.dying]

    def _affects_job(self, fault: DrillFault, work: DrillJob) -> bool:
        """Whether a fault affects a job: one GPU needs no links, one node no fabric; only the gang's pace counts."""
        if fault.kind == FaultKind.SLOW:
            return work.is_gang
        if fault.kind in (FaultKind.FABRIC, "nccl_remote_error", "nccl_timeout_error"):
            return len(work.nodes) > 1
        if fault.kind in (FaultKind.NVLINK, FaultKind.HANG):
            return work.gpus > 1
        whole = work.gpus >= self.stage.plan.gpus_per_node or fault.kind == FaultKind.DEATH
        return whole or self.stage.dice("gpu", fault.number).random() < work.gpus / self.stage.plan.gpus_per_node

    def _open_case(self, kind: str, work: DrillJob, now: float, *, recoverable: bool, words: str = "") -> None:
        stage = self.stage
        stage.tally.add(
            FaultCase(
                kind=kind, job=work.name, at=now, recoverable=recoverable, expected=accepted_labels(words or kind),
                restart_s=stage.plan.restart_s if work.is_gang else 60.0,
            )
        )  # fmt: skip

    def _hit_job(self, fault: DrillFault, work: DrillJob, now: float) -> None:
        stage = self.stage
        self._open_case(fault.kind, work, now, recoverable=True)
        if fault.kind == FaultKind.SLOW:
            return
        if fault.kind == FaultKind.HANG:
            self._hang_job(work, now)
            return
        if fault.kind == "nccl_timeout_error":
            self._hang_job(work, now, at_fault=fault.node)
            return
        work.dying = True
        end = now + symptom_delay_s(stage, fault) + stage.dice("teardown", fault.number, work.name).uniform(*TEARDOWN_S)
        state = "FAILED"
        if fault.kind == FaultKind.DEATH:
            end, state = now + stage.dice("lost", fault.number).uniform(*NODE_LOST_S), "NODE_FAIL"
        stage.plan_in_attempt(end, work, lambda job, t: stage.fail_attempt(job, t, fault.kind, fault.node, state))

    def _hang_job(self, work: DrillJob, now: float, at_fault: int | None = None) -> None:
        """Stop the job's output; NCCL's watchdog ends the job after `watchdog_s`."""
        stage = self.stage
        work.silent_since = now

        def end_hung_job(job: DrillJob, later: float) -> None:
            job.current_attempt.hangs.append((now, later))
            stage.fail_attempt(job, later, "nccl_timeout_error", at_fault)

        stage.plan_in_attempt(now + stage.plan.watchdog_s, work, end_hung_job)

    def _lose_node(self, fault: DrillFault, now: float) -> None:
        stage = self.stage
        lost = now + stage.dice("lost", fault.number).uniform(*NODE_LOST_S) - 0.001
        stage.agenda.at(lost, lambda node, later: stage.close(node, "down", later), fault.node)
        stage.agenda.at(now + fault.lasts_s, lambda node, later: stage.open(node, "down", later), fault.node)

    def _fail_storage(self, fault: DrillFault, now: float) -> None:
        stage = self.stage
        stage.outages.append((now, now + fault.lasts_s))
        hit_jobs = [
            work
            for work in list(stage.running.values())
            if not work.dying and work.kind in TRAINING_KINDS
            and stage.dice("reads", fault.number, work.name).random() < STORAGE_HIT_RATE
        ]  # fmt: skip
        if not hit_jobs:
            stage.tally.idle.append(fault.kind)
        for work in hit_jobs:
            self._open_case(fault.kind, work, now, recoverable=True)
            work.dying = True
            at = now + stage.dice("read", fault.number, work.name).uniform(1, 60)
            stage.plan_in_attempt(at, work, lambda job, t: stage.fail_attempt(job, t, fault.kind))

    def _break_program(self, fault: DrillFault, now: float) -> None:
        """Insert a bug into the gang's program, or bad data."""
        stage = self.stage
        work = stage.works[GANG_JOB]
        if not work.running or work.current_attempt.first_step is None or work.bug or work.dying:
            stage.tally.idle.append(fault.kind)
        elif fault.kind == BUG:
            words = draw_bug_reason(fault.number)
            work.bug = work.step + 1, words
            self._open_case(BUG, work, now, recoverable=False, words=words)
        else:
            how = stage.dice("loss", fault.number).choice(("nan", "spike"))
            work.bad_data.append((work.step + 1, work.step + BAD_STEPS, how))
            self._open_case(fault.kind, work, now, recoverable=True)

    def plan_end(self, work: DrillJob, now: float, finish: Callable[[DrillJob, float], None]) -> None:
        """Plan how an attempt ends if no fault hits it: by a flaw of the program, or when its work is done."""
        stage = self.stage
        stage.tally.record_first_step(work.name, now)
        remaining_s = max(1.0, work.need_s - work.step * MIX_STEP_S)
        if work.flaw and work.flaw.after_s < remaining_s:
            stage.plan_in_attempt(now + work.flaw.after_s, work, self._fail_by_own_flaw)
        stage.plan_in_attempt(now + remaining_s, work, finish)

    def _fail_by_own_flaw(self, work: DrillJob, now: float) -> None:
        """Fail a job of the mix for its own flaw."""
        stage, flaw = self.stage, work.flaw
        if flaw is None or work.dying or not work.running:
            return
        curable = flaw.reason in RESTARTABLE_REASONS and (flaw.reason != "checkpoint_corrupt" or len(work.saved) > 1)
        if not stage.tally.of(work.name):
            self._open_case(flaw.reason, work, now, recoverable=curable)
        work.dying = True
        if flaw.passes:
            work.flaw = None
        stage.fail_attempt(work, now, flaw.reason)
