"""What a simulated job does: how long it lasts and how it ends.

The simulated cluster cannot run a command, so it plays it. Hints in the job's own environment decide (`SIM_DURATION_S`,
`SIM_END`, `SIM_LOSS`); what they leave open is drawn from the seed and the job's key, by the kind of work
(`ACME_KIND`), so that the same job plays the same way in every run. Several ends with commas between them are those of
its attempts, the last also of all further ones: `FAILED:1:cuda_error,COMPLETED` fails once. Only drawn durations are
divided by the speed: times are always those of the wall, and whatever is above the cluster sees one consistent clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from math import inf, log
from random import Random
from signal import SIGUSR1, Signals
from typing import Protocol

from jobs.core.lifecycle import JobKind, State
from scheduling.slurmsim.failure_reasons import (
    HOST_OOM,
    REASON_NAMES,
    REASONS_BY_NAME,
    draw_reason,
    draw_time_to_failure_s,
)
from scheduling.slurmsim.faults import REASON_OF_FAULT, SLOW_GPU_FACTOR, XID_OF_FAULT, FaultImpact, FaultKind
from scheduling.slurmsim.values import (
    KILL,
    TERM,
    EffectRecorder,
    JobEnd,
    NullEffectRecorder,
    ProcessExit,
    SignalTarget,
    SlurmJob,
)

from .evaluation_jobs import TimedLines, preempted_end_s, trial_output

TERM_GRACE_S = 0.3  # how long a played job takes to obey TERM
BAD_OUTPUT_EXIT = ProcessExit(signal=53)  # what Slurm gives a job whose output file cannot be opened
REFUSED_START_EXIT = ProcessExit(code=97)  # what a batch script of Acme exits with if its attempt was started before
MIN_DURATION_S = 0.2
NODE_TEST_VARIABLE, NODE_TEST_DURATION_S = "ACME_TEST_NODE", 5.0  # a test of nodes, and how long it takes


@dataclass(frozen=True, kw_only=True)
class KindProfile:
    """How one kind of work usually goes: median and spread of its duration, and the odds that it fails."""

    median_s: float
    spread: float
    fails: float


PROFILE_BY_KIND = {
    JobKind.PRETRAIN: KindProfile(median_s=21_600, spread=1.2, fails=0.35),
    JobKind.SFT: KindProfile(median_s=5_400, spread=0.9, fails=0.20),
    JobKind.MLLM: KindProfile(median_s=7_200, spread=1.0, fails=0.25),
    JobKind.EVALUATION: KindProfile(median_s=1_200, spread=0.8, fails=0.07),
    JobKind.DEBUG: KindProfile(median_s=420, spread=1.1, fails=0.40),
    JobKind.OTHER: KindProfile(median_s=900, spread=1.2, fails=0.15),
}

CAUSE_OF_END = {State.OUT_OF_MEMORY: HOST_OOM, State.NODE_FAIL: ""}
KILLED_STATES = (State.OUT_OF_MEMORY, State.NODE_FAIL)
EXIT_OF_END = {
    State.OUT_OF_MEMORY: ProcessExit(signal=125),
    State.NODE_FAIL: ProcessExit(),
    State.COMPLETED: ProcessExit(),
}


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One job's whole course, as far as it is known: what befalls it later makes another play of it."""

    kind: JobKind
    duration_s: float
    planned_s: float  # without what befell it: its pace goes by this
    state: State
    exit: ProcessExit
    cause: str = ""
    loss: str = ""
    dice: str = ""  # what its log lines are drawn from
    culprit: tuple[str, int] | None = None  # node and GPU, where one of them is to blame
    silent_s: float = inf  # from here on it hangs and says nothing
    spike_s: float = inf
    slow_s: tuple[float, float] | None = None  # from, until
    said: TimedLines = ()  # every line of its log, where these are known beforehand

    def slowed_time_s(self, work_s: float) -> float:
        """When work that would be done at `work_s` is done, with the time that a slow GPU costs."""
        if self.slow_s is None or work_s <= self.slow_s[0]:
            return work_s
        since, until = self.slow_s
        slowly = since + (work_s - since) * SLOW_GPU_FACTOR
        return slowly if slowly <= until else work_s + (until - since) * (1 - 1 / SLOW_GPU_FACTOR)

    def is_slow(self, at_s: float) -> bool:
        return self.slow_s is not None and self.slow_s[0] <= at_s < self.slow_s[1]


