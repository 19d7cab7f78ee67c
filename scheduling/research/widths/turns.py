"""Jobs at the widths that their users ask for take turns on the GPUs, each for a fraction of the time.

Every round adds its fraction to the rounds that are due to a job, and a round in which it runs takes 1 away. The job to
which most is due goes first; among equal ones, one that is running, because it needs no restart. GPUs that are left go
to others. What they run before their time counts as one round at most, or they would wait long once their fraction
grows.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.research.widths.placing import spread_places
from scheduling.research.widths.values import Places, WidthJob, WidthPolicy, WidthView

MOST_BEHIND = -1.0  # rounds


class TakeTurns(WidthPolicy):
    def __init__(self) -> None:
        self._due: dict[int, float] = {}

    def fractions(self, view: WidthView) -> Mapping[int, float]:
        """The fraction of time of each job, by number."""
        raise NotImplementedError

    def places(self, view: WidthView) -> dict[int, Places]:
        return spread_places(view, self.next_widths(view))

    def next_widths(self, view: WidthView) -> dict[int, int]:
        """The requested widths of the jobs that run in the next round."""
        fractions = self.fractions(view)
        self._due = {job.number: self._due.get(job.number, 0.0) + fractions.get(job.number, 0.0) for job in view.jobs}
        widths = fitting_widths(view, sorted(view.jobs, key=self._turn))
        for number in widths:
            self._due[number] = max(MOST_BEHIND, self._due[number] - 1.0)
        return widths

    def _turn(self, job: WidthJob) -> tuple[float, bool, int]:
        return -self._due[job.number], not job.places, job.number


class EqualTime(TakeTurns):
    """Gandiva-Fair (EuroSys'20) on GPUs of one type: all jobs get the same time, whatever their width."""

    name = "gandiva-fair"

    def fractions(self, view: WidthView) -> dict[int, float]:
        part = min(1.0, view.gpus / max(1, sum(job.requested for job in view.jobs)))
        return {job.number: part for job in view.jobs}


def fitting_widths(view: WidthView, ordered: list[WidthJob]) -> dict[int, int]:
    """The requested widths of the jobs that fit, in this order."""
    left = view.gpus
    widths: dict[int, int] = {}
    for job in ordered:
        if job.requested <= left:
            widths[job.number] = job.requested
            left -= job.requested
    return widths


def equal_part(view: WidthView, gpus: int = 1) -> float:
    """The fraction of time in which a job of this width uses an equal part of all GPUs."""
    return min(1.0, view.gpus / len(view.jobs) / gpus)


def seconds_left(view: WidthView, job: WidthJob) -> float:
    return job.forecast.seconds_left(job.requested, view.fewest_nodes(job.requested))
