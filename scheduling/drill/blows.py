"""What a fault does to the jobs that it meets. Pure; part of the stage. Each blow to a job opens a case."""

from __future__ import annotations

from scheduling.drill.faults import BUG, CURABLE, bug_words
from scheduling.drill.stage import NODE_LOST_S, TEARDOWN_S, Stage, shows
from scheduling.drill.tally import Case
from scheduling.drill.values import Fault
from scheduling.drill.works import GANG, Work
from scheduling.simulator.reasons import TRAINING
from scheduling.simulator.troubles import STORAGE_HITS, Breakage

BAD_STEPS = 12  # of a data range that spoils the weights
# Names of a cause that are right; what two words mean the same thing for whoever has to act on them
RIGHT: dict[str, frozenset[str]] = {
    Breakage.DEATH: frozenset({"SlurmNodeFail", "NodeFailure"}),
    Breakage.OFF_BUS: frozenset({"GPUFallenOffBus"}),
    Breakage.ECC: frozenset({"ECCError"}),
    Breakage.NVLINK: frozenset({"NVLinkError"}),
    Breakage.FABRIC: frozenset({"NetworkError", "NCCLRemoteError"}),
    Breakage.HANG: frozenset({"Hang", "NCCLTimeoutError"}),
    Breakage.SLOW: frozenset({"SlowNode"}),
    Breakage.STORAGE: frozenset({"S3StorageError"}),
    Breakage.LOSS: frozenset({"LossNaNOrSpike"}),
    "cuda_error": frozenset({"CUDAError"}),
    "nccl_timeout_error": frozenset({"NCCLTimeoutError", "Hang"}),  # what a watchdog says late
    "nccl_remote_error": frozenset({"NCCLRemoteError", "NetworkError"}),
    "s3_storage_error": frozenset({"S3StorageError"}),
    "os_error": frozenset({"OSError"}),
}


def right_names(kind: str) -> frozenset[str]:
    return RIGHT.get(kind, frozenset({kind.title().replace("_", "")}))


class Blows:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def strike(self, fault: Fault, now: float) -> None:
        stage = self.stage
        if fault.kind == Breakage.STORAGE:
            self._outage(fault, now)
            return
        if fault.kind in (BUG, Breakage.LOSS):
            self._program(fault, now)
            return
        stage.broken[fault.node].append(fault)
        if fault.kind == Breakage.SLOW:
            stage.slowed.append(fault)
        if fault.kind == Breakage.DEATH:
            self._death(fault, now)
        there = [work for work in self._running_on(fault.node) if self._meets(fault, work)]
        if not there:
            stage.tally.idle.append(fault.kind)
        for work in there:
            self._blow(fault, work, now)

    def _running_on(self, node: int) -> list[Work]:
        return [work for work in self.stage.works.values() if work.running and node in work.nodes and not work.dying]

    def _meets(self, fault: Fault, work: Work) -> bool:
        """Whether a job notices: one GPU needs no links, one node no fabric; pace is followed in the gang only."""
        if fault.kind == Breakage.SLOW:
            return work.is_gang
        if fault.kind in (Breakage.FABRIC, "nccl_remote_error", "nccl_timeout_error"):
            return len(work.nodes) > 1
        if fault.kind in (Breakage.NVLINK, Breakage.HANG):
            return work.gpus > 1
        whole = work.gpus >= self.stage.plan.gpus_per_node or fault.kind == Breakage.DEATH
        return whole or self.stage.dice("gpu", fault.number).random() < work.gpus / self.stage.plan.gpus_per_node

    def _case(self, kind: str, work: Work, now: float, *, recoverable: bool, words: str = "") -> None:
        stage = self.stage
        stage.tally.cases.append(
            Case(
                kind=kind, job=work.name, at=now, recoverable=recoverable, expected=right_names(words or kind),
                restart_s=stage.plan.restart_s if work.is_gang else 60.0,
            )
        )  # fmt: skip

    def _blow(self, fault: Fault, work: Work, now: float) -> None:
        stage = self.stage
        self._case(fault.kind, work, now, recoverable=True)
        if fault.kind == Breakage.SLOW:
            return
        if fault.kind == Breakage.HANG:
            self._hang(work, now)
            return
        if fault.kind == "nccl_timeout_error":
            self._hang(work, now, at_fault=fault.node)
            return
        work.dying = True
        end = now + shows(stage, fault) + stage.dice("teardown", fault.number, work.name).uniform(*TEARDOWN_S)
        state = "FAILED"
        if fault.kind == Breakage.DEATH:
            end, state = now + stage.dice("lost", fault.number).uniform(*NODE_LOST_S), "NODE_FAIL"
        stage.agenda.at(end, stage.unless_moved(work, lambda one, t: stage.die(one, t, fault.kind, fault.node, state)))

    def _hang(self, work: Work, now: float, at_fault: int | None = None) -> None:
        """It says nothing more; after ten minutes NCCL's watchdog ends it."""
        stage = self.stage
        work.silent_since = now

        def barks(one: Work, later: float) -> None:
            one.life.hangs.append((now, later))
            stage.die(one, later, "nccl_timeout_error", at_fault)

        stage.agenda.at(now + stage.plan.watchdog_s, stage.unless_moved(work, barks))

    def _death(self, fault: Fault, now: float) -> None:
        stage = self.stage
        lost = now + stage.dice("lost", fault.number).uniform(*NODE_LOST_S) - 0.001
        stage.agenda.at(lost, lambda later: stage.close(fault.node, "down", later))
        stage.agenda.at(now + fault.lasts_s, lambda later: stage.open(fault.node, "down", later))

    def _outage(self, fault: Fault, now: float) -> None:
        stage = self.stage
        stage.outages.append((now, now + fault.lasts_s))
        hit = [
            work
            for work in list(stage.works.values())
            if work.running and not work.dying and work.kind in TRAINING
            and stage.dice("reads", fault.number, work.name).random() < STORAGE_HITS
        ]  # fmt: skip
        if not hit:
            stage.tally.idle.append(fault.kind)
        for work in hit:
            self._case(fault.kind, work, now, recoverable=True)
            work.dying = True
            at = now + stage.dice("read", fault.number, work.name).uniform(1, 60)
            stage.agenda.at(at, stage.unless_moved(work, lambda one, t: stage.die(one, t, fault.kind)))

    def _program(self, fault: Fault, now: float) -> None:
        """The gang's own program or data."""
        stage = self.stage
        work = stage.works[GANG]
        if not work.running or work.life.first_step is None or work.bug or work.dying:
            stage.tally.idle.append(fault.kind)
        elif fault.kind == BUG:
            words = bug_words(fault.number)
            work.bug = work.step + 1, words
            self._case(BUG, work, now, recoverable=False, words=words)
        else:
            how = stage.dice("loss", fault.number).choice(("nan", "spike"))
            work.bad_data.append((work.step + 1, work.step + BAD_STEPS, how))
            self._case(fault.kind, work, now, recoverable=True)

    def flaw(self, work: Work, now: float) -> None:
        """A job of the mix fails of what it brought along."""
        stage, flaw = self.stage, work.flaw
        if flaw is None or work.dying or not work.running:
            return
        curable = flaw.reason in CURABLE and (flaw.reason != "checkpoint_corrupt" or len(work.saved) > 1)
        if not stage.tally.of(work.name):
            self._case(flaw.reason, work, now, recoverable=curable)
        work.dying = True
        if flaw.passes:
            work.flaw = None
        stage.die(work, now, flaw.reason)
