"""Simulates a job: how long it runs and how it ends.

The simulated cluster cannot run commands. Hints in the job's environment (`SIM_DURATION_S`, `SIM_END`, `SIM_LOSS`)
decide how a job goes; everything else is drawn from the seed and the job's key, by the kind of work (`ACME_KIND`), so
that a job goes the same way in every run. Without hints a job runs for some minutes and fails only because of a fault.
Several ends separated by commas are those of its attempts; the last one also holds for all further attempts:
`FAILED:1:cuda_error,COMPLETED` fails once. Only drawn durations are divided by the speed: all times are wall times, so
that everything above the cluster sees one consistent clock.
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

from acmeweb.common.errors import InvalidInput
from jobs.core.lifecycle import JobKind, State
from scheduling.simulation.machines.failure_reasons import (
    HOST_OOM,
    REASON_NAMES,
    REASONS_BY_NAME,
    draw_reason,
    draw_time_to_failure_s,
)
from scheduling.simulation.machines.faults import REASON_OF_FAULT, SLOW_GPU_FACTOR, XID_OF_FAULT, FaultImpact, FaultKind
from scheduling.simulation.machines.values import (
    KILL,
    TERM,
    EffectRecorder,
    JobEnd,
    NullEffectRecorder,
    ProcessExit,
    SignalTarget,
    SimulatedJob,
)

from .evaluation_jobs import TimedLines, preempted_end_s, trial_output

TERM_GRACE_S = 0.3  # time that a simulated job takes to end after TERM
BAD_OUTPUT_EXIT = ProcessExit(signal=53)  # of a job whose output file cannot be opened, as in Slurm
REFUSED_START_EXIT = ProcessExit(code=97)  # of a batch script whose attempt was started before
MIN_DURATION_S = 0.2
NODE_TEST_VARIABLE, NODE_TEST_DURATION_S = "ACME_TEST_NODE", 5.0  # marks a node test, and its duration


# Median duration before it is divided by the speed: at a speed of 60, every job runs for two to ten minutes
MEDIAN_DURATION_S = {
    JobKind.PRETRAIN: 28_800,
    JobKind.SFT: 18_000,
    JobKind.MLLM: 21_600,
    JobKind.EVALUATION: 10_800,
    JobKind.DEBUG: 7_200,
    JobKind.OTHER: 7_200,
}
DURATION_SPREAD = 0.25

CAUSE_OF_END = {State.OUT_OF_MEMORY: HOST_OOM, State.NODE_FAIL: ""}
KILLED_STATES = (State.OUT_OF_MEMORY, State.NODE_FAIL)
EXIT_OF_END = {
    State.OUT_OF_MEMORY: ProcessExit(signal=125),
    State.NODE_FAIL: ProcessExit(),
    State.COMPLETED: ProcessExit(),
}


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """The course of a job as far as it is known. A later fault replaces it by another one."""

    kind: JobKind
    duration_s: float
    planned_s: float  # without faults; determines the pace of its output
    state: State
    exit: ProcessExit
    cause: str = ""
    loss: str = ""
    dice: str = ""  # seed of its log lines
    culprit: tuple[str, int] | None = None  # the node and GPU at fault, if any
    silent_s: float = inf  # from here on it hangs without output
    spike_s: float = inf
    slow_s: tuple[float, float] | None = None  # from, until
    speeds: tuple[tuple[float, float], ...] = ()  # from, speed by the clocks of its GPUs; 1 before the first
    lines: TimedLines = ()  # its whole log, if that is predetermined

    def slowed_time_s(self, work_s: float) -> float:
        """The time at which the work planned for `work_s` is done, including the delay by a slow GPU and by clocks."""
        done_s = since_s = 0.0
        for until_s in (*self._pace_changes_s, inf):
            pace = self.pace(since_s)
            if done_s + (until_s - since_s) * pace >= work_s:
                return since_s + (work_s - done_s) / pace
            done_s, since_s = done_s + (until_s - since_s) * pace, until_s
        return inf

    def pace(self, at_s: float) -> float:
        """The work done per second, 1 for a healthy job at the highest clocks."""
        is_slow = self.slow_s is not None and self.slow_s[0] <= at_s < self.slow_s[1]
        speed = next((speed for since_s, speed in reversed(self.speeds) if since_s <= at_s), 1.0)
        return speed / SLOW_GPU_FACTOR if is_slow else speed

    @property
    def _pace_changes_s(self) -> list[float]:
        times = [*(self.slow_s or ()), *(since_s for since_s, _ in self.speeds)]
        return sorted(at_s for at_s in times if 0 < at_s < inf)


def simulate_run(job: SimulatedJob, *, seed: int, speed: float, trial_speed: float = 1.0) -> SimulatedRun:
    """The planned course of a job with the impacts of faults applied in order of time."""
    play = _run_without_faults(job, seed=seed, speed=speed, trial_speed=trial_speed)
    if job.speeds:
        play = replace(play, speeds=tuple((max(one.at - job.began_at, 0.0), one.speed) for one in job.speeds))
        play = replace(play, duration_s=play.slowed_time_s(play.duration_s))
    for blow in sorted(job.blows, key=lambda blow: blow.at):
        play = _apply_impact(play, blow, max(blow.at - job.began_at, 0.0), job.began_at)
    return play


def _run_without_faults(job: SimulatedJob, *, seed: int, speed: float, trial_speed: float) -> SimulatedRun:
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
            lines=trial.lines,
            culprit=_draw_culprit(Random(dice), job),
        )
    random, gpus = Random(dice), job.request.node_count * job.request.gpus_per_node
    duration = random.lognormvariate(log(MEDIAN_DURATION_S[kind]), DURATION_SPREAD)
    state, exit_status, cause = State.COMPLETED, ProcessExit(), ""
    if NODE_TEST_VARIABLE in environment:
        duration = NODE_TEST_DURATION_S * speed
    if hint := environment.get("SIM_END"):
        ends = hint.split(",")
        state, exit_status, cause = _parse_end_hint(ends[min(_previous_attempts(job), len(ends) - 1)])
    if state == State.FAILED and not cause:
        reason = draw_reason(random, kind, gpus)
        cause, duration = reason.name, min(duration, draw_time_to_failure_s(random, reason))
    duration_hint = _parse_duration_hint(environment.get("SIM_DURATION_S", ""))
    duration = max(duration / speed, MIN_DURATION_S) if duration_hint is None else duration_hint
    return SimulatedRun(
        kind=kind,
        duration_s=inf if state == State.TIMEOUT else duration,
        planned_s=inf if state == State.TIMEOUT else duration,
        state=state,
        exit=exit_status,
        cause=cause,
        loss=environment.get("SIM_LOSS", ""),
        dice=dice,
        culprit=_draw_culprit(random, job),
    )


def _draw_culprit(random: Random, job: SimulatedJob) -> tuple[str, int] | None:
    """A random GPU of the job, on which a drawn failure shows."""
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
            return replace(slow, duration_s=slow.slowed_time_s(play.planned_s))
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
    """Raise InvalidInput for an invalid SIM_ variable, before the job is accepted."""
    _parse_duration_hint(environment.get("SIM_DURATION_S", ""))
    for hint in filter(None, environment.get("SIM_END", "").split(",")):
        _parse_end_hint(hint)


def _previous_attempts(job: SimulatedJob) -> int:
    """The number of earlier attempts, from the attempt's key `acme:ID.NUMBER`; 0 for other jobs."""
    number = job.request.comment.rpartition(".")[2]
    return max(int(number) - 1, 0) if job.request.comment.startswith("acme:") and number.isdigit() else 0


