"""A log that is still being written: read and compressed as it grows, set down, and taken up again elsewhere. Pure.

What a follower knows can be frozen to bytes, so that it outlives its process, and whoever judges the end reads only
what came last. The bytes are a pickle of our own few classes and of nothing else: reading them back can make no other
object, whatever they hold. Bytes of other rules, or of classes that have changed since, are refused; then the log is
read anew.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from . import filters
from .compress import LineTemplate, LogCompressor
from .filters import FilterRule
from .gpu_events import GpuEvent
from .reader import RankLocation, SignatureReader, SignatureTally
from .scan import Scanner
from .values import Blame, LineRole, LogFinding, ParsedLine, RestartAdvice

MAX_STATE_BYTES = 4 << 20  # a log that needs more than this is read from its beginning when it ends
MAX_UNPACKED_BYTES = 64 << 20
STATE_CLASSES = (SignatureTally, LogFinding, ParsedLine, GpuEvent, RankLocation, LineTemplate)
STATE_CLASSES_BY_NAME = {
    (one.__module__, one.__qualname__): one for one in (*STATE_CLASSES, LineRole, Blame, RestartAdvice)
}


class LogFollower:
    """feed() takes what was written since and returns what is new and serious."""

    def __init__(self, rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS, scanner: Scanner | None = None) -> None:
        self.reader = SignatureReader(scanner)
        self.compressor = LogCompressor(rules)
        self._told: set[tuple[str, str]] = set()

    def feed(self, chunk: bytes) -> tuple[LogFinding, ...]:
        self.reader.feed(chunk)
        self.reader.scan_pending_lines()
        self.compressor.feed(chunk, whole_lines=True)
        return tuple(self._new_findings())

    def _new_findings(self) -> Iterator[LogFinding]:
        for finding in self.reader.findings():
            key = (finding.signature, finding.label)
            if key not in self._told and finding.role in (LineRole.INITIATING, LineRole.CASCADE) and finding.label:
                self._told.add(key)
                yield finding

    def frozen(self) -> bytes | None:
        """None when it is too much to be kept."""
        state = (self.reader.state(), self.compressor.state(), self._told)
        raw = self._version_stamp() + zlib.compress(pickle.dumps(state, protocol=5), 1)
        return raw if len(raw) <= MAX_STATE_BYTES else None

    def _version_stamp(self) -> bytes:
        """The same for two followers exactly when one can go on with what the other knew."""
        words = [self.reader.rules_version, self.compressor.filters_version]
        words += [f"{one.__qualname__}:{','.join(field.name for field in fields(one))}" for one in STATE_CLASSES]
        return hashlib.sha256("\n".join(words).encode()).digest()


def restore_follower(
    raw: bytes, rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS, scanner: Scanner | None = None
) -> LogFollower | None:
    follower = LogFollower(rules, scanner)
    stamp = follower._version_stamp()
    if not raw.startswith(stamp):
        return None
    try:
        plain = zlib.decompressobj().decompress(raw[len(stamp) :], MAX_UNPACKED_BYTES)
        read, compressed, told = _StateUnpickler(io.BytesIO(plain)).load()
        follower.reader.restore_state(read)
        follower.compressor.restore_state(compressed)
        follower._told = told
    except Exception:
        return None
    return follower


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return STATE_CLASSES_BY_NAME[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a follower") from None
