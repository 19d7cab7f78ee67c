"""Label and field selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, labels_of, value_at

from .errors import bad_request

Matches = Callable[[JsonObject], bool]

LABEL_KEY = r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
TERMS = (
    (re.compile(rf"({LABEL_KEY})\s+(in|notin)\s*\(\s*([^()]*?)\s*\)"), "set"),
    (re.compile(rf"({LABEL_KEY})\s*(==|=|!=|>|<)\s*({LABEL_VALUE})"), "compare"),
    (re.compile(rf"!\s*({LABEL_KEY})"), "absent"),
    (re.compile(rf"({LABEL_KEY})"), "present"),
)
METADATA_FIELDS = ("metadata.name", "metadata.namespace")
# Fields that may be selected, beside the metadata, by resource
FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "jobs.batch": ("status.successful",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}


@dataclass(frozen=True)
class Requirement:
    """A condition on one label."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt, Lt
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        match self.operator:
            case "Exists":
                return present
            case "DoesNotExist":
                return not present
            case "In":
                return present and labels[self.key] in self.values
            case "NotIn":
                return not present or labels[self.key] not in self.values
        return present and self._compares(labels[self.key])

    def _compares(self, text: str) -> bool:
        try:
            value, bound = int(text), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return value > bound if self.operator == "Gt" else value < bound


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parse a selector as in `?labelSelector=`. Raises ApiError."""
    requirements, at = [], 0
    text = text.strip()
    while at < len(text):
        requirement, at = _parse_term(text, at)
        requirements.append(requirement)
        rest = text[at:].lstrip()
        if rest and not rest.startswith(","):
            raise _unparsable(text)
        at = len(text) - len(rest) + 1 if rest else len(text)
        at += len(text[at:]) - len(text[at:].lstrip())
    return tuple(requirements)


def _parse_term(text: str, at: int) -> tuple[Requirement, int]:
    for pattern, kind in TERMS:
        if found := pattern.match(text, at):
            return _requirement(kind, found), found.end()
    raise _unparsable(text)


def _requirement(kind: str, found: re.Match[str]) -> Requirement:
    if kind == "set":
        values = tuple(value.strip() for value in found[3].split(","))
        return Requirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    if kind == "compare":
        names = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
        return Requirement(found[1], names[found[2]], (found[3],))
    return Requirement(found[1], "DoesNotExist" if kind == "absent" else "Exists")


def _unparsable(text: str) -> Exception:
    return bad_request(f'unable to parse requirement: found an invalid term in the label selector "{text:.200}"')


def parse_label_selector(selector: Any) -> tuple[Requirement, ...] | None:
    """The requirements of a LabelSelector object; None if there is no selector, which matches nothing."""
    if not isinstance(selector, dict):
        return None
    equal = [Requirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    return (*equal, *(_expression(one) for one in selector.get("matchExpressions") or ()))


def _expression(one: JsonObject) -> Requirement:
    return Requirement(str(one.get("key")), str(one.get("operator")), tuple(map(str, one.get("values") or ())))


def matches_all(requirements: tuple[Requirement, ...] | None, labels: Mapping[str, str]) -> bool:
    return requirements is not None and all(requirement.matches(labels) for requirement in requirements)


def parse_fields(resource: str, text: str) -> tuple[tuple[str, bool, str], ...]:
    """The (field, equal, value) terms of `?fieldSelector=`. Raises ApiError for a field that has no index."""
    return tuple(_field_term(resource, term) for term in filter(None, (part.strip() for part in text.split(","))))


def _field_term(resource: str, term: str) -> tuple[str, bool, str]:
    found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
    if found is None:
        raise bad_request(f"invalid selector: '{term:.100}'; can't understand '{term:.100}'")
    if found[1] not in (*METADATA_FIELDS, *FIELDS.get(resource, ())):
        raise bad_request(f"field label not supported: {found[1]:.100}")
    return found[1], found[2] != "!=", found[3]


def object_matcher(resource: str, labels: str, fields: str) -> Matches | None:
    """A function that says whether an object is selected; None if all are."""
    requirements, terms = parse_labels(labels), parse_fields(resource, fields)
    if not requirements and not terms:
        return None

    def matches(found: JsonObject) -> bool:
        return matches_all(requirements, labels_of(found)) and all(
            (_field_text(found, field) == value) == equal for field, equal, value in terms
        )

    return matches


def _field_text(found: JsonObject, field: str) -> str:
    value = value_at(found, *field.split("."), default="")
    if field == "spec.unschedulable" or field == "spec.hostNetwork":
        return "true" if value else "false"
    if field == "source":
        return str(value_at(found, "source", "component", default=""))
    return str(value)
