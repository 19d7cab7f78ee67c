"""API of energy: what a job used, by attempt."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.response import Response

from jobs.models import TokenScope
from jobs.rest.endpoint import ApiEndpoint, find_job_or_404, reject_unknown_params
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, integer_field, nested_list_field, number_field, text_field
from scheduling.power.reads.energy import attempt_energy, energy_document
from scheduling.power.rules.energy_use import total_use

ENERGY_FIELDS = {
    "kwh": number_field("Energy of the GPUs, and of their nodes where node power is measured.", nullable=True),
    "estimated_kwh": number_field("How much of it is estimated from the GPU model and its utilization.", nullable=True),
    "host_kwh": number_field("How much of it the nodes used beside their GPUs.", nullable=True),
    "energy_cost": number_field("Null if an hour with energy has no price.", nullable=True),
    "co2_kg": number_field("Null if an hour with energy has no carbon intensity.", nullable=True),
    "energy_basis": text_field("Whether the energy was measured or estimated. Empty without energy."),
}
ATTEMPT_ENERGY_SHAPE = ResourceShape("AttemptEnergy", {"attempt": integer_field(low=1), **ENERGY_FIELDS})
JOB_ENERGY_SHAPE = ResourceShape(
    "JobEnergy",
    {
        **ENERGY_FIELDS,
        "attempts": nested_list_field(ATTEMPT_ENERGY_SHAPE, "Attempts without energy have nulls."),
    },
)


class JobEnergyEndpoint(ApiEndpoint):
    """The energy of a job."""

    tag = "Jobs"
    rules = {
        "GET": EndpointRule(
            scope=TokenScope.READ,
            says="The energy of a job and of each attempt, its cost and CO2. At most two minutes old",
            answer=JOB_ENERGY_SHAPE,
        )
    }

    def get(self, request: Any, id: str) -> Response:
        reject_unknown_params(request)
        job = find_job_or_404(self.caller.jobs(), id)
        attempts = list(job.attempts.order_by("number").values_list("pk", "number"))
        found = attempt_energy([pk for pk, _ in attempts])
        rows = [{"attempt": number} | energy_document(found.get(pk)) for pk, number in attempts]
        return Response(energy_document(total_use(found.values())) | {"attempts": rows})


urlpatterns = [path("jobs/<public_id:id>/energy/", JobEnergyEndpoint.as_view())]
