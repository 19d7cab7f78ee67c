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

from jobs.lifecycle import Kind, State

from .reasons import HOST_OOM, NAMES, REASONS, after_s, draw
from .trials import Said, course, gives_way_s
from .troubles import REASON_OF, SLOWDOWN, XID_OF, Blow, Breakage
from .values import KILL, TERM, Aim, Effects, Ended, Exit, Job, NoEffects

GRACE_S = 0.3  # how long a played job takes to obey TERM
BAD_OUTPUT = Exit(signal=53)  # what Slurm gives a job whose output file cannot be opened
REFUSED = Exit(code=97)  # what a batch script of Acme exits with if its attempt was started before
SHORTEST_S = 0.2
TEST, TEST_S = "ACME_TEST_NODE", 5.0  # a test of nodes, and how long it takes


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

CAUSE_OF_END = {State.OUT_OF_MEMORY: HOST_OOM, State.NODE_FAIL: ""}
KILLED_STATES = (State.OUT_OF_MEMORY, State.NODE_FAIL)
EXIT_OF_END = {State.OUT_OF_MEMORY: Exit(signal=125), State.NODE_FAIL: Exit(), State.COMPLETED: Exit()}


@dataclass(frozen=True, kw_only=True)
class Play:
    """One job's whole course, as far as it is known: what befalls it later makes another play of it."""

    kind: Kind
    duration_s: float
    planned_s: float  # without what befell it: its pace goes by this
    state: State
    exit: Exit
    cause: str = ""
    loss: str = ""
    dice: str = ""  # what its log lines are drawn from
    culprit: tuple[str, int] | None = None  # node and GPU, where one of them is to blame
    silent_s: float = inf  # from here on it hangs and says nothing
    spike_s: float = inf
    slow_s: tuple[float, float] | None = None  # from, until
    said: Said = ()  # every line of its log, where these are known beforehand

    def stretched(self, work_s: float) -> float:
        """When work that would be done at `work_s` is done, with the time that a slow GPU costs."""
        if self.slow_s is None or work_s <= self.slow_s[0]:
            return work_s
        since, until = self.slow_s
        slowly = since + (work_s - since) * SLOWDOWN
        return slowly if slowly <= until else work_s + (until - since) * (1 - 1 / SLOWDOWN)

    def is_slow(self, at_s: float) -> bool:
        return self.slow_s is not None and self.slow_s[0] <= at_s < self.slow_s[1]


class BadHint(ValueError):
    """A SIM_ variable that cannot be understood; the sentence names it."""


def play_of(job: Job, *, seed: int, speed: float, trial_speed: float = 1.0) -> Play:
    """What the job is to do, and then what befell it, in the order in which it did."""
    play = _planned(job, seed=seed, speed=speed, trial_speed=trial_speed)
    for blow in sorted(job.blows, key=lambda blow: blow.at):
        play = _struck(play, blow, max(blow.at - job.began_at, 0.0), job.began_at)
    return play


def _planned(job: Job, *, seed: int, speed: float, trial_speed: float) -> Play:
    environment = job.request.environment
    dice = f"{seed}:{job.request.comment or job.id}"
    kind = _kind(environment.get("ACME_KIND", ""))
    if trial := course(environment, job.request.gpus_per_node > 0, dice, trial_speed):
        return Play(
            kind=kind,
            duration_s=trial.ends_s,
            planned_s=trial.ends_s,
            state=State.COMPLETED,
            exit=Exit(),
            dice=dice,
            said=trial.said,
            culprit=_somewhere(Random(dice), job),
        )
    random, gpus = Random(dice), job.request.node_count * job.request.gpus_per_node
    duration = random.lognormvariate(log(HABITS[kind].median_s), HABITS[kind].spread)
    state, ended, cause = _drawn_end(random, HABITS[kind])
    if TEST in environment:  # it fails where something is broken, and for no reason of its own
        duration, state, ended, cause = TEST_S * speed, State.COMPLETED, Exit(), ""
    if hint := environment.get("SIM_END"):
        ends = hint.split(",")
        state, ended, cause = _end(ends[min(_tries_before(job), len(ends) - 1)])
    if state == State.FAILED and not cause:
        reason = draw(random, kind, gpus)
        cause, duration = reason.name, min(duration, after_s(random, reason))
    hinted = _duration(environment.get("SIM_DURATION_S", ""))
    duration = max(duration / speed, SHORTEST_S) if hinted is None else hinted
    return Play(
        kind=kind,
        duration_s=inf if state == State.TIMEOUT else duration,
        planned_s=inf if state == State.TIMEOUT else duration,
        state=state,
        exit=ended,
        cause=cause,
        loss=environment.get("SIM_LOSS", ""),
        dice=dice,
        culprit=_somewhere(random, job),
    )


