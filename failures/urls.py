from django.urls import path

from failures import channel_views, decision_views, map_views, mode_views, model_views, rule_views, views
from failures.api.urls import AttemptKey, IncidentNumber  # noqa: F401 (importing them registers the converters)

urlpatterns = [
    path("failures/", views.failures, name="failures"),
    path("failures/rules/", rule_views.rules, name="rules"),
    path("failures/rules/<slug:name>/<slug:verb>/", rule_views.rule_verb, name="rule-verb"),
    path("failures/paste/", views.paste, name="paste-log"),
    path("failures/diagnoses/<attempt_key:attempt>/", views.review, name="review"),
    path("failures/<incident_number:number>/", views.incident, name="incident"),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/replay/",
        decision_views.replay,
        name="decision-replay",
    ),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/new-job/",
        decision_views.new_job,
        name="decision-new-job",
    ),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/<slug:verb>/",
        decision_views.verb,
        name="decision-verb",
    ),
    path("failures/orders/<incident_number:order>/lift/", decision_views.lift, name="order-lift"),
    path("failures/<incident_number:number>/<slug:verb>/", views.incident_verb, name="incident-verb"),
    path("settings/notifications/", channel_views.channels, name="channels"),
    path("settings/notifications/add/", channel_views.add, name="channel-add"),
    path("settings/notifications/<incident_number:number>/", channel_views.channel, name="channel"),
    path("settings/notifications/<incident_number:number>/<slug:verb>/", channel_views.verb, name="channel-verb"),
    path("settings/recovery/", mode_views.modes, name="recovery-modes"),
    path("settings/recovery/set/", mode_views.set_mode, name="recovery-mode-set"),
    path("settings/recovery/<incident_number:number>/", mode_views.change, name="recovery-mode"),
    path("settings/model/", model_views.model, name="model"),
    path("map/<slug:cluster>/errors/", map_views.map_errors, name="map-errors"),
    path("jobs/<slug:public_id>/diagnosis/", views.job_diagnosis, name="job-diagnosis"),
]
