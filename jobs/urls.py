from django.urls import path

from jobs.pages import account, bulk_nodes, job_list, job_log, jobs, map, nodes, saved_views, settings, submit
from jobs.web.list_table import choose_columns

urlpatterns = [
    path("jobs/", job_list.job_list_page, name="jobs"),
    path("jobs/export.csv", job_list.export_csv, name="jobs-csv"),
    path("jobs/columns/", choose_columns, {"spec": job_list.JOB_TABLE}, name="jobs-columns"),
    path("jobs/many/", job_list.bulk_job_action, name="jobs-many"),
    path("jobs/actions/<int:number>/", job_list.bulk_action_page, name="jobs-action"),
    path("jobs/views/", job_list.save_view, name="jobs-views"),
    path("jobs/views/<int:pk>/<slug:verb>/", saved_views.change_view_action, name="jobs-view"),
    path("jobs/new/", submit.submit, name="submit"),
    path("jobs/<slug:public_id>/", jobs.job_page, name="job"),
    path("jobs/<slug:public_id>/log/", job_log.job_log_page, name="log"),
    path("jobs/<slug:public_id>/log/lines/", job_log.log_lines, name="log-lines"),
    path("jobs/<slug:public_id>/log/raw/", job_log.download_log, name="log-raw"),
    path("jobs/<slug:public_id>/resubmit/", submit.resubmit_changed, name="resubmit"),
    path("jobs/<slug:public_id>/<slug:name>/", jobs.job_action_view, name="job-verb"),
    path("account/", account.account_page, name="account"),
    path("account/tokens/<int:pk>/revoke/", account.revoke, name="token-revoke"),
    path("settings/", settings.settings_page, name="settings"),
    path("settings/teams/", settings.team_list_page, name="teams"),
    path("settings/teams/add/", settings.add_team, name="team-add"),
    path("settings/teams/of/<slug:name>/", settings.team_page, name="team"),
    path("settings/teams/of/<slug:name>/role/", settings.set_role, name="team-role"),
    path("settings/teams/of/<slug:name>/title/", settings.change_team_title, name="team-title"),
    path("map/", map.map_page, name="map"),
    path("map/<slug:cluster>/data/", map.map_data_json, name="map-data"),
    path("nodes/many/", bulk_nodes.bulk_node_action, name="nodes-many"),
    path("nodes/<str:cluster>/<str:name>/", nodes.node_page, name="node"),
    path("nodes/<str:cluster>/<str:name>/<slug:verb>/", nodes.node_action_view, name="node-verb"),
]
