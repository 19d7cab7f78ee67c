from scheduling.api import explain, simulations

urlpatterns = [*explain.urlpatterns, *simulations.urlpatterns]
