"""Quasi-shortest service first with the whole predictor of Helios (SC'21): the rolling estimate, blended with trees.

The trees are a model trained on the jobs that have ended, as the paper does; `blending` says how they differ from the
paper's.
"""

from __future__ import annotations

from scheduling.engine.blending import BlendedPredictor
from scheduling.engine.policies.qssf import QssfRules
from scheduling.engine.predicting import Predictor


class QssfMlRules(QssfRules):
    name = "qssf-ml"

    def __init__(self, predictor: Predictor | None = None) -> None:
        super().__init__(predictor or BlendedPredictor())
