"""What a simulated job does: how long it lasts and how it ends.

The simulated cluster cannot run a command, so it plays it. Hints in the job's own environment decide (`SIM_DURATION_S`,
`SIM_END`, `SIM_LOSS`); what they leave open is drawn from the seed and the job's key, by the kind of work
(`ACME_KIND`), so that the same job plays the same way in every run. Only drawn durations are divided by the speed:
times are always those of the wall, and whatever is above the cluster sees one consistent clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf, log
from random import Random
from typing import Protocol

from jobs.lifecycle import Kind, State

from .world import KILL, TERM, Aim, Ended, Exit, Job

GRACE_S = 0.3  # how long a played job takes to obey TERM
BAD_OUTPUT = Exit(signal=53)  # what Slurm gives a job whose output file cannot be opened
SHORTEST_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Habit:
    """How one kind of work usually goes: median and spread of its duration, and the odds that it fails."""

    median_s: float
    spread: float
    fails: float


HABITS = {
    Kind.PRETRAIN: Habit(median_s=21_600, spread=1.2, fails=0.35),
    Kind.SFT: Habit(median_s=5_400, spread=0.9, fails=0.20),
    Kind.MLLM: Habit(median_s=7_200, spread=1.0, fails=0.25),
    Kind.EVALUATION: Habit(median_s=1_200, spread=0.8, fails=0.07),
    Kind.DEBUG: Habit(median_s=420, spread=1.1, fails=0.40),
    Kind.OTHER: Habit(median_s=900, spread=1.2, fails=0.15),
}

# Why a drawn failure failed, and how often; the words are those of `logtext.TAILS`.
CAUSES = {
    "nccl_timeout": 24,
    "nvlink": 12,
    "ecc": 10,
    "cuda_oom": 14,
    "connection": 9,
    "file_not_found": 8,
    "assertion": 9,
    "type_error": 8,
    "loss_nan": 6,
}
CAUSE_OF_END = {State.OUT_OF_MEMORY: "host_oom", State.NODE_FAIL: ""}
EXIT_OF_END = {State.OUT_OF_MEMORY: Exit(signal=125), State.NODE_FAIL: Exit(), State.COMPLETED: Exit()}


@dataclass(frozen=True, kw_only=True)
class Play:
    """One job's whole course, known from its first second."""

    kind: Kind
    duration_s: float
    state: State
    exit: Exit
    cause: str = ""
    loss: str = ""
    dice: str = ""  # what its log lines are drawn from


class BadHint(ValueError):
    """A SIM_ variable that cannot be understood; the sentence names it."""


def play_of(job: Job, *, seed: int, speed: float) -> Play:
    environment = job.request.environment
    dice = f"{seed}:{job.request.comment or job.id}"
    kind = _kind(environment.get("ACME_KIND", ""))
    random = Random(dice)
    drawn_s, drawn_end = _drawn_duration(random, HABITS[kind]) / speed, _drawn_end(random, HABITS[kind])
    state, ended, cause = _end(environment["SIM_END"]) if environment.get("SIM_END") else drawn_end
    hinted = _duration(environment.get("SIM_DURATION_S", ""))
    return Play(
        kind=kind,
        duration_s=inf if state == State.TIMEOUT else (max(drawn_s, SHORTEST_S) if hinted is None else hinted),
        state=state,
        exit=ended,
        cause=cause,
        loss=environment.get("SIM_LOSS", ""),
        dice=dice,
    )


def check_hints(environment: Mapping[str, str]) -> None:
    """Raise BadHint where a SIM_ variable makes no sense, before the job is taken."""
    _duration(environment.get("SIM_DURATION_S", ""))
    if environment.get("SIM_END"):
        _end(environment["SIM_END"])


def _kind(text: str) -> Kind:
    return Kind(text) if text in set(Kind) else Kind.OTHER


def _drawn_duration(random: Random, habit: Habit) -> float:
    return random.lognormvariate(log(habit.median_s), habit.spread)


def _drawn_end(random: Random, habit: Habit) -> tuple[State, Exit, str]:
    fails = random.random() < habit.fails
    cause = random.choices(list(CAUSES), weights=list(CAUSES.values()))[0]
    return (State.FAILED, Exit(code=1), cause) if fails else (State.COMPLETED, Exit(), "")


