from scheduling.api import clusters, explain, gpu_speeds
from scheduling.evaluation.api import campaigns, evaluation_rules
from scheduling.ledger import api as ledger
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
    *campaigns.urlpatterns,
    *evaluation_rules.urlpatterns,
]