class InvalidSimHint(ValueError):
    """A SIM_ variable that cannot be understood; the sentence names it."""


def simulate_run(job: SlurmJob, *, seed: int, speed: float, trial_speed: float = 1.0) -> SimulatedRun:
    """What the job is to do, and then what befell it, in the order in which it did."""
    play = _run_without_faults(job, seed=seed, speed=speed, trial_speed=trial_speed)
    for blow in sorted(job.blows, key=lambda blow: blow.at):
        play = _apply_impact(play, blow, max(blow.at - job.began_at, 0.0), job.began_at)
    return play


def _run_without_faults(job: SlurmJob, *, seed: int, speed: float, trial_speed: float) -> SimulatedRun:
    environment = job.request.environment
    dice = f"{seed}:{job.request.comment or job.id}"
    kind = _job_kind(environment.get("ACME_KIND", ""))
    if trial := trial_output(environment, job.request.gpus_per_node > 0, dice, trial_speed):
        return SimulatedRun(
            kind=kind,
            duration_s=trial.ends_s,
            planned_s=trial.ends_s,
            state=State.COMPLETED,
            exit=ProcessExit(),
            dice=dice,
            said=trial.said,
            culprit=_draw_culprit(Random(dice), job),
        )
    random, gpus = Random(dice), job.request.node_count * job.request.gpus_per_node
    duration = random.lognormvariate(log(PROFILE_BY_KIND[kind].median_s), PROFILE_BY_KIND[kind].spread)
    state, ended, cause = _draw_end(random, PROFILE_BY_KIND[kind])
    if NODE_TEST_VARIABLE in environment:  # it fails where something is broken, and for no reason of its own
        duration, state, ended, cause = NODE_TEST_DURATION_S * speed, State.COMPLETED, ProcessExit(), ""
    if hint := environment.get("SIM_END"):
        ends = hint.split(",")
        state, ended, cause = _parse_end_hint(ends[min(_previous_attempts(job), len(ends) - 1)])
    if state == State.FAILED and not cause:
        reason = draw_reason(random, kind, gpus)
        cause, duration = reason.name, min(duration, draw_time_to_failure_s(random, reason))
    hinted = _parse_duration_hint(environment.get("SIM_DURATION_S", ""))
    duration = max(duration / speed, MIN_DURATION_S) if hinted is None else hinted
    return SimulatedRun(
        kind=kind,
        duration_s=inf if state == State.TIMEOUT else duration,
        planned_s=inf if state == State.TIMEOUT else duration,
        state=state,
        exit=ended,
        cause=cause,
        loss=environment.get("SIM_LOSS", ""),
        dice=dice,
        culprit=_draw_culprit(random, job),
    )


def _draw_culprit(random: Random, job: SlurmJob) -> tuple[str, int] | None:
    """On which of its GPUs a drawn failure shows."""
    places = [(node, gpu) for node in job.nodes for gpu in job.gpus.get(node, ())]
    return random.choice(places) if places else None


def _apply_impact(play: SimulatedRun, blow: FaultImpact, at_s: float, began_at: float) -> SimulatedRun:
    if at_s >= play.duration_s or play.silent_s < inf:
        return play
    where = (blow.node, blow.gpu) if blow.node else play.culprit
    match blow.kind:
        case FaultKind.LOSS:
            return replace(play, spike_s=min(play.spike_s, at_s))
        case FaultKind.SLOW if play.slow_s is None:
            slow = replace(play, slow_s=(at_s, blow.until - began_at))
            return replace(slow, duration_s=slow.slowed_time_s(play.duration_s))
        case FaultKind.HANG:
            return replace(play, silent_s=at_s, duration_s=inf, state=State.TIMEOUT, exit=ProcessExit(), culprit=where)
    if blow.kind not in REASON_OF_FAULT:
        return play
    return replace(
        play,
        duration_s=at_s,
        state=State.FAILED,
        exit=ProcessExit(code=1),
        cause=REASON_OF_FAULT[blow.kind],
        culprit=where,
    )


