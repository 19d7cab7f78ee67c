from django.urls import path, register_converter

from failures.api import channels, diagnoses, figures, incidents, rules, stacks
from failures.recovery import api as recovery
from jobs.api.urls import PublicId


class AttemptKey(PublicId):
    regex = PublicId.regex + r"\.[0-9]{1,5}"


class IncidentNumber:
    regex = "[1-9][0-9]{0,17}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


register_converter(AttemptKey, "attempt_key")
register_converter(IncidentNumber, "incident_number")

urlpatterns = [
    path("jobs/<public_id:id>/diagnosis/", diagnoses.JobDiagnosis.as_view()),
    path("diagnoses/", diagnoses.Diagnoses.as_view()),
    path("diagnoses/<attempt_key:attempt>/", diagnoses.OneDiagnosis.as_view()),
    path("attempts/<attempt_key:attempt>/stacks/", stacks.AttemptStacks.as_view()),
    path("diagnose/", diagnoses.Diagnose.as_view()),
    path("incidents/", incidents.Incidents.as_view()),
    path("incidents/<incident_number:incident>/", incidents.OneIncident.as_view()),
    path("incidents/<incident_number:incident>/acknowledge/", incidents.AcknowledgeIncident.as_view()),
    path("incidents/<incident_number:incident>/resolve/", incidents.ResolveIncident.as_view()),
    path("incidents/<incident_number:incident>/decisions/", recovery.Decisions.as_view()),
    path("incidents/<incident_number:incident>/decisions/<incident_number:decision>/", recovery.OneDecision.as_view()),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/approve/",
        recovery.ApproveDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/decline/",
        recovery.DeclineDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/undo/",
        recovery.UndoDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/replay/", recovery.Replay.as_view()
    ),
    path("overrides/", recovery.ManualOverrideList.as_view()),
    path("overrides/<incident_number:override>/lift/", recovery.LiftManualOverride.as_view()),
    path("channels/", channels.Channels.as_view()),
    path("channels/<incident_number:channel>/", channels.OneChannel.as_view()),
    path("channels/<incident_number:channel>/remove/", channels.RemoveChannel.as_view()),
    path("recovery/modes/", recovery.Modes.as_view()),
    path("diagnoses/<attempt_key:attempt>/similar/", rules.Similar.as_view()),
    path("rules/", rules.Rules.as_view()),
    path("rules/<slug:rule>/", rules.OneRule.as_view()),
    path("rules/<slug:rule>/adopt/", rules.AdoptRule.as_view()),
    path("rules/<slug:rule>/retire/", rules.RetireRule.as_view()),
    path("failures/statistics/", figures.FailureStatistics.as_view()),
]
