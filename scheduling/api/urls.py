from scheduling.api import (
    campaigns,
    clusters,
    energy,
    evaluation_rules,
    explain,
    ledger,
    policy_preview,
    simulations,
    traces,
)

urlpatterns = [
    *clusters.urlpatterns,
    *policy_preview.urlpatterns,
    *explain.urlpatterns,
    *energy.urlpatterns,
    *simulations.urlpatterns,
    *traces.urlpatterns,
    *ledger.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
