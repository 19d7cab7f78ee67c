from django.urls import path, register_converter

from jobs.api import (
    clusters,
    events,
    job_metrics,
    jobs,
    logs,
    maintenance,
    nodes,
    progress,
    progress_series,
    saved_views,
)


class PublicId:
    regex = "[0-9a-z]{1,16}(?:_[0-9]{1,7})?"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


class NodeName(PublicId):
    regex = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


register_converter(PublicId, "public_id")
register_converter(NodeName, "node_name")

urlpatterns = [
    path("events/export/", events.EventExport.as_view()),
    path("me/", clusters.Me.as_view()),
    path("clusters/<slug:name>/maintenance/", maintenance.Maintenances.as_view()),
    path("clusters/<slug:name>/maintenance/<int:number>/", maintenance.OneMaintenance.as_view()),
    path("clusters/<slug:name>/maintenance/<int:number>/cancel/", maintenance.CancelMaintenance.as_view()),
    path("clusters/<slug:name>/usage/", clusters.ClusterUsageHistory.as_view()),
    path("teams/", clusters.Teams.as_view()),
    path("teams/<slug:name>/", clusters.OneTeam.as_view()),
    path("quotas/", clusters.Quotas.as_view()),
    path("jobs/", jobs.Jobs.as_view()),
    path("jobs/bulk/", jobs.BulkJobs.as_view()),
    path("jobs/actions/", jobs.BulkJobActions.as_view()),
    path("jobs/actions/<int:number>/", jobs.BulkJobActionProgress.as_view()),
    path("jobs/<public_id:id>/", jobs.OneJob.as_view()),
    path("jobs/<public_id:id>/attempts/", jobs.JobAttempts.as_view()),
    path("jobs/<public_id:id>/events/", jobs.JobEvents.as_view()),
    path("jobs/<public_id:id>/progress/", progress_series.JobProgress.as_view()),
    path("jobs/<public_id:id>/metrics/", job_metrics.JobMetrics.as_view()),
    path("jobs/<public_id:id>/checkpoints/", progress_series.JobCheckpoints.as_view()),
    path("jobs/<public_id:id>/checkpoint-advice/", progress_series.JobCheckpointAdvice.as_view()),
    path("checkpoints/", progress_series.Checkpoints.as_view()),
    path("jobs/<public_id:id>/log/", logs.JobLog.as_view()),
    path("jobs/<public_id:id>/log/follow/", logs.FollowJobLog.as_view()),
    *[path(f"jobs/<public_id:id>/{name}/", view.as_view()) for name, view in jobs.JOB_ACTION_ENDPOINTS.items()],
    path("views/", saved_views.Views.as_view()),
    path("views/<int:view>/", saved_views.OneView.as_view()),
    path("views/<int:view>/remove/", saved_views.RemoveView.as_view()),
    path("progress/", progress.ReportProgress.as_view()),
    path("nodes/", nodes.Nodes.as_view()),
    path("nodes/<node_name:cluster>/<node_name:name>/", nodes.OneNode.as_view()),
    path("nodes/<node_name:cluster>/<node_name:name>/drain/", nodes.DrainNode.as_view()),
    path("nodes/<node_name:cluster>/<node_name:name>/resume/", nodes.ResumeNode.as_view()),
    path("nodes/<node_name:cluster>/<node_name:name>/test/", nodes.TestNode.as_view()),
    path("nodes/<node_name:cluster>/<node_name:name>/burn-in/", nodes.BurnInNode.as_view()),
]
