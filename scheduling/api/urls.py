from scheduling.api import (
    campaigns,
    clusters,
    evaluation_rules,
    explain,
    gpu_speeds,
    ledger,
    team_usage,
)
from scheduling.power.api import budgets, caps, energy, sleeps
from scheduling.whatif.api import policy_preview, simulations, traces

urlpatterns = [
    *clusters.urlpatterns,
    *policy_preview.urlpatterns,
    *explain.urlpatterns,
    *energy.urlpatterns,
    *gpu_speeds.urlpatterns,
    *simulations.urlpatterns,
    *traces.urlpatterns,
    *ledger.urlpatterns,
    *sleeps.urlpatterns,
    *budgets.urlpatterns,
    *caps.urlpatterns,
    *team_usage.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
