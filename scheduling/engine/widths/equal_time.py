"""Gandiva-Fair (EuroSys'20) on GPUs of one type: all jobs get the same time, whatever their width."""

from __future__ import annotations

from scheduling.engine.widths.turns import TakeTurns
from scheduling.engine.widths.values import WidthView


class EqualTime(TakeTurns):
    name = "gandiva-fair"

    def fractions(self, view: WidthView) -> dict[int, float]:
        part = min(1.0, view.gpus / max(1, sum(job.requested for job in view.jobs)))
        return {job.number: part for job in view.jobs}
