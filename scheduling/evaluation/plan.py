"""The plan of a campaign: a simulation of its work queue with the estimated costs.

The plan is not binding. Free GPUs take work from the queue, which knows the measured costs. The plan is shown to users
and compared with the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from scheduling.evaluation.dispatch import DatasetSlice, DatasetTask, WorkQueue
from scheduling.evaluation.simulate import EvaluationSimulator, SimulatedTrial, SimulationOutcome, TrialPiece
from scheduling.evaluation.work import EvaluationSite, PhaseCosts

PieceOf = Callable[[DatasetSlice, DatasetTask], TrialPiece]


class WorkQueueSource:
    """Trials that take slices from the queue until their checkpoint has no work left."""

    def __init__(self, tasks: Sequence[DatasetTask], site: EvaluationSite, piece_of: PieceOf) -> None:
        self._tasks = tasks
        self._line = WorkQueue(tasks, site)
        self._piece_of = piece_of

    def trial(self, node: int) -> SimulatedTrial | None:
        checkpoint = self._line.checkpoint_for(node)
        if checkpoint is None:
            return None
        return SimulatedTrial(checkpoint=checkpoint, more=partial(self._next_piece, checkpoint))

    def record_piece(self, piece: TrialPiece) -> None:
        assert isinstance(piece.handle, DatasetSlice)
        self._line.record_cost(piece.handle, piece.cost)

    def _next_piece(self, checkpoint: int) -> TrialPiece | None:
        taken = self._line.take(checkpoint)
        return self._piece_of(taken, self._tasks[taken.task]) if taken else None


def simulate_campaign(
    tasks: Sequence[DatasetTask], names: Sequence[str], site: EvaluationSite, phases: PhaseCosts, *, chart: bool = False
) -> SimulationOutcome:
    """Simulate the campaign. `names` are those of the datasets. 500 checkpoints of 63 datasets take a few seconds."""

    def expected_piece(taken: DatasetSlice, task: DatasetTask) -> TrialPiece:
        cost = task.prior.times(taken.samples / task.samples)
        return TrialPiece(name=names[task.dataset], cost=cost, handle=taken)

    return EvaluationSimulator(
        site, phases, WorkQueueSource(tasks, site, expected_piece), staged=True, off_gpu=True, chart=chart
    ).run()
