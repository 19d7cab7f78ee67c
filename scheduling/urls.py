from django.urls import path, re_path

from scheduling import (
    campaign_views,
    cluster_views,
    evaluation_rule_views,
    maintenance_views,
    queue_views,
    replay_views,
    report_views,
    views,
)

urlpatterns = [
    path("queue/", queue_views.queue, name="queue"),
    path("queue/<slug:cluster>/policy/", queue_views.policy, name="policy"),
    path("queue/<slug:cluster>/maintenance/", maintenance_views.declare, name="maintenance-declare"),
    path("queue/<slug:cluster>/maintenance/<int:number>/", maintenance_views.maintenance, name="maintenance"),
    path("queue/<slug:cluster>/maintenance/<int:number>/end/", maintenance_views.move_end, name="maintenance-end"),
    path("queue/<slug:cluster>/maintenance/<int:number>/cancel/", maintenance_views.cancel, name="maintenance-cancel"),
    path("jobs/<slug:public_id>/why/", views.why_it_waits, name="why"),
    path("evaluations/", campaign_views.campaigns, name="campaigns"),
    path("evaluations/rules/", evaluation_rule_views.rules, name="evaluation-rules"),
    re_path(
        r"^evaluations/rules/(?P<pk>[1-9][0-9]{0,17})/(?P<verb>on|off|remove)/$",
        evaluation_rule_views.change,
        name="evaluation-rule-verb",
    ),
    path("evaluations/<slug:public_id>/", campaign_views.campaign, name="campaign"),
    path("evaluations/<slug:public_id>/cancel/", campaign_views.cancel, name="campaign-cancel"),
    path("evaluations/<slug:public_id>/retry/", campaign_views.retry, name="campaign-retry"),
    path("settings/clusters/", cluster_views.clusters, name="clusters"),
    path("settings/clusters/add/", cluster_views.add, name="cluster-add"),
    path("settings/clusters/of/<slug:name>/", cluster_views.cluster, name="cluster"),
    path("reports/", report_views.reports, name="reports"),
    path("reports/bar/", report_views.bar, name="ledger-bar"),
    path("reports/gpu-hours.csv", report_views.as_csv, name="report-csv"),
    path("reports/export/", report_views.export, name="report-export"),
    path("what-if/", replay_views.replays, name="replays"),
    path("what-if/compare/", replay_views.compare, name="compare"),
    re_path(r"^what-if/export\.(?P<form>json|csv)$", replay_views.export, name="replay-export"),
    path("what-if/<slug:public_id>/", replay_views.replay, name="replay"),
    path("what-if/<slug:public_id>/cancel/", replay_views.cancel, name="replay-cancel"),
]
