from scheduling.api import (
    campaigns,
    clusters,
    energy,
    evaluation_rules,
    explain,
    ledger,
    node_sleeps,
    policy_preview,
    power_caps,
    simulations,
    team_usage,
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
    *node_sleeps.urlpatterns,
    *power_caps.urlpatterns,
    *team_usage.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
