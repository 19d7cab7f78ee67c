"""Finds the nodes and GPUs to check, from hosts, PCI addresses and ranks in the evidence. Pure.

A suspect is not proven faulty: a node test decides. Failures of the program itself have no suspects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .parsers.collectives import find_desync
from .reader import LogReading, RankLocation
from .values import Blame, LogFinding, SignatureTrait, SuspectGpu, SuspectNode

HARDWARE_BLAMES = frozenset({Blame.NODE, Blame.GPU, Blame.NETWORK})
HOST_NAME = r"([A-Za-z0-9][\w.-]*\w)"
HOST_MENTIONS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Node failure on {HOST_NAME}",
        rf"hostname: +{HOST_NAME}",
        rf"failed on node {HOST_NAME}",
        rf"error: [Nn]odes? {HOST_NAME} not responding",
        rf"\bon host:? {HOST_NAME}",
        rf"host +: +{HOST_NAME}",
        rf"srun: error: {HOST_NAME}: task",
        rf"The node '{HOST_NAME}' has failed",
        rf"(?:from|to) peer {HOST_NAME}",
        rf"connect to host {HOST_NAME}",
    )
)  # fmt: skip
PCI_ADDRESS = re.compile(r"\b(?:PCI:|GPU |PCI )((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)")
MAX_SUSPECTS = 16


def suspect_nodes(
    root: LogFinding | None, same_label: Iterable[LogFinding], reading: LogReading
) -> tuple[SuspectNode, ...]:
    if root is None or root.blame not in HARDWARE_BLAMES:
        return ()
    suspects: dict[str, str] = {}
    locations = {place.rank: place for place in reading.places}
    if (desync := find_desync(root.collectives)) and desync.is_lag:
        for late in desync.few:
            if late.rank in locations:
                suspects.setdefault(locations[late.rank].host, desync.sentence.removesuffix("."))
    for finding in (root, *same_label):
        for host in _hosts_of_finding(finding, locations):
            suspects.setdefault(host, f"line {finding.line.number}: {finding.signature}")
    for event in reading.gpu_events:
        if event.line.host and event.label == root.label:
            suspects.setdefault(event.line.host, f"line {event.line.number}: {event.kind} {event.code}")
    for place in silent_ranks(root, reading.places):
        suspects.setdefault(place.host, f"rank {place.rank} reported nothing while the other ranks timed out")
    return tuple(SuspectNode(host=host, why=why) for host, why in list(suspects.items())[:MAX_SUSPECTS])


def _hosts_of_finding(finding: LogFinding, locations: dict[int, RankLocation]) -> list[str]:
    """Hosts named in the text of a line; without any, the host that logged it and the host of its rank."""
    named = [match[1] for pattern in HOST_MENTIONS if (match := pattern.search(finding.line.text))]
    own = [finding.line.host] if finding.line.host and not named else []
    rank = finding.line.rank
    # In a collective timeout the healthy ranks complain, so their hosts are not suspects
    is_complaint = SignatureTrait.HEALTHY_RANKS_COMPLAIN in finding.traits
    mapped = [locations[rank].host] if rank in locations and not named and not is_complaint else []
    return named + own + mapped


def suspect_gpus(root: LogFinding | None, reading: LogReading) -> tuple[SuspectGpu, ...]:
    """The suspected GPUs, by PCI address if the kernel names one, else by the rank with the error."""
    if root is None or root.blame is not Blame.GPU:
        return ()
    ranks = {(short_pci(place.pci), place.host): place.rank for place in reading.places if place.pci}
    suspects: dict[tuple[str, str], SuspectGpu] = {}
    for event in reading.gpu_events:
        if event.label == root.label or event.kind == "Xid":
            pci, host = event.pci, event.line.host
            why = f"{event.kind} {event.code} on line {event.line.number}"
            rank = ranks.get((short_pci(pci), host))
            suspects.setdefault((host, pci), SuspectGpu(host=host, pci=pci, rank=rank, why=why))
    if not suspects:
        suspects = _suspect_gpu_of_rank(root, reading)
    return tuple(gpu for gpu in list(suspects.values())[:MAX_SUSPECTS] if gpu.pci or gpu.rank is not None)


def _suspect_gpu_of_rank(root: LogFinding, reading: LogReading) -> dict[tuple[str, str], SuspectGpu]:
    locations = {place.rank: place for place in reading.places}
    place = locations.get(root.line.rank) if root.line.rank is not None else None
    match = PCI_ADDRESS.search(root.line.text)
    pci = match[1].lower() if match else place.pci if place else ""
    host = root.line.host or (place.host if place else "")
    why = f"{root.signature} on line {root.line.number}"
    return {(host, pci): SuspectGpu(host=host, pci=pci, rank=root.line.rank, why=why)}


def short_pci(pci: str) -> str:
    """A PCI address in a comparable form: 0000:3b:00.0, 0000:3b:00 and NCCL's 3b000 are the same address."""
    return pci.lower().removeprefix("00000000:").removeprefix("0000:").replace(":", "").replace(".", "")[:4]


def silent_ranks(root: LogFinding, places: tuple[RankLocation, ...]) -> list[RankLocation]:
    """The ranks that did not report a collective timeout: healthy ranks report it, a faulty one hangs silently."""
    if SignatureTrait.HEALTHY_RANKS_COMPLAIN not in root.traits or len(root.ranks) < 2:
        return []
    quiet = [place for place in places if place.rank not in root.ranks]
    return quiet if quiet and len(quiet) * 4 <= len(places) else []
