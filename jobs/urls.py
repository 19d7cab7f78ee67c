from django.urls import path

from jobs import account_views, list_views, many_nodes, map_views, node_views, saved_views, settings_views, views

urlpatterns = [
    path("jobs/", list_views.jobs, name="jobs"),
    path("jobs/export.csv", list_views.as_csv, name="jobs-csv"),
    path("jobs/many/", list_views.on_many, name="jobs-many"),
    path("jobs/views/", list_views.save_view, name="jobs-views"),
    path("jobs/views/<int:pk>/<slug:verb>/", saved_views.change, name="jobs-view"),
    path("jobs/new/", views.submit, name="submit"),
    path("jobs/<slug:public_id>/", views.job, name="job"),
    path("jobs/<slug:public_id>/log/", views.log, name="log"),
    path("jobs/<slug:public_id>/log/lines/", views.log_lines, name="log-lines"),
    path("jobs/<slug:public_id>/log/raw/", views.log_raw, name="log-raw"),
    path("jobs/<slug:public_id>/<slug:name>/", views.job_verb, name="job-verb"),
    path("account/", account_views.account, name="account"),
    path("account/tokens/<int:pk>/revoke/", account_views.revoke, name="token-revoke"),
    path("settings/", settings_views.settings_page, name="settings"),
    path("settings/teams/", settings_views.teams, name="teams"),
    path("settings/teams/add/", settings_views.add_team, name="team-add"),
    path("settings/teams/of/<slug:name>/", settings_views.team, name="team"),
    path("settings/teams/of/<slug:name>/role/", settings_views.set_role, name="team-role"),
    path("settings/teams/of/<slug:name>/title/", settings_views.retitle, name="team-title"),
    path("map/", map_views.map_page, name="map"),
    path("map/<slug:cluster>/data/", map_views.map_data, name="map-data"),
    path("nodes/", node_views.nodes, name="nodes"),
    path("nodes/many/", many_nodes.on_many, name="nodes-many"),
    path("nodes/<str:cluster>/<str:name>/", node_views.node, name="node"),
    path("nodes/<str:cluster>/<str:name>/<slug:verb>/", node_views.node_verb, name="node-verb"),
]
