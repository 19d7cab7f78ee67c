"""Replays a policy that decides the width and the nodes of each job, once in every round.

A job whose places change loses the time of a restart and no progress. Within a round its speed may change, where an
epoch ends. Pure and reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.traces.trace import Floats
from scheduling.event_queue import EventQueue
from scheduling.research.widths.jobs import ElasticModel
from scheduling.research.widths.values import NOWHERE, Places, WidthJob, WidthPolicy, WidthView, width

MAX_IDLE_ROUNDS = 1000  # in which jobs wait and none runs


@dataclass(frozen=True, kw_only=True)
class ElasticJob:
    submit_s: float
    gpus: int  # what its user asked for
    models: tuple[ElasticModel, ...]  # one for each type of GPUs; they remember what they measured: serve one replay
    restart_s: float | None = None  # default: that of the setting
    deadline_s: float = math.inf  # when it should have ended


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes with GPUs of one type."""

    nodes: int
    node_gpus: int
    gpu_type: str = ""

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus


@dataclass(frozen=True, kw_only=True)
class ElasticSetting:
    groups: tuple[NodeGroup, ...]
    round_s: float = 60.0
    restart_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class ElasticOutcome:
    ended_s: Floats  # one entry per job, in order of submission; NaN if the policy refused it
    restarts: int
    busy_gpu_s: float
    rounds: int


@dataclass
class _ActiveJob:
    """The state of a job that has been submitted and has not ended."""

    number: int
    job: ElasticJob
    restart_s: float
    group: int = 0  # where it runs, or ran last
    places: Places = NOWHERE
    progress: float = 0.0
    attained_gpu_s: float = 0.0
    restarts: int = -1
    restart_left_s: float = 0.0

    @property
    def model(self) -> ElasticModel:
        return self.job.models[self.group]

    def move(self, group: int, places: Places) -> None:
        if (group, places) != (self.group, self.places):
            self.group, self.places = group, places
            self.restart_left_s = self.restart_s
            self.restarts += bool(places)

    def advance(self, seconds: float) -> float:
        """Run for this time. Returns the time that is left if the job ends before, or 0."""
        waited = min(self.restart_left_s, seconds)
        self.restart_left_s -= waited
        left = self._train(seconds - waited) if self.places else 0.0
        self.attained_gpu_s += (seconds - left) * width(self.places)
        return left

    @property
    def has_ended(self) -> bool:
        return self.progress >= self.model.work

    def _train(self, seconds: float) -> float:
        spread = tuple(gpus for _, gpus in self.places)
        while seconds > 0 and not self.has_ended:
            speed = self.model.speed(spread, self.progress)
            until = self.model.next_change(self.progress)
            took = (until - self.progress) / speed
            self.progress = until if took <= seconds else self.progress + speed * seconds
            seconds -= min(took, seconds)
        return seconds


class ElasticReplay:
    def __init__(self, jobs: Sequence[ElasticJob], policy: WidthPolicy, setting: ElasticSetting) -> None:
        self._jobs, self._policy, self._setting = jobs, policy, setting
        self._active: list[_ActiveJob] = []
        self._arrived = 0
        self._ended_s = np.full(len(jobs), math.nan)
        self._events = EventQueue()
        self._now = self._busy_gpu_s = 0.0
        self._restarts = self._rounds = self._idle_rounds = 0
        if too_wide := [at for at, job in enumerate(jobs) if job.gpus > max(group.gpus for group in setting.groups)]:
            raise ValueError(f"Job {too_wide[0]} needs more GPUs than any group of nodes has.")

    def run(self) -> ElasticOutcome:
        self._plan_round(0.0)
        self._events.run()
        return ElasticOutcome(
            ended_s=self._ended_s, restarts=self._restarts, busy_gpu_s=self._busy_gpu_s, rounds=self._rounds
        )

    def _plan_round(self, time_s: float) -> None:
        """Plan the next round, unless all jobs have ended: at this time, or if no job is active, once one has come."""
        if not self._active:
            if self._arrived == len(self._jobs):
                return
            round_s = self._setting.round_s
            time_s = max(time_s, math.ceil(self._jobs[self._arrived].submit_s / round_s) * round_s)
        self._events.at(time_s, self._run_round)

    def _run_round(self, _: None, now: float) -> None:
        self._now = now
        self._admit()
        self._place()
        self._advance()
        self._plan_round(now + self._setting.round_s)

    def _admit(self) -> None:
        while self._arrived < len(self._jobs) and self._jobs[self._arrived].submit_s <= self._now:
            job = self._jobs[self._arrived]
            restart_s = self._setting.restart_s if job.restart_s is None else job.restart_s
            self._active.append(_ActiveJob(self._arrived, job, restart_s))
            self._arrived += 1

    def _place(self) -> None:
        views = self._views()
        if refused := self._policy.refused(views):
            self._active = [run for run in self._active if run.number not in refused]
            views = self._views()
        decided = self._policy.places_by_type(views)
        if any(min(view.free(places.values())) < 0 for view, places in zip(views, decided, strict=True)):
            raise ValueError(f"{self._policy.name} used more GPUs of a node than there are.")
        for run in self._active:
            found = [(number, places[run.number]) for number, places in enumerate(decided) if places.get(run.number)]
            run.move(*(found[0] if found else (run.group, NOWHERE)))
        is_idle = bool(self._active) and not any(run.places for run in self._active)
        self._idle_rounds = self._idle_rounds + 1 if is_idle else 0
        if self._idle_rounds > MAX_IDLE_ROUNDS:
            raise ValueError(f"{self._policy.name} gives no job any GPUs, although jobs wait.")

    def _views(self) -> list[WidthView]:
        return [self._view(number, group) for number, group in enumerate(self._setting.groups)]

    def _view(self, number: int, group: NodeGroup) -> WidthView:
        jobs = tuple(self._width_job(run, number) for run in self._active)
        return WidthView(
            now=self._now, round_s=self._setting.round_s, nodes=group.nodes, node_gpus=group.node_gpus, jobs=jobs
        )

    def _width_job(self, run: _ActiveJob, group: int) -> WidthJob:
        model = run.job.models[group]
        return WidthJob(
            number=run.number,
            age_s=self._now - run.job.submit_s,
            attained_gpu_s=run.attained_gpu_s,
            restarts=max(0, run.restarts),
            restart_s=run.restart_s,
            is_restarting=bool(run.places) and run.restart_left_s > 0,
            requested=run.job.gpus,
            widest=model.widest,
            places=run.places if run.group == group else NOWHERE,
            forecast=model.forecast(run.progress),
            deadline_s=run.job.deadline_s,
        )

    def _advance(self) -> None:
        for run in self._active:
            left = run.advance(self._setting.round_s)
            self._busy_gpu_s += (self._setting.round_s - left) * width(run.places)
            if run.has_ended:
                self._ended_s[run.number] = self._now + self._setting.round_s - left
                self._restarts += run.restarts
        self._active = [run for run in self._active if not run.has_ended]
        self._rounds += 1


def replay_elastic(jobs: Sequence[ElasticJob], policy: WidthPolicy, setting: ElasticSetting) -> ElasticOutcome:
    """Replay the jobs, which are in order of submission, until all have ended."""
    return ElasticReplay(jobs, policy, setting).run()
