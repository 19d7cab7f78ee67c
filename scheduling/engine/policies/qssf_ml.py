"""Quasi-shortest service first with the full predictor of Helios (SC'21): the rolling estimate, blended with trees.

The trees are trained on jobs that have ended, as in the paper; `blending` lists the differences from it.
"""

from __future__ import annotations

from scheduling.engine.blending import BlendedPredictor
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.predicting import Predictor


class QssfMlRules(QssfRules):
    """`qssf` with the blended predictor."""

    name = "qssf-ml"

    def __init__(self, predictor: Predictor | None = None) -> None:
        super().__init__(predictor or BlendedPredictor())
