from scheduling.api import campaigns, explain, ledger, simulations

urlpatterns = [
    *explain.urlpatterns,
    *simulations.urlpatterns,
    *ledger.urlpatterns,
    *campaigns.urlpatterns,
]