def _job_kind(text: str) -> JobKind:
    return JobKind(text) if text in set(JobKind) else JobKind.OTHER


def _parse_duration_hint(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise InvalidInput(f"SIM_DURATION_S: {text!r:.40} is not a number of seconds")
    return seconds


def _parse_end_hint(text: str) -> tuple[State, ProcessExit, str]:
    """Parse `COMPLETED`, `FAILED:<exit code>[:<reason>]`, `OUT_OF_MEMORY`, `NODE_FAIL` or `TIMEOUT`.

    `TIMEOUT` never ends by itself. A failure without a reason gets one from the table, by the job's kind and size.
    """
    word, _, rest = text.partition(":")
    code, _, cause = rest.partition(":")
    if word == State.FAILED and (not code or code.isdigit()) and (not cause or cause in REASON_NAMES):
        return State.FAILED, ProcessExit(code=int(code or 1) & 0xFF or 1), cause
    if word in (State.COMPLETED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.TIMEOUT) and not rest:
        state = State(word)
        return state, EXIT_OF_END.get(state, ProcessExit()), CAUSE_OF_END.get(state, "")
    raise InvalidInput(
        f"SIM_END: {text!r:.40} is not a valid end. Examples: COMPLETED, FAILED:1:{next(iter(REASONS_BY_NAME))}"
    )


class LogOpenResult(StrEnum):
    """Whether a simulated job may start."""

    READY = "ready"
    BAD_PATH = "bad path"  # its log path is not allowed
    STARTED_BEFORE = "started before"  # another job has started the same attempt


class JobOutputSink(Protocol):
    """Receives the output of simulated jobs."""

    def open(self, job: SimulatedJob, play: SimulatedRun) -> LogOpenResult:
        """Create its log and its attempt record."""
        ...

    def resume_job_log(self, job: SimulatedJob, play: SimulatedRun) -> None: ...

    def replace_run(self, job: SimulatedJob, play: SimulatedRun) -> None:
        """Continue with another course; lines already written stay."""
        ...

    def dump(self, job: SimulatedJob, now: float) -> None:
        """Write the stacks of the ranks on the nodes of `job`, which are those that the signal reached."""
        ...

    def close(self, job_id: int, until: float, last_words: str = "") -> None: ...

    def record_exit(self, job: SimulatedJob, at: float, code: int) -> None:
        """Write the exit code to its attempt record, as its batch script would."""
        ...


class NullOutputSink:
    """Discards all output; used where logs are not needed."""

    def open(self, job: SimulatedJob, play: SimulatedRun) -> LogOpenResult:
        return LogOpenResult.READY

    def resume_job_log(self, job: SimulatedJob, play: SimulatedRun) -> None:
        return

    def replace_run(self, job: SimulatedJob, play: SimulatedRun) -> None:
        return

    def dump(self, job: SimulatedJob, now: float) -> None:
        return

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        return

    def record_exit(self, job: SimulatedJob, at: float, code: int) -> None:
        return


class SimulatedExecutor:
    """Simulates jobs; the end of each is known in advance."""

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
        self._begun: dict[int, SimulatedJob] = {}  # jobs that have started and whose end was not polled yet

    def start(self, job: SimulatedJob, now: float) -> None:
        play = self.run_of_job(job)
        match self._stage.open(job, play):
            case LogOpenResult.READY:
                self._effects.record_start(job, job.began_at)
                self._begun[job.id] = job
                self._schedule_natural_end(job, play)
            case LogOpenResult.BAD_PATH:
                self._schedule_end(_failed_start(job, now, BAD_OUTPUT_EXIT, "JobLaunchFailure"))
            case LogOpenResult.STARTED_BEFORE:
                self._schedule_end(_failed_start(job, now, REFUSED_START_EXIT, "NonZeroExitCode"))

    def adopt(self, job: SimulatedJob, now: float) -> None:
        play = self.run_of_job(job)
        if job.is_completing:
            self._adopt_completing(job, play)
            return
        self._begun[job.id] = job
        self._stage.resume_job_log(job, play)
        self._schedule_natural_end(job, play)

    def _adopt_completing(self, job: SimulatedJob, play: SimulatedRun) -> None:
        """Adopt a job that ended or was being stopped when the server was killed; it ends as it would have ended."""
        if job.began_at and job.began_at + play.duration_s <= job.ended_at + _signal_grace_s(job.exit.signal):
            self._begun[job.id] = job
            self._schedule_end(replace(_natural_end(job, play), lost_node="", broke=None))
            return
        if job.began_at and job.exit not in (BAD_OUTPUT_EXIT, REFUSED_START_EXIT):
            self._begun[job.id] = job
        self._schedule_end(JobEnd(job_id=job.id, at=job.ended_at + TERM_GRACE_S, state=job.state, exit=job.exit))

    def signal(self, job: SimulatedJob, number: int, now: float, aim: SignalTarget = SignalTarget.ALL) -> None:
        """TERM and KILL end a simulated job.

        A hanging job prints the stacks of its ranks on the signal that its program uses for that. A campaign trial
        stops on USR1. Other signals have no effect.
        """
        if number == _stack_signal(job) and now - job.began_at >= self.run_of_job(job).silent_s:
            self._stage.dump(job, now)
            return
        planned_end = self._due.get(job.id)
        if number == SIGUSR1 and planned_end is not None and (ends_s := self._preempted_end_s(job, now)) is not None:
            self._schedule_end(replace(planned_end, at=min(job.began_at + ends_s + MIN_DURATION_S, planned_end.at)))
            return
        if number not in (TERM, KILL) or planned_end is None or planned_end.at <= now + _signal_grace_s(number):
            return
        self._stage.close(job.id, now, _cancellation_message(job))
        self._schedule_end(
            JobEnd(job_id=job.id, at=now + TERM_GRACE_S, state=job.state, exit=ProcessExit(signal=number))
        )

    def _preempted_end_s(self, job: SimulatedJob, now: float) -> float | None:
        play = self.run_of_job(job)
        moments = [play.slowed_time_s(at_s) for at_s, _ in play.lines]
        return preempted_end_s(job.request.environment, moments, now - job.began_at)

    def apply_fault(self, job: SimulatedJob, now: float) -> None:
        play = self.run_of_job(job)
        self._stage.replace_run(job, play)
        self._schedule_natural_end(job, play)

    def next_end_at(self) -> float:
        return self._ends[0][0] if self._ends else inf

    def poll_ends(self, now: float) -> Sequence[JobEnd]:
        ends = []
        while self._ends and self._ends[0][0] <= now:
            at, job_id = heappop(self._ends)
            planned_end = self._due.get(job_id)
            if planned_end is not None and planned_end.at == at:  # otherwise a signal or a fault has replaced it
                self._stage.close(job_id, at)
                ends.append(self._due.pop(job_id))
                self._report_end(ends[-1])
        return ends

    def _report_end(self, end: JobEnd) -> None:
        if job := self._begun.pop(end.job_id, None):
            code = _record_exit_code(end)
            if code is not None:
                self._stage.record_exit(job, end.at, code)
            self._effects.record_end(job, end.at, _process_exit_status(end))

    def run_of_job(self, job: SimulatedJob) -> SimulatedRun:
        """A job's course. If its hints are invalid, they are ignored."""
        try:
            return self._simulate_job(job)
        except InvalidInput:
            plain = {k: v for k, v in job.request.environment.items() if not k.startswith("SIM_")}
            return self._simulate_job(_with_environment(job, plain))

    def _simulate_job(self, job: SimulatedJob) -> SimulatedRun:
        return simulate_run(job, seed=self._seed, speed=self._speed, trial_speed=self._trial_speed)

    def _schedule_natural_end(self, job: SimulatedJob, play: SimulatedRun) -> None:
        if play.duration_s == inf:
            self._due[job.id] = JobEnd(job_id=job.id, at=inf, state=play.state)
            return
        self._schedule_end(_natural_end(job, play))

    def _schedule_end(self, end: JobEnd) -> None:
        self._due[end.job_id] = end
        heappush(self._ends, (end.at, end.job_id))


def _natural_end(job: SimulatedJob, play: SimulatedRun) -> JobEnd:
    """The end of a job that is not stopped from outside."""
    lost = job.nodes[0] if play.state == State.NODE_FAIL and job.nodes else ""
    reason = "NonZeroExitCode" if play.exit.code else str(_END_REASONS.get(play.state, "None"))
    at = job.began_at + play.duration_s
    end = JobEnd(job_id=job.id, at=at, state=play.state, exit=play.exit, reason=reason, lost_node=lost)
    return replace(end, broke=_own_fault_impact(play, at))


def _signal_grace_s(number: int) -> float:
    """How long after a signal the job may still end by itself."""
    return 0.0 if number == KILL else TERM_GRACE_S


def _failed_start(job: SimulatedJob, at: float, exit_status: ProcessExit, reason: str) -> JobEnd:
    return JobEnd(job_id=job.id, at=at, state=State.FAILED, exit=exit_status, reason=reason)


def _process_exit_status(end: JobEnd) -> ProcessExit:
    """The exit status that the kernel saw. The controller reports less: none for a lost node, 125 for lost memory."""
    if end.state in KILLED_STATES and end.exit == EXIT_OF_END[end.state]:
        return ProcessExit(signal=KILL)
    return end.exit


def _record_exit_code(end: JobEnd) -> int | None:
    """The exit code that its batch script would record; None if KILL or a node failure prevents that."""
    if end.state == State.OUT_OF_MEMORY:
        return 128 + KILL  # only the command was killed
    exit_status = _process_exit_status(end)
    if exit_status.signal:
        return None if exit_status.signal == KILL else 128 + exit_status.signal
    return exit_status.code


def _own_fault_impact(play: SimulatedRun, at: float) -> FaultImpact | None:
    """The machine fault behind a failure drawn from the table; faults from outside are recorded already."""
    breaks = REASONS_BY_NAME[play.cause].breaks if play.cause in REASONS_BY_NAME else None
    if breaks is None or play.culprit is None:
        return None
    node, gpu = play.culprit
    return FaultImpact(kind=breaks, at=at, until=at, node=node, gpu=gpu if breaks in XID_OF_FAULT else -1)


def _stack_signal(job: SimulatedJob) -> int | None:
    word = job.request.environment.get("ACME_STACKS_SIGNAL", "").removeprefix("B:")
    return int(Signals[f"SIG{word}"]) if f"SIG{word}" in Signals.__members__ else None


_END_REASONS = {State.OUT_OF_MEMORY: "OutOfMemory", State.NODE_FAIL: "NodeDown"}
_CANCELLATION_TEXTS = {
    State.CANCELLED: "CANCELLED",
    State.TIMEOUT: "CANCELLED DUE TO TIME LIMIT",
    State.NODE_FAIL: "CANCELLED DUE TO NODE FAILURE",
}


def _cancellation_message(job: SimulatedJob) -> str:
    where = job.nodes[0] if job.nodes else "(null)"
    return f"slurmstepd: error: *** JOB {job.id} ON {where} {_CANCELLATION_TEXTS.get(job.state, 'CANCELLED')} ***"


def _with_environment(job: SimulatedJob, environment: Mapping[str, str]) -> SimulatedJob:
    return replace(job, request=replace(job.request, environment=environment))
