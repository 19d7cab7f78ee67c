from .estimate import LEAD_UNTIL, Estimate, EstimateError, EstimateOutcome, Forecast, Lead
from .lease import Lease
from .nodetest import NodeTest, Purpose, TestWorld
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
    "NodeTest",
    "Purpose",
    "Simulation",
    "SimulationState",
    "TestWorld",
]
