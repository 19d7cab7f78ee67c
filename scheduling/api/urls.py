from scheduling.api import campaigns, clusters, evaluation_rules, explain, ledger, simulations, traces

urlpatterns = [
    *clusters.urlpatterns,
    *explain.urlpatterns,
    *simulations.urlpatterns,
    *traces.urlpatterns,
    *ledger.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
