"""Reads and compresses a log while it is still being written. The state can be saved and restored. Pure.

The state survives its process as bytes, so the final diagnosis has to read only the newest part of the log. The bytes
are a pickle that can contain only the few classes listed here: loading cannot create any other object. A state with
other rules, or of classes that have changed since, is rejected; then the log is read from its beginning.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from typing import Any

from . import filters
from .compress import LineTemplate, LogCompressor
from .filters import FilterRule
from .parsers.gpu_events import GpuEvent
from .reader import RankLocation, SignatureReader, SignatureTally
from .scan import Scanner
from .values import Blame, CollectivePosition, LineRole, LogFinding, ParsedLine, RestartAdvice, SignatureTrait

MAX_STATE_BYTES = 4 << 20  # if the state is larger, the log is read again from its beginning when the job ends
MAX_UNPACKED_BYTES = 64 << 20
STATE_CLASSES = (
    SignatureTally, LogFinding, ParsedLine, CollectivePosition, GpuEvent, RankLocation, LineTemplate,
)  # fmt: skip
STATE_ENUMS = (LineRole, Blame, RestartAdvice, SignatureTrait)
STATE_CLASSES_BY_NAME = {(known.__module__, known.__qualname__): known for known in (*STATE_CLASSES, *STATE_ENUMS)}


class LogFollower:
    """Call feed() with the bytes written since the last call; it returns new causes and symptoms."""

    def __init__(self, rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS, scanner: Scanner | None = None) -> None:
        self.reader = SignatureReader(scanner)
        self.compressor = LogCompressor(rules)
        self._reported: set[tuple[str, str]] = set()

    def feed(self, chunk: bytes) -> tuple[LogFinding, ...]:
        self.reader.feed(chunk)
        self.reader.scan_pending_lines()
        self.compressor.feed(chunk, whole_lines=True)
        return tuple(self._new_findings())

    def _new_findings(self) -> Iterator[LogFinding]:
        for finding in self.reader.findings():
            key = (finding.signature, finding.label)
            if key not in self._reported and finding.role in (LineRole.INITIATING, LineRole.CASCADE) and finding.label:
                self._reported.add(key)
                yield finding

    def frozen(self) -> bytes | None:
        """The state as bytes; None if it is too large to be stored."""
        state = (self.reader.state(), self.compressor.state(), self._reported)
        raw = self._version_stamp() + zlib.compress(_pickled_state(state), 1)
        return raw if len(raw) <= MAX_STATE_BYTES else None

    def _version_stamp(self) -> bytes:
        """A hash of the rules and classes. Two followers can exchange their state exactly if their stamps are equal."""
        words = [self.reader.rules_version, self.compressor.filters_version]
        words += [f"{known.__qualname__}:{','.join(field.name for field in fields(known))}" for known in STATE_CLASSES]
        return hashlib.sha256("\n".join(words).encode()).digest()


def restore_follower(
    raw: bytes, rules: tuple[FilterRule, ...] = filters.SHIPPED_FILTERS, scanner: Scanner | None = None
) -> LogFollower | None:
    """A follower with a saved state; None if the state is damaged or from other rules or classes."""
    follower = LogFollower(rules, scanner)
    stamp = follower._version_stamp()
    if not raw.startswith(stamp):
        return None
    try:
        plain = zlib.decompressobj().decompress(raw[len(stamp) :], MAX_UNPACKED_BYTES)
        read, compressed, reported = _StateUnpickler(io.BytesIO(plain)).load()
        follower.reader.restore_state(read)
        follower.compressor.restore_state(compressed)
        follower._reported = reported
    except Exception:  # damaged bytes can raise anything
        return None
    return follower


def _pickled_state(state: object) -> bytes:
    """Members of enums are saved as class and value. Python before 3.11.4 would save a call of `getattr` instead."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=5)
    pickler.dispatch_table = dict.fromkeys(STATE_ENUMS, _member_by_value)
    pickler.dump(state)
    return out.getvalue()


def _member_by_value(member: StrEnum) -> tuple[type[StrEnum], tuple[str]]:
    return type(member), (member.value,)


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return STATE_CLASSES_BY_NAME[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a follower") from None
