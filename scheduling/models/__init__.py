from .estimate import LEAD_UNTIL, Estimate, EstimateError, EstimateOutcome, Forecast, Lead
from .lease import Lease
from .simulation import SILENT_AFTER, UNFINISHED, Simulation, SimulationState

__all__ = [
    "LEAD_UNTIL",
    "SILENT_AFTER",
    "UNFINISHED",
    "Estimate",
    "EstimateError",
    "EstimateOutcome",
    "Forecast",
    "Lead",
    "Lease",
    "Simulation",
    "SimulationState",
]