def check_hints(environment: Mapping[str, str]) -> None:
    """Raise BadHint where a SIM_ variable makes no sense, before the job is taken."""
    _parse_duration_hint(environment.get("SIM_DURATION_S", ""))
    for hint in filter(None, environment.get("SIM_END", "").split(",")):
        _parse_end_hint(hint)


def _previous_attempts(job: SlurmJob) -> int:
    """By the key of its attempt, `acme:ID.NUMBER`; others have one."""
    number = job.request.comment.rpartition(".")[2]
    return max(int(number) - 1, 0) if job.request.comment.startswith("acme:") and number.isdigit() else 0


def _job_kind(text: str) -> JobKind:
    return JobKind(text) if text in set(JobKind) else JobKind.OTHER


def _draw_end(random: Random, habit: KindProfile) -> tuple[State, ProcessExit, str]:
    fails = random.random() < habit.fails
    return (State.FAILED, ProcessExit(code=1), "") if fails else (State.COMPLETED, ProcessExit(), "")


def _parse_duration_hint(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise InvalidSimHint(f"SIM_DURATION_S: {text!r:.40} is no number of seconds")
    return seconds


def _parse_end_hint(text: str) -> tuple[State, ProcessExit, str]:
    """`COMPLETED`, `FAILED:<exit code>[:<reason>]`, `OUT_OF_MEMORY`, `NODE_FAIL`, `TIMEOUT` (never ends by itself).

    A failure without a reason gets one from the table, by the kind and size of the job.
    """
    word, _, rest = text.partition(":")
    code, _, cause = rest.partition(":")
    if word == State.FAILED and (not code or code.isdigit()) and (not cause or cause in REASON_NAMES):
        return State.FAILED, ProcessExit(code=int(code or 1) & 0xFF or 1), cause
    if word in (State.COMPLETED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.TIMEOUT) and not rest:
        state = State(word)
        return state, EXIT_OF_END.get(state, ProcessExit()), CAUSE_OF_END.get(state, "")
    raise InvalidSimHint(
        f"SIM_END: {text!r:.40} is no end; FAILED:1, FAILED:1:{next(iter(REASONS_BY_NAME))} and COMPLETED are"
    )


class LogOpenResult(StrEnum):
    """Whether a played job may begin."""

    READY = "ready"
    BAD_PATH = "bad path"  # its log is not where we may write to
    STARTED_BEFORE = "started before"  # another job has started the same attempt


class JobOutputSink(Protocol):
    """Where a played job's words go."""

    def open(self, job: SlurmJob, play: SimulatedRun) -> LogOpenResult:
        """Begin its log and its attempt record."""
        ...

    def resume_job_log(self, job: SlurmJob, play: SimulatedRun) -> None: ...

    def replace_run(self, job: SlurmJob, play: SimulatedRun) -> None:
        """It goes on by another play; what is written stays."""
        ...

    def dump(self, job_id: int, now: float) -> None:
        """Its ranks were asked where they stand."""
        ...

    def close(self, job_id: int, until: float, last_words: str = "") -> None: ...

    def record_exit(self, job: SlurmJob, at: float, code: int) -> None:
        """The last action of its batch script."""
        ...


class NullOutputSink:
    """For worlds that nobody reads."""

    def open(self, job: SlurmJob, play: SimulatedRun) -> LogOpenResult:
        return LogOpenResult.READY

    def resume_job_log(self, job: SlurmJob, play: SimulatedRun) -> None:
        return

    def replace_run(self, job: SlurmJob, play: SimulatedRun) -> None:
        return

    def dump(self, job_id: int, now: float) -> None:
        return

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        return

    def record_exit(self, job: SlurmJob, at: float, code: int) -> None:
        return


class SimulatedExecutor:
    """The hands of a simulated cluster: they know every end beforehand."""

    def __init__(
        self,
        *,
        seed: int = 0,
        speed: float = 1.0,
        trial_speed: float = 1.0,
        stage: JobOutputSink | None = None,
        effects: EffectRecorder | None = None,
    ) -> None:
        self._seed, self._speed, self._trial_speed = seed, speed, trial_speed
        self._stage, self._effects = stage or NullOutputSink(), effects or NullEffectRecorder()
        self._ends: list[tuple[float, int]] = []
        self._due: dict[int, JobEnd] = {}
        self._begun: dict[int, SlurmJob] = {}  # jobs whose command began and whose end was not polled yet

    def start(self, job: SlurmJob, now: float) -> None:
        play = self.run_of_job(job)
        match self._stage.open(job, play):
            case LogOpenResult.READY:
                self._effects.started(job, job.began_at)
                self._begun[job.id] = job
                self._schedule_natural_end(job, play)
            case LogOpenResult.BAD_PATH:
                self._schedule_end(_failed_start(job, now, BAD_OUTPUT_EXIT, "JobLaunchFailure"))
            case LogOpenResult.STARTED_BEFORE:
                self._schedule_end(_failed_start(job, now, REFUSED_START_EXIT, "NonZeroExitCode"))

    def adopt(self, job: SlurmJob, now: float) -> None:
        play = self.run_of_job(job)
        if job.is_completing:
            self._adopt_completing(job, play)
            return
        self._begun[job.id] = job
        self._stage.resume_job_log(job, play)
        self._schedule_natural_end(job, play)

    def _adopt_completing(self, job: SlurmJob, play: SimulatedRun) -> None:
        """One that ended, or was being stopped, when the server was killed: it ends as it would have ended."""
        if job.began_at and job.began_at + play.duration_s <= job.ended_at + _signal_grace_s(job.exit.signal):
            self._begun[job.id] = job
            self._schedule_end(replace(_natural_end(job, play), lost_node="", broke=None))  # the node was lost before
            return
        if job.began_at and job.exit not in (BAD_OUTPUT_EXIT, REFUSED_START_EXIT):
            self._begun[job.id] = job
        self._schedule_end(JobEnd(job_id=job.id, at=job.ended_at + TERM_GRACE_S, state=job.state, exit=job.exit))

    def signal(self, job: SlurmJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        """TERM and KILL end a played job. One that hangs says where its ranks stand, at the signal that its program
        expects for that; a campaign's trial gives way at USR1; at any other they shrug."""
        if number == _stack_signal(job) and now - job.began_at >= self.run_of_job(job).silent_s:
            self._stage.dump(job.id, now)
            return
        known = self._due.get(job.id)
        if number == SIGUSR1 and known is not None and (ends_s := self._preempted_end_s(job, now)) is not None:
            self._schedule_end(replace(known, at=min(job.began_at + ends_s + MIN_DURATION_S, known.at)))
            return
        if number not in (TERM, KILL) or known is None or known.at <= now + _signal_grace_s(number):
            return
        self._stage.close(job.id, now, _cancellation_message(job))
        self._schedule_end(
            JobEnd(job_id=job.id, at=now + TERM_GRACE_S, state=job.state, exit=ProcessExit(signal=number))
        )

    def _preempted_end_s(self, job: SlurmJob, now: float) -> float | None:
        play = self.run_of_job(job)
        moments = [play.slowed_time_s(at_s) for at_s, _ in play.said]
        return preempted_end_s(job.request.environment, moments, now - job.began_at)

    def apply_fault(self, job: SlurmJob, now: float) -> None:
        play = self.run_of_job(job)
        self._stage.replace_run(job, play)
        self._schedule_natural_end(job, play)

    def next_end_at(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        ended = []
        while self._ends and self._ends[0][0] <= now:
            at, job_id = heappop(self._ends)
            known = self._due.get(job_id)
            if known is not None and known.at == at:  # otherwise a later word, say a signal, took its place
                self._stage.close(job_id, at)
                ended.append(self._due.pop(job_id))
                self._report_end(ended[-1])
        return ended

    def _report_end(self, ended: JobEnd) -> None:
        if job := self._begun.pop(ended.job_id, None):
            code = _record_exit_code(ended)
            if code is not None:
                self._stage.record_exit(job, ended.at, code)
            self._effects.ended(job, ended.at, _process_exit_status(ended))

    def run_of_job(self, job: SlurmJob) -> SimulatedRun:
        """A job's play; one whose hints are nonsense plays as if it had none."""
        try:
            return self._simulate_job(job)
        except InvalidSimHint:
            plain = {k: v for k, v in job.request.environment.items() if not k.startswith("SIM_")}
            return self._simulate_job(_with_environment(job, plain))

    def _simulate_job(self, job: SlurmJob) -> SimulatedRun:
        return simulate_run(job, seed=self._seed, speed=self._speed, trial_speed=self._trial_speed)

    def _schedule_natural_end(self, job: SlurmJob, play: SimulatedRun) -> None:
        if play.duration_s == inf:
            self._due[job.id] = JobEnd(job_id=job.id, at=inf, state=play.state)
            return
        self._schedule_end(_natural_end(job, play))

    def _schedule_end(self, ended: JobEnd) -> None:
        self._due[ended.job_id] = ended
        heappush(self._ends, (ended.at, ended.job_id))


def _natural_end(job: SlurmJob, play: SimulatedRun) -> JobEnd:
    """How it ends by itself."""
    lost = job.nodes[0] if play.state == State.NODE_FAIL and job.nodes else ""
    reason = "NonZeroExitCode" if play.exit.code else str(_END_REASONS.get(play.state, "None"))
    at = job.began_at + play.duration_s
    ended = JobEnd(job_id=job.id, at=at, state=play.state, exit=play.exit, reason=reason, lost_node=lost)
    return replace(ended, broke=_own_fault_impact(play, at))


def _signal_grace_s(number: int) -> float:
    """How long after a signal the job may still come to an end by itself."""
    return 0.0 if number == KILL else TERM_GRACE_S


def _failed_start(job: SlurmJob, at: float, ended: ProcessExit, reason: str) -> JobEnd:
    return JobEnd(job_id=job.id, at=at, state=State.FAILED, exit=ended, reason=reason)


def _process_exit_status(ended: JobEnd) -> ProcessExit:
    """What the kernel saw of it. The controller's exit says less: nothing of a lost node, and 125 of lost memory."""
    if ended.state in KILLED_STATES and ended.exit == EXIT_OF_END[ended.state]:
        return ProcessExit(signal=KILL)
    return ended.exit


def _record_exit_code(ended: JobEnd) -> int | None:
    """What its batch script would write down; None where KILL or the loss of its node leaves it no time for that."""
    if ended.state == State.OUT_OF_MEMORY:
        return 128 + KILL  # the command alone was killed
    seen = _process_exit_status(ended)
    if seen.signal:
        return None if seen.signal == KILL else 128 + seen.signal
    return seen.code


def _own_fault_impact(play: SimulatedRun, at: float) -> FaultImpact | None:
    """The machine's side of an end that the failure table drew; a blow from outside is known already."""
    breaks = REASONS_BY_NAME[play.cause].breaks if play.cause in REASONS_BY_NAME else None
    if breaks is None or play.culprit is None:
        return None
    node, gpu = play.culprit
    return FaultImpact(kind=breaks, at=at, until=at, node=node, gpu=gpu if breaks in XID_OF_FAULT else -1)


def _stack_signal(job: SlurmJob) -> int | None:
    word = job.request.environment.get("ACME_STACKS", "").removeprefix("B:")
    return int(Signals[f"SIG{word}"]) if f"SIG{word}" in Signals.__members__ else None


_END_REASONS = {State.OUT_OF_MEMORY: "OutOfMemory", State.NODE_FAIL: "NodeDown"}
_CANCELLATION_TEXTS = {
    State.CANCELLED: "CANCELLED",
    State.TIMEOUT: "CANCELLED DUE TO TIME LIMIT",
    State.NODE_FAIL: "CANCELLED DUE TO NODE FAILURE",
}


def _cancellation_message(job: SlurmJob) -> str:
    where = job.nodes[0] if job.nodes else "(null)"
    return f"slurmstepd: error: *** JOB {job.id} ON {where} {_CANCELLATION_TEXTS.get(job.state, 'CANCELLED')} ***"


def _with_environment(job: SlurmJob, environment: Mapping[str, str]) -> SlurmJob:
    return replace(job, request=replace(job.request, environment=environment))