def _somewhere(random: Random, job: Job) -> tuple[str, int] | None:
    """On which of its GPUs a drawn failure shows."""
    places = [(node, gpu) for node in job.nodes for gpu in job.gpus.get(node, ())]
    return random.choice(places) if places else None


def _struck(play: Play, blow: Blow, at_s: float, began_at: float) -> Play:
    if at_s >= play.duration_s or play.silent_s < inf:
        return play
    where = (blow.node, blow.gpu) if blow.node else play.culprit
    match blow.kind:
        case Breakage.LOSS:
            return replace(play, spike_s=min(play.spike_s, at_s))
        case Breakage.SLOW if play.slow_s is None:
            slow = replace(play, slow_s=(at_s, blow.until - began_at))
            return replace(slow, duration_s=slow.stretched(play.duration_s))
        case Breakage.HANG:
            return replace(play, silent_s=at_s, duration_s=inf, state=State.TIMEOUT, exit=Exit(), culprit=where)
    if blow.kind not in REASON_OF:
        return play
    return replace(
        play, duration_s=at_s, state=State.FAILED, exit=Exit(code=1), cause=REASON_OF[blow.kind], culprit=where
    )


def check_hints(environment: Mapping[str, str]) -> None:
    """Raise BadHint where a SIM_ variable makes no sense, before the job is taken."""
    _duration(environment.get("SIM_DURATION_S", ""))
    for hint in filter(None, environment.get("SIM_END", "").split(",")):
        _end(hint)


def _tries_before(job: Job) -> int:
    """By the key of its attempt, `acme:ID.NUMBER`; others have one."""
    number = job.request.comment.rpartition(".")[2]
    return max(int(number) - 1, 0) if job.request.comment.startswith("acme:") and number.isdigit() else 0


def _kind(text: str) -> Kind:
    return Kind(text) if text in set(Kind) else Kind.OTHER


def _drawn_end(random: Random, habit: Habit) -> tuple[State, Exit, str]:
    fails = random.random() < habit.fails
    return (State.FAILED, Exit(code=1), "") if fails else (State.COMPLETED, Exit(), "")


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
    """`COMPLETED`, `FAILED:<exit code>[:<reason>]`, `OUT_OF_MEMORY`, `NODE_FAIL`, `TIMEOUT` (never ends by itself).

    A failure without a reason gets one from the table, by the kind and size of the job.
    """
    word, _, rest = text.partition(":")
    code, _, cause = rest.partition(":")
    if word == State.FAILED and (not code or code.isdigit()) and (not cause or cause in NAMES):
        return State.FAILED, Exit(code=int(code or 1) & 0xFF or 1), cause
    if word in (State.COMPLETED, State.OUT_OF_MEMORY, State.NODE_FAIL, State.TIMEOUT) and not rest:
        state = State(word)
        return state, EXIT_OF_END.get(state, Exit()), CAUSE_OF_END.get(state, "")
    raise BadHint(f"SIM_END: {text!r:.40} is no end; FAILED:1, FAILED:1:{next(iter(REASONS))} and COMPLETED are")


class Opening(StrEnum):
    """Whether a played job may begin."""

    READY = "ready"
    BAD_PATH = "bad path"  # its log is not where we may write to
    STARTED_BEFORE = "started before"  # another job has started the same attempt


