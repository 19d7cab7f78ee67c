from django.urls import path

from failures.api.urls import AttemptKey, IncidentNumber  # noqa: F401 (importing them registers the converters)
from failures.pages import channels, incidents, map, model_settings, node_list, rules
from failures.recovery import pages as recovery
from jobs.web.list_table import choose_columns

urlpatterns = [
    path("failures/", incidents.incident_list, name="failures"),
    path("failures/columns/", choose_columns, {"spec": incidents.INCIDENT_TABLE}, name="incidents-columns"),
    path("failures/programs/columns/", choose_columns, {"spec": incidents.PROGRAM_TABLE}, name="programs-columns"),
    path("failures/rules/", rules.rule_list, name="rules"),
    path("failures/rules/<slug:name>/<slug:verb>/", rules.rule_verb, name="rule-verb"),
    path("failures/paste/", incidents.paste_log, name="paste-log"),
    path("failures/diagnoses/<attempt_key:attempt>/", incidents.review_diagnosis, name="review"),
    path("failures/<incident_number:number>/", incidents.incident_detail, name="incident"),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/replay/",
        recovery.decision_replay_page,
        name="decision-replay",
    ),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/new-job/",
        recovery.changed_job_form,
        name="decision-new-job",
    ),
    path(
        "failures/<incident_number:number>/decisions/<incident_number:decision>/<slug:verb>/",
        recovery.decision_verb,
        name="decision-verb",
    ),
    path("failures/overrides/<incident_number:override>/lift/", recovery.lift_override, name="override-lift"),
    path("failures/<incident_number:number>/<slug:verb>/", incidents.incident_verb, name="incident-verb"),
    path("nodes/", node_list.node_list_page, name="nodes"),
    path("nodes/columns/", choose_columns, {"spec": node_list.NODE_TABLE}, name="nodes-columns"),
    path("settings/notifications/", channels.channel_list, name="channels"),
    path("settings/notifications/add/", channels.create_channel, name="channel-add"),
    path("settings/notifications/<incident_number:number>/", channels.channel_detail, name="channel"),
    path("settings/notifications/<incident_number:number>/<slug:verb>/", channels.channel_verb, name="channel-verb"),
    path("settings/recovery/", recovery.recovery_modes, name="recovery-modes"),
    path("settings/recovery/set/", recovery.set_mode, name="recovery-mode-set"),
    path("settings/recovery/<incident_number:number>/", recovery.change_mode, name="recovery-mode"),
    path("settings/model/", model_settings.model_settings_page, name="model"),
    path("map/<slug:cluster>/errors/", map.map_errors, name="map-errors"),
    path("map/<slug:cluster>/events/", map.map_event_marks, name="map-events"),
    path("jobs/<slug:public_id>/diagnosis/", incidents.job_diagnosis, name="job-diagnosis"),
]
