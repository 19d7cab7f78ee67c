from django.urls import path, register_converter

from failures.api import channels, decisions, diagnoses, figures, incidents, rules, stacks
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
    path("incidents/<incident_number:incident>/decisions/", decisions.Decisions.as_view()),
    path("incidents/<incident_number:incident>/decisions/<incident_number:decision>/", decisions.OneDecision.as_view()),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/approve/",
        decisions.ApproveDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/decline/",
        decisions.DeclineDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/undo/",
        decisions.UndoDecision.as_view(),
    ),
    path(
        "incidents/<incident_number:incident>/decisions/<incident_number:decision>/replay/", decisions.Replay.as_view()
    ),
    path("overrides/", decisions.ManualOverrideList.as_view()),
    path("overrides/<incident_number:override>/lift/", decisions.LiftManualOverride.as_view()),
    path("channels/", channels.Channels.as_view()),
    path("channels/<incident_number:channel>/", channels.OneChannel.as_view()),
    path("channels/<incident_number:channel>/remove/", channels.RemoveChannel.as_view()),
    path("recovery/modes/", decisions.Modes.as_view()),
    path("diagnoses/<attempt_key:attempt>/similar/", rules.Similar.as_view()),
    path("rules/", rules.Rules.as_view()),
    path("rules/<slug:rule>/", rules.OneRule.as_view()),
    path("rules/<slug:rule>/adopt/", rules.AdoptRule.as_view()),
    path("rules/<slug:rule>/retire/", rules.RetireRule.as_view()),
    path("failures/statistics/", figures.FailureStatistics.as_view()),
]
