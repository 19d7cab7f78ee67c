from scheduling.api import explain, ledger, simulations

urlpatterns = [*explain.urlpatterns, *simulations.urlpatterns, *ledger.urlpatterns]
