from scheduling.api import campaigns, evaluation_rules, explain, ledger, simulations

urlpatterns = [
    *explain.urlpatterns,
    *simulations.urlpatterns,
    *ledger.urlpatterns,
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
