from scheduling.api import campaigns, evaluation_rules, explain, ledger, simulations, traces

urlpatterns = [
    *explain.urlpatterns,
    *simulations.urlpatterns,
    *traces.urlpatterns,
    *ledger.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