class Stage(Protocol):
    """Where a played job's words go."""

    def open(self, job: Job, play: Play) -> Opening:
        """Begin its log and its attempt record."""
        ...

    def reopen(self, job: Job, play: Play) -> None: ...

    def rewrite(self, job: Job, play: Play) -> None:
        """It goes on by another play; what is written stays."""
        ...

    def dump(self, job_id: int, now: float) -> None:
        """Its ranks were asked where they stand."""
        ...

    def close(self, job_id: int, until: float, last_words: str = "") -> None: ...

    def record_exit(self, job: Job, at: float, code: int) -> None:
        """The last action of its batch script."""
        ...


class NoStage:
    """For worlds that nobody reads."""

    def open(self, job: Job, play: Play) -> Opening:
        return Opening.READY

    def reopen(self, job: Job, play: Play) -> None:
        return

    def rewrite(self, job: Job, play: Play) -> None:
        return

    def dump(self, job_id: int, now: float) -> None:
        return

    def close(self, job_id: int, until: float, last_words: str = "") -> None:
        return

    def record_exit(self, job: Job, at: float, code: int) -> None:
        return


class PlayHands:
    """The hands of a simulated cluster: they know every end beforehand."""

    def __init__(
        self,
        *,
        seed: int = 0,
        speed: float = 1.0,
        trial_speed: float = 1.0,
        stage: Stage | None = None,
        effects: Effects | None = None,
    ) -> None:
        self._seed, self._speed, self._trial_speed = seed, speed, trial_speed
        self._stage, self._effects = stage or NoStage(), effects or NoEffects()
        self._ends: list[tuple[float, int]] = []
        self._due: dict[int, Ended] = {}
        self._begun: dict[int, Job] = {}  # jobs whose command began and whose end was not polled yet

    def start(self, job: Job, now: float) -> None:
        play = self.play(job)
        match self._stage.open(job, play):
            case Opening.READY:
                self._effects.started(job, job.began_at)
                self._begun[job.id] = job
                self._expect_end(job, play)
            case Opening.BAD_PATH:
                self._expect(_failed(job, now, BAD_OUTPUT, "JobLaunchFailure"))
            case Opening.STARTED_BEFORE:
                self._expect(_failed(job, now, REFUSED, "NonZeroExitCode"))

    def adopt(self, job: Job, now: float) -> None:
        play = self.play(job)
        if job.completing:
            self._adopt_completing(job, play)
            return
        self._begun[job.id] = job
        self._stage.reopen(job, play)
        self._expect_end(job, play)

    def _adopt_completing(self, job: Job, play: Play) -> None:
        """One that ended, or was being stopped, when the server was killed: it ends as it would have ended."""
        if job.began_at and job.began_at + play.duration_s <= job.ended_at + _grace_s(job.exit.signal):
            self._begun[job.id] = job
            self._expect(replace(_end_of(job, play), lost_node="", broke=None))  # the node was lost before
            return
        if job.began_at and job.exit not in (BAD_OUTPUT, REFUSED):
            self._begun[job.id] = job
        self._expect(Ended(job_id=job.id, at=job.ended_at + GRACE_S, state=job.state, exit=job.exit))

    def signal(self, job: Job, number: int, now: float, aim: Aim = Aim.ALL) -> None:
        """TERM and KILL end a played job. One that hangs says where its ranks stand, at the signal that its program
        expects for that; a campaign's trial gives way at USR1; at any other they shrug."""
        if number == _asks_for_stacks(job) and now - job.began_at >= self.play(job).silent_s:
            self._stage.dump(job.id, now)
            return
        known = self._due.get(job.id)
        if number == SIGUSR1 and known is not None and (ends_s := self._gives_way_s(job, now)) is not None:
            self._expect(replace(known, at=min(job.began_at + ends_s + SHORTEST_S, known.at)))
            return
        if number not in (TERM, KILL) or known is None or known.at <= now + _grace_s(number):
            return
        self._stage.close(job.id, now, _last_words(job))
        self._expect(Ended(job_id=job.id, at=now + GRACE_S, state=job.state, exit=Exit(signal=number)))

    def _gives_way_s(self, job: Job, now: float) -> float | None:
        play = self.play(job)
        moments = [play.stretched(at_s) for at_s, _ in play.said]
        return gives_way_s(job.request.environment, moments, now - job.began_at)

    def struck(self, job: Job, now: float) -> None:
        play = self.play(job)
        self._stage.rewrite(job, play)
        self._expect_end(job, play)

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
                self._tell_end(ended[-1])
        return ended

    def _tell_end(self, ended: Ended) -> None:
        if job := self._begun.pop(ended.job_id, None):
            code = _recorded_code(ended)
            if code is not None:
                self._stage.record_exit(job, ended.at, code)
            self._effects.ended(job, ended.at, _exit_of_processes(ended))

    def play(self, job: Job) -> Play:
        """A job's play; one whose hints are nonsense plays as if it had none."""
        try:
            return self._play(job)
        except BadHint:
            plain = {k: v for k, v in job.request.environment.items() if not k.startswith("SIM_")}
            return self._play(_with_environment(job, plain))

    def _play(self, job: Job) -> Play:
        return play_of(job, seed=self._seed, speed=self._speed, trial_speed=self._trial_speed)

    def _expect_end(self, job: Job, play: Play) -> None:
        if play.duration_s == inf:
            self._due[job.id] = Ended(job_id=job.id, at=inf, state=play.state)
            return
        self._expect(_end_of(job, play))

    def _expect(self, ended: Ended) -> None:
        self._due[ended.job_id] = ended
        heappush(self._ends, (ended.at, ended.job_id))


