"""A node's health from what it reports, and from what became of those who ran on it. Pure.

What a code means is in the diagnosis' catalogue (NVIDIA's own table); an unknown code is a note and never a reason to
act. Telemetry that stops is a warning about the telemetry: only the cluster may say that a node is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.diagnosis import catalogue

WARN_TEMPERATURE_C = 87.0
MAX_TEMPERATURE_C = 93.0
IMPLAUSIBLE_TEMPERATURE_C = 120.0  # GPUs switch themselves off well below; broken sensors report 127 or 255
TELEMETRY_TIMEOUT_S = 90.0  # six samples of fifteen seconds
WARN_CORRECTED_ERRORS = 1_000  # in some minutes; a few are what ECC is for
WARN_NVLINK_ERRORS = 100  # links repair single errors by themselves
WARN_THROTTLED_FRACTION = 0.2  # part of the samples
LEMON_THRESHOLD = 4.0
HISTORY_DAYS = 30.0


@dataclass(frozen=True, kw_only=True)
class NodeTelemetryWindow:
    """A node over the last minutes. Counters are what was added in that time; None: not measured."""

    node: str
    heard_at: float | None
    xids: Sequence[int] = ()
    ecc_uncorrected: int = 0
    ecc_corrected: int = 0
    rows_pending: int = 0  # remapped at the next reset
    remap_failed: bool = False
    nvlink_errors: int = 0
    nics_down: Sequence[str] = ()
    hottest_c: float | None = None
    throttled: float | None = None  # part of the samples


@dataclass(frozen=True, kw_only=True)
class NodeHistoryEntry:
    """One entry of a node's history."""

    at: float
    what: str


# What people's lists of bad nodes are made of: repeated failures weigh, whatever their name
EVENT_WEIGHTS = {
    "job_failed_here_alone": 1.0,
    "gang_failed_here": 0.5,
    "xid": 1.0,
    "failed_test": 2.0,
    "excluded": 1.0,
    "down": 1.0,
    "ticket": 1.5,
}


def node_health_findings(reading: NodeTelemetryWindow, now: float) -> list[DetectorFinding]:
    """The worst first."""
    order = list(Severity)
    found = (_node_finding(reading, now, *said) for said in _observations(reading, now))
    return sorted(found, key=lambda one: -order.index(one.severity))


def reports_fault(reading: NodeTelemetryWindow) -> bool:
    """Whether it reports a fault that ends the programs on it. Heat only slows them down: a node that is too hot did
    not cause an end, and a temperature is what sensors most often report wrongly."""
    return any(severity is Severity.BAD for severity, _ in _hardware_faults(reading))


def _observations(one: NodeTelemetryWindow, now: float) -> Iterator[tuple[Severity, str]]:
    if one.heard_at is None or now - one.heard_at > TELEMETRY_TIMEOUT_S:
        ago = "ever" if one.heard_at is None else f"for {now - one.heard_at:.0f} s"
        yield Severity.WARN, f"No telemetry {ago}."
    yield from _hardware_faults(one)
    yield from _thermal_observations(one)


def _hardware_faults(one: NodeTelemetryWindow) -> Iterator[tuple[Severity, str]]:
    for code in dict.fromkeys(one.xids):
        if code:
            yield _xid_observation(code)
    if one.remap_failed:
        yield Severity.BAD, "A row of GPU memory could not be replaced."
    if one.ecc_uncorrected:
        yield Severity.BAD, f"Uncorrectable memory errors: {one.ecc_uncorrected}."
    if one.ecc_corrected >= WARN_CORRECTED_ERRORS:
        yield Severity.WARN, f"Memory errors that were corrected: {one.ecc_corrected}."
    if one.rows_pending:
        yield Severity.WARN, f"Rows of GPU memory to be replaced at the next reset: {one.rows_pending}."
    if one.nvlink_errors >= WARN_NVLINK_ERRORS:
        yield Severity.WARN, f"NVLink errors: {one.nvlink_errors}."
    if one.nics_down:
        yield Severity.BAD, f"Network ports down: {', '.join(one.nics_down)}."


def _thermal_observations(one: NodeTelemetryWindow) -> Iterator[tuple[Severity, str]]:
    if one.hottest_c is not None and one.hottest_c >= IMPLAUSIBLE_TEMPERATURE_C:
        yield Severity.WARN, f"A temperature sensor is broken: it reports {one.hottest_c:.0f} °C."
    elif one.hottest_c is not None and one.hottest_c >= WARN_TEMPERATURE_C:
        yield (
            Severity.BAD if one.hottest_c >= MAX_TEMPERATURE_C else Severity.WARN,
            f"A GPU is at {one.hottest_c:.0f} °C.",
        )
    if one.throttled is not None and one.throttled >= WARN_THROTTLED_FRACTION:
        yield Severity.WARN, f"GPUs are slowed down by heat or power {one.throttled:.0%} of the time."


def _xid_observation(code: int) -> tuple[Severity, str]:
    known = catalogue.xid_codes().get(code)
    if known is None:
        return Severity.NOTE, f"Xid {code}, which is in no catalogue."
    severity = Severity.BAD if known.auto_cordon == "yes" else Severity.NOTE
    return severity, f"Xid {code}: {known.meaning}."


def _node_finding(reading: NodeTelemetryWindow, now: float, severity: Severity, why: str) -> DetectorFinding:
    return DetectorFinding(symptom=SymptomType.NODE, since=now, subject=reading.node, severity=severity, why=why)


def lemon_score(past: Sequence[NodeHistoryEntry], now: float) -> float:
    """How much of a lemon: weighted history that fades over thirty days. What is not in the table weighs nothing."""
    days = [((now - one.at) / 86400, EVENT_WEIGHTS.get(one.what, 0.0)) for one in past]
    return sum(weight * max(0.0, 1 - ago / HISTORY_DAYS) for ago, weight in days if ago >= 0)


def is_lemon(past: Sequence[NodeHistoryEntry], now: float) -> bool:
    return lemon_score(past, now) >= LEMON_THRESHOLD
