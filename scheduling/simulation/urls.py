from django.urls import path

from scheduling.simulation.pages import faults, history

urlpatterns = [
    path("simulator/jobs/<slug:public_id>/faults/", faults.break_job, name="job-fault"),
    path("simulator/nodes/<slug:cluster>/<str:name>/faults/", faults.break_node, name="node-fault"),
    path("demo/history/", history.history_progress, name="demo-history"),
]
