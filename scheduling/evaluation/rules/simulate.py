"""Simulates an evaluation: GPUs, the links of nodes to the storage, and the CPUs that score.

The study uses it for the makespan of a method, and campaigns for their plan. A node's link is shared evenly by all
current transfers; everything else takes the seconds in `SliceCost`. O(slices log slices), without clock and randomness:
errors of estimates are part of the costs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from scheduling.evaluation.rules.work import EvaluationSite, PhaseCosts, SliceCost
from scheduling.event_queue import EventQueue


@dataclass(frozen=True, kw_only=True)
class TrialPiece:
    """Some samples of one dataset, with their real cost."""

    name: str
    cost: SliceCost
    handle: object = None  # identifies the piece for its source


@dataclass(frozen=True, kw_only=True)
class SimulatedTrial:
    """A job on one GPU: it starts the framework, loads the checkpoint, and processes pieces until there are none."""

    checkpoint: int
    more: Callable[[], TrialPiece | None]


class TrialSource(Protocol):
    def trial(self, node: int) -> SimulatedTrial | None:
        """Return the next job for a free GPU of this node."""

    def record_piece(self, piece: TrialPiece) -> None:
        """Record that the inference of a piece has finished."""


@dataclass(frozen=True, kw_only=True)
class GanttBar:
    """One phase in a Gantt chart; `gpu` is -1 for CPU work."""

    node: int
    gpu: int
    phase: str  # stage, start, load, prepare, infer, score
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    makespan_s: float
    gpu_idle_s: float  # time in trials without inference
    gpu_held_s: float
    trials: int
    pieces: int
    bars: tuple[GanttBar, ...] = ()


class SharedLink:
    """Processor sharing: all current transfers get an equal share of the bandwidth.

    `_served` is the volume that each active flow has received since the beginning. A flow ends when `_served` reaches
    its mark, so a change in the number of flows updates only one value.
    """

    def __init__(self, gb_s: float) -> None:
        self._gb_s = gb_s
        self._served = 0.0
        self._at = 0.0
        self._marks: list[tuple[float, int]] = []

    def start_flow(self, now: float, gb: float, flow: int) -> None:
        self._advance_to(now)
        heappush(self._marks, (self._served + gb, flow))

    def next_completion(self) -> float:
        if not self._marks:
            return math.inf
        return self._at + max(self._marks[0][0] - self._served, 0.0) * len(self._marks) / self._gb_s

    def leave(self, now: float) -> int:
        self._advance_to(now)
        return heappop(self._marks)[1]

    def _advance_to(self, now: float) -> None:
        if self._marks:
            self._served += (now - self._at) * self._gb_s / len(self._marks)
        self._at = now


@dataclass(kw_only=True)
class _SimulatedGpu:
    number: int
    node: int
    trial: SimulatedTrial | None = None
    piece: TrialPiece | None = None
    phase: str = ""
    since_s: float = 0.0
    began_s: float = 0.0


@dataclass(kw_only=True)
class _SimulationTotals:
    idle_s: float = 0.0
    held_s: float = 0.0
    trials: int = 0
    pieces: int = 0
    bars: list[GanttBar] = field(default_factory=list)


class EvaluationSimulator:
    def __init__(
        self,
        site: EvaluationSite,
        phases: PhaseCosts,
        source: TrialSource,
        *,
        staged: bool,
        off_gpu: bool,
        chart: bool = False,
    ):
        self._site, self._phases, self._source = site, phases, source
        self._staged, self._off_gpu, self._chart = staged, off_gpu, chart
        self._gpus = [_SimulatedGpu(number=n, node=n // site.gpus_per_node) for n in range(site.gpus)]
        self._links = [SharedLink(site.link_gb_s) for _ in range(site.nodes)]
        self._busy: set[int] = set()  # nodes with transfers
        self._stages: list[dict[int, list[_SimulatedGpu] | None]] = [{} for _ in range(site.nodes)]  # None: copied
        self._flows: list[tuple[int, int] | _SimulatedGpu] = []
        self._events = EventQueue()
        self._scoring = 0
        self._to_score: deque[TrialPiece] = deque()
        self._tally = _SimulationTotals()

    def run(self) -> SimulationOutcome:
        for gpu in self._gpus:
            self._next_trial(gpu, 0.0)
        now = 0.0
        while self._events or self._busy:
            loaded, link = min(
                ((self._links[node].next_completion(), node) for node in self._busy), default=(math.inf, -1)
            )
            if self._events.next_time <= loaded:
                now = self._events.next_time
                self._events.run_until(now)
            else:
                now = loaded
                self._finish_transfer(link, now)
        tally = self._tally
        return SimulationOutcome(
            makespan_s=now,
            gpu_idle_s=tally.idle_s,
            gpu_held_s=tally.held_s,
            trials=tally.trials,
            pieces=tally.pieces,
            bars=tuple(tally.bars),
        )

    # Phases of a trial

    def _next_trial(self, gpu: _SimulatedGpu, now: float) -> None:
        gpu.trial = self._source.trial(gpu.node)
        if gpu.trial is None:
            return
        self._tally.trials += 1
        gpu.began_s = now
        if self._staged:
            self._stage(gpu.node, gpu.trial.checkpoint, now)
        self._run_phase(gpu, "start", self._phases.start, now, self._load)

    def _stage(self, node: int, checkpoint: int, now: float) -> None:
        """Start the copy of a checkpoint with its first trial on the node. Other trials wait for the same copy."""
        if checkpoint in self._stages[node]:
            return
        self._stages[node][checkpoint] = []
        self._start_transfer(node, (node, checkpoint), now)

    def _load(self, gpu: _SimulatedGpu, now: float) -> None:
        self._begin_phase(gpu, "load", now)
        assert gpu.trial
        if not self._staged:
            self._start_transfer(gpu.node, gpu, now)
            return
        waiting = self._stages[gpu.node][gpu.trial.checkpoint]
        if waiting is None:
            self._load_from_host(gpu, now)
        else:
            waiting.append(gpu)

    def _load_from_host(self, gpu: _SimulatedGpu, now: float) -> None:
        self._events.at(now + self._phases.checkpoint_gb / self._site.host_gb_s, self._finish_loading, gpu)

    def _finish_loading(self, gpu: _SimulatedGpu, now: float) -> None:
        self._end_phase(gpu, now)
        self._next_piece(gpu, now)

    def _next_piece(self, gpu: _SimulatedGpu, now: float) -> None:
        assert gpu.trial
        gpu.piece = gpu.trial.more()
        if gpu.piece is None:
            self._tally.held_s += now - gpu.began_s
            self._next_trial(gpu, now)
            return
        self._tally.pieces += 1
        self._run_phase(gpu, "prepare", gpu.piece.cost.prepare, now, self._infer)

    def _infer(self, gpu: _SimulatedGpu, now: float) -> None:
        assert gpu.piece
        self._run_phase(gpu, "infer", gpu.piece.cost.infer, now, self._finish_inference)

    def _finish_inference(self, gpu: _SimulatedGpu, now: float) -> None:
        assert gpu.piece
        self._source.record_piece(gpu.piece)
        if self._off_gpu:
            self._to_score.append(gpu.piece)
            self._start_scorings(now)
            self._next_piece(gpu, now)
        else:
            self._run_phase(gpu, "score", gpu.piece.cost.score, now, self._next_piece)

    # Scoring and transfers

    def _start_scorings(self, now: float) -> None:
        while self._to_score and self._scoring < self._site.nodes * self._site.scorers_per_node:
            piece = self._to_score.popleft()
            self._scoring += 1
            self._add_bar(-1, -1, "score", piece.name, now, now + piece.cost.score)
            self._events.at(now + piece.cost.score, self._finish_scoring)

    def _finish_scoring(self, _: None, now: float) -> None:
        self._scoring -= 1
        self._start_scorings(now)

    def _start_transfer(self, node: int, what: tuple[int, int] | _SimulatedGpu, now: float) -> None:
        self._flows.append(what)
        self._links[node].start_flow(now, self._phases.checkpoint_gb, len(self._flows) - 1)
        self._busy.add(node)

    def _finish_transfer(self, link: int, now: float) -> None:
        what = self._flows[self._links[link].leave(now)]
        if self._links[link].next_completion() == math.inf:
            self._busy.remove(link)
        if isinstance(what, _SimulatedGpu):
            self._finish_loading(what, now)
            return
        node, checkpoint = what
        waiting = self._stages[node][checkpoint] or []
        self._stages[node][checkpoint] = None
        for gpu in waiting:
            self._load_from_host(gpu, now)

    # Events

    def _run_phase(
        self, gpu: _SimulatedGpu, phase: str, seconds: float, now: float, then: Callable[[_SimulatedGpu, float], None]
    ) -> None:
        self._begin_phase(gpu, phase, now)

        def finish_phase(gpu: _SimulatedGpu, later: float) -> None:
            self._end_phase(gpu, later)
            then(gpu, later)

        self._events.at(now + seconds, finish_phase, gpu)

    def _begin_phase(self, gpu: _SimulatedGpu, phase: str, now: float) -> None:
        gpu.phase, gpu.since_s = phase, now

    def _end_phase(self, gpu: _SimulatedGpu, now: float) -> None:
        if gpu.phase != "infer":
            self._tally.idle_s += now - gpu.since_s
        name = gpu.piece.name if gpu.piece and gpu.phase in ("prepare", "infer", "score") else ""
        self._add_bar(gpu.node, gpu.number, gpu.phase, name, gpu.since_s, now)

    def _add_bar(self, node: int, gpu: int, phase: str, name: str, begin_s: float, end_s: float) -> None:
        if self._chart:
            self._tally.bars.append(GanttBar(node=node, gpu=gpu, phase=phase, name=name, begin_s=begin_s, end_s=end_s))