def _duration(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise BadHint(f"SIM_DURATION_S: {text!r:.40} is no number of seconds")
    return seconds


def _end(text: str) -> tuple[State, Exit, str]:
    """`COMPLETED`, `FAILED:<exit code>[:<cause>]`, `OUT_OF_MEMORY`, `NODE_FAIL`, `TIMEOUT` (never ends by itself)."""
    word, _, rest = text.partition(":")
    code, _, cause = rest.partition(":")
    if word == State.FAILED and (not code or code.isdigit()) and (not cause or cause in CAUSES):
        return State.FAILED, Exit(code=int(code or 1) & 0xFF or 1), cause or "assertion"
    if word in (State.COMPLETED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.TIMEOUT) and not rest:
        state = State(word)
        return state, EXIT_OF_END.get(state, Exit()), CAUSE_OF_END.get(state, "")
    raise BadHint(f"SIM_END: {text!r:.40} is no end; FAILED:1, FAILED:1:{next(iter(CAUSES))} and COMPLETED are")


class Stage(Protocol):
    """Where a played job's words go."""

    def open(self, job: Job, play: Play) -> bool:
        """Begin its log. False where its path is not one we may write to."""
        ...

    def reopen(self, job: Job, play: Play) -> None: ...

    def close(self, job_id: int, until: float, last_words: str = "") -> None: ...


class NoStage:
    """For worlds that nobody reads."""

    def open(self, job: Job, play: Play) -> bool:
        return True

    def reopen(self, job: Job, play: Play) -> None:
        return

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        return


class PlayHands:
    """The hands of a simulated cluster: they know every end beforehand."""

    def __init__(self, *, seed: int = 0, speed: float = 1.0, stage: Stage | None = None) -> None:
        self._seed, self._speed, self._stage = seed, speed, stage or NoStage()
        self._ends: list[tuple[float, int]] = []
        self._due: dict[int, Ended] = {}

    def start(self, job: Job, now: float) -> None:
        play = self.play(job)
        if self._stage.open(job, play):
            self._expect_end(job, play)
        else:
            self._expect(Ended(job_id=job.id, at=now, state=State.FAILED, exit=BAD_OUTPUT, reason="JobLaunchFailure"))

    def adopt(self, job: Job, now: float) -> None:
        if job.completing:
            self._expect(Ended(job_id=job.id, at=job.ended_at + GRACE_S, state=job.state, exit=job.exit))
            return
        play = self.play(job)
        self._stage.reopen(job, play)
        self._expect_end(job, play)

    def signal(self, job: Job, number: int, now: float, aim: Aim = Aim.ALL) -> None:
        """TERM and KILL end a played job; it shrugs at any other signal."""
        known = self._due.get(job.id)
        if number not in (TERM, KILL) or known is None or known.at <= now + GRACE_S:
            return
        self._stage.close(job.id, now, _last_words(job))
        self._expect(Ended(job_id=job.id, at=now + GRACE_S, state=job.state, exit=Exit(signal=number)))

    def next_at(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def poll(self, now: float) -> Sequence[Ended]:
        ended = []
        while self._ends and self._ends[0][0] <= now:
            at, job_id = heappop(self._ends)
            known = self._due.get(job_id)
            if known is not None and known.at == at:  # otherwise a later word, say a signal, took its place
                self._stage.close(job_id, at)
                ended.append(self._due.pop(job_id))
        return ended

    def play(self, job: Job) -> Play:
        """A job's play; one whose hints are nonsense plays as if it had none."""
        try:
            return play_of(job, seed=self._seed, speed=self._speed)
        except BadHint:
            plain = {k: v for k, v in job.request.environment.items() if not k.startswith("SIM_")}
            return play_of(_with_environment(job, plain), seed=self._seed, speed=self._speed)

    def _expect_end(self, job: Job, play: Play) -> None:
        if play.duration_s == inf:
            self._due[job.id] = Ended(job_id=job.id, at=inf, state=play.state)
            return
        lost = job.nodes[0] if play.state == State.NODE_FAIL and job.nodes else ""
        reason = "NonZeroExitCode" if play.exit.code else str(_REASONS.get(play.state, "None"))
        at = job.began_at + play.duration_s
        self._expect(Ended(job_id=job.id, at=at, state=play.state, exit=play.exit, reason=reason, lost_node=lost))

    def _expect(self, ended: Ended) -> None:
        self._due[ended.job_id] = ended
        heappush(self._ends, (ended.at, ended.job_id))


_REASONS = {State.OUT_OF_MEMORY: "OutOfMemory", State.NODE_FAIL: "NodeDown"}
_LAST_WORDS = {
    State.CANCELLED: "CANCELLED",
    State.TIMEOUT: "CANCELLED DUE TO TIME LIMIT",
    State.NODE_FAIL: "CANCELLED DUE TO NODE FAILURE",
}


def _last_words(job: Job) -> str:
    where = job.nodes[0] if job.nodes else "(null)"
    return f"slurmstepd: error: *** JOB {job.id} ON {where} {_LAST_WORDS.get(job.state, 'CANCELLED')} ***"


def _with_environment(job: Job, environment: Mapping[str, str]) -> Job:
    return replace(job, request=replace(job.request, environment=environment))