def _end_of(job: Job, play: Play) -> Ended:
    """How it ends by itself."""
    lost = job.nodes[0] if play.state == State.NODE_FAIL and job.nodes else ""
    reason = "NonZeroExitCode" if play.exit.code else str(_REASONS.get(play.state, "None"))
    at = job.began_at + play.duration_s
    ended = Ended(job_id=job.id, at=at, state=play.state, exit=play.exit, reason=reason, lost_node=lost)
    return replace(ended, broke=_broke(play, at))


def _grace_s(number: int) -> float:
    """How long after a signal the job may still come to an end by itself."""
    return 0.0 if number == KILL else GRACE_S


def _failed(job: Job, at: float, ended: Exit, reason: str) -> Ended:
    return Ended(job_id=job.id, at=at, state=State.FAILED, exit=ended, reason=reason)


def _exit_of_processes(ended: Ended) -> Exit:
    """What the kernel saw of it. The controller's exit says less: nothing of a lost node, and 125 of lost memory."""
    if ended.state in KILLED_STATES and ended.exit == EXIT_OF_END[ended.state]:
        return Exit(signal=KILL)
    return ended.exit


def _recorded_code(ended: Ended) -> int | None:
    """What its batch script would write down; None where KILL or the loss of its node leaves it no time for that."""
    if ended.state == State.OUT_OF_MEMORY:
        return 128 + KILL  # the command alone was killed
    seen = _exit_of_processes(ended)
    if seen.signal:
        return None if seen.signal == KILL else 128 + seen.signal
    return seen.code


def _broke(play: Play, at: float) -> Blow | None:
    """The machine's side of an end that the failure table drew; a blow from outside is known already."""
    breaks = REASONS[play.cause].breaks if play.cause in REASONS else None
    if breaks is None or play.culprit is None:
        return None
    node, gpu = play.culprit
    return Blow(kind=breaks, at=at, until=at, node=node, gpu=gpu if breaks in XID_OF else -1)


def _asks_for_stacks(job: Job) -> int | None:
    word = job.request.environment.get("ACME_STACKS", "").removeprefix("B:")
    return int(Signals[f"SIG{word}"]) if f"SIG{word}" in Signals.__members__ else None


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
