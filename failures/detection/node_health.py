"""Node health from its telemetry, and from the outcome of the jobs that ran on it. Pure.

The meaning of an Xid code comes from the diagnosis catalogue (NVIDIA's own table); an unknown code is a note and never
a reason to act. Missing telemetry is a warning about the telemetry: only the cluster decides that a node is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from failures.detection.findings import DetectorFinding, Severity, SymptomType
from failures.diagnosis import catalogue

WARN_TEMPERATURE_C = 87.0
MAX_TEMPERATURE_C = 93.0
IMPLAUSIBLE_TEMPERATURE_C = 120.0  # GPUs shut down well below this; broken sensors report 127 or 255
TELEMETRY_TIMEOUT_S = 90.0  # six samples of fifteen seconds
WARN_CORRECTED_ERRORS = 1_000  # within minutes; ECC is made to correct a few
WARN_NVLINK_ERRORS = 100  # links correct single errors by retransmission
WARN_THROTTLED_FRACTION = 0.2  # of the samples
LEMON_THRESHOLD = 4.0
LEMON_TEXT = "Repeated failures"  # start of the finding
HISTORY_DAYS = 30.0


@dataclass(frozen=True, kw_only=True)
class NodeTelemetryWindow:
    """Telemetry of a node over the last minutes. Counters hold the increase in that time; None means not measured."""

    node: str
    last_sample_at: float | None
    xids: Sequence[int] = ()
    ecc_uncorrected: int = 0
    ecc_corrected: int = 0
    rows_pending: int = 0  # to be remapped at the next reset
    remap_failed: bool = False
    nvlink_errors: int = 0
    nics_down: Sequence[str] = ()
    hottest_c: float | None = None
    throttled: float | None = None  # fraction of the samples


@dataclass(frozen=True, kw_only=True)
class NodeHistoryEntry:
    """One entry of a node's history."""

    at: float
    what: str


# Weight of each event in the lemon score: repeated failures count, whatever their cause
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
    """All findings of a node, the most severe first."""
    order = list(Severity)
    findings = (_node_finding(reading, now, *observation) for observation in _observations(reading, now))
    return sorted(findings, key=lambda finding: -order.index(finding.severity))


def reports_fault(reading: NodeTelemetryWindow) -> bool:
    """Whether the node reports a fault that ends programs on it.

    Temperature does not count: heat only slows programs down, and it is the value that sensors most often get wrong.
    """
    return any(severity is Severity.BAD for severity, _ in _hardware_faults(reading))


def fault_evidence(reading: NodeTelemetryWindow, *, slow: bool) -> list[str]:
    """What the telemetry says about a fault of the node. Heat and throttling explain slow steps, but end no program."""
    thermal = _thermal_observations(reading) if slow else ()
    observations = [*_hardware_faults(reading), *thermal]
    return [why for severity, why in observations if severity is not Severity.NOTE]


def _observations(reading: NodeTelemetryWindow, now: float) -> Iterator[tuple[Severity, str]]:
    if reading.last_sample_at is None:
        yield Severity.WARN, "No telemetry received yet."
    elif now - reading.last_sample_at > TELEMETRY_TIMEOUT_S:
        yield Severity.WARN, f"No telemetry for {now - reading.last_sample_at:.0f} s."
    yield from _hardware_faults(reading)
    yield from _thermal_observations(reading)


def _hardware_faults(reading: NodeTelemetryWindow) -> Iterator[tuple[Severity, str]]:
    for code in dict.fromkeys(filter(None, reading.xids)):
        yield _xid_observation(code)
    if reading.remap_failed:
        yield Severity.BAD, "A row of GPU memory could not be remapped."
    if reading.ecc_uncorrected:
        yield Severity.BAD, f"Uncorrectable memory errors: {reading.ecc_uncorrected}."
    if reading.ecc_corrected >= WARN_CORRECTED_ERRORS:
        yield Severity.WARN, f"Corrected memory errors: {reading.ecc_corrected}."
    if reading.rows_pending:
        yield Severity.WARN, f"GPU memory rows to be remapped at the next reset: {reading.rows_pending}."
    if reading.nvlink_errors >= WARN_NVLINK_ERRORS:
        yield Severity.WARN, f"NVLink errors: {reading.nvlink_errors}."
    if reading.nics_down:
        yield Severity.BAD, f"Network ports down: {', '.join(reading.nics_down)}."


def _thermal_observations(reading: NodeTelemetryWindow) -> Iterator[tuple[Severity, str]]:
    if reading.hottest_c is not None and reading.hottest_c >= IMPLAUSIBLE_TEMPERATURE_C:
        yield Severity.WARN, f"A temperature sensor is broken: it reports {reading.hottest_c:.0f} °C."
    elif reading.hottest_c is not None and reading.hottest_c >= WARN_TEMPERATURE_C:
        yield (
            Severity.BAD if reading.hottest_c >= MAX_TEMPERATURE_C else Severity.WARN,
            f"A GPU is at {reading.hottest_c:.0f} °C.",
        )
    if reading.throttled is not None and reading.throttled >= WARN_THROTTLED_FRACTION:
        yield Severity.WARN, f"GPUs are throttled by heat or power {reading.throttled:.0%} of the time."


def _xid_observation(code: int) -> tuple[Severity, str]:
    known = catalogue.xid_codes().get(code)
    if known is None:  # without a colon: what stands before one is read back as the code of a known fault
        return Severity.NOTE, f"Xid {code} is not in the catalogue."
    severity = Severity.BAD if known.auto_cordon == "yes" else Severity.NOTE
    return severity, f"Xid {code}: {known.meaning}."


def _node_finding(reading: NodeTelemetryWindow, now: float, severity: Severity, why: str) -> DetectorFinding:
    return DetectorFinding(symptom=SymptomType.NODE, since=now, subject=reading.node, severity=severity, why=why)


def lemon_score(past: Sequence[NodeHistoryEntry], now: float) -> float:
    """The weighted sum of a node's recent events, fading linearly over thirty days. Events not in the table weigh 0."""
    aged = [((now - entry.at) / 86400, EVENT_WEIGHTS.get(entry.what, 0.0)) for entry in past]
    return sum(weight * max(0.0, 1 - days / HISTORY_DAYS) for days, weight in aged if days >= 0)


def is_lemon(past: Sequence[NodeHistoryEntry], now: float) -> bool:
    return lemon_score(past, now) >= LEMON_THRESHOLD
