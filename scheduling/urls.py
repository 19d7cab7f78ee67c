from django.urls import path, re_path

from scheduling.evaluation.pages import campaigns, evaluation_rules
from scheduling.ledger.pages import characterization, reports, team_usage
from scheduling.pages import clusters, gpu_speeds, job_gpus, maintenance, queue, submit_preview, why_waiting
from scheduling.power.pages import budgets, sleep
from scheduling.whatif.pages import policy_change, replay_results, replays

urlpatterns = [
    path("queue/", queue.queue, name="queue"),
    path("queue/<slug:cluster>/policy/", policy_change.policy, name="policy"),
    path("queue/<slug:cluster>/maintenance/", maintenance.declare, name="maintenance-declare"),
    path("queue/<slug:cluster>/maintenance/<int:number>/", maintenance.maintenance, name="maintenance"),
    path("queue/<slug:cluster>/maintenance/<int:number>/end/", maintenance.move_end, name="maintenance-end"),
    path("queue/<slug:cluster>/maintenance/<int:number>/cancel/", maintenance.cancel, name="maintenance-cancel"),
    path("sleeping/<slug:cluster>/", sleep.sleeping_nodes, name="sleeping-nodes"),
    path("sleeping/<slug:cluster>/approve/", sleep.approve_all, name="sleep-approve-all"),
    path("sleeping/<slug:cluster>/<int:number>/<slug:verb>/", sleep.sleep_verb, name="sleep-verb"),
    path("jobs/new/preview/", submit_preview.preview_page, name="submit-preview"),
    path("jobs/<slug:public_id>/why/", why_waiting.wait_page, name="why"),
    path("jobs/<slug:public_id>/gpus/", job_gpus.job_gpus_fragment, name="job-gpus"),
    path("evaluations/", campaigns.campaigns, name="campaigns"),
    path("evaluations/rules/", evaluation_rules.rules, name="evaluation-rules"),
    re_path(
        r"^evaluations/rules/(?P<pk>[1-9][0-9]{0,17})/(?P<verb>on|off|remove)/$",
        evaluation_rules.change,
        name="evaluation-rule-verb",
    ),
    path("evaluations/<slug:public_id>/", campaigns.campaign, name="campaign"),
    path("evaluations/<slug:public_id>/cancel/", campaigns.cancel, name="campaign-cancel"),
    path("evaluations/<slug:public_id>/retry/", campaigns.retry, name="campaign-retry"),
    path("settings/clusters/", clusters.clusters, name="clusters"),
    path("settings/clusters/add/", clusters.add, name="cluster-add"),
    path("settings/clusters/of/<slug:name>/", clusters.cluster, name="cluster"),
    path("settings/clusters/of/<slug:name>/gpu-speeds/", gpu_speeds.add_speed, name="gpu-speed-add"),
    path("settings/clusters/of/<slug:name>/gpu-speeds/<int:number>/", gpu_speeds.change_speed, name="gpu-speed"),
    path("settings/clusters/of/<slug:name>/power-budgets/", budgets.add_budget, name="power-budget-add"),
    path("settings/clusters/of/<slug:name>/power-budgets/<int:number>/", budgets.change_budget, name="power-budget"),
    path("reports/", reports.reports, name="reports"),
    path("reports/characterization/", characterization.characterization, name="characterization"),
    path("reports/teams/", team_usage.usage_page, name="team-usage"),
    path("reports/teams/usage.csv", team_usage.usage_csv, name="team-usage-csv"),
    path("reports/bar/", reports.usage_bar_fragment, name="ledger-bar"),
    path("reports/gpu-hours.csv", reports.report_csv, name="report-csv"),
    path("reports/export/", reports.export, name="report-export"),
    path("what-if/", replays.replays, name="replays"),
    path("what-if/compare/", replay_results.compare, name="compare"),
    re_path(r"^what-if/export\.(?P<form>json|csv)$", replay_results.export, name="replay-export"),
    re_path(r"^what-if/charts/(?P<key>[a-z]{1,20})\.(?P<form>svg|csv)$", replay_results.chart, name="replay-chart"),
    path("what-if/traces/<int:number>/remove/", replays.remove_trace, name="trace-remove"),
    path("what-if/<slug:public_id>/", replay_results.replay, name="replay"),
    path("what-if/<slug:public_id>/cancel/", replays.cancel, name="replay-cancel"),
]
