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
from .compress import Compressor, Template
from .filters import FilterRule
from .gpu_events import GpuEvent
from .reader import Place, Reader, Tally
from .scan import Scanner
from .values import Blame, Finding, Line, Restart, Role

MOST_FROZEN = 4 << 20  # a log that needs more than this is read from its beginning when it ends
MOST_THAWED = 64 << 20
VALUES = (Tally, Finding, Line, GpuEvent, Place, Template)
NAMES = {(one.__module__, one.__qualname__): one for one in (*VALUES, Role, Blame, Restart)}


class Follower:
    """feed() takes what was written since and returns what is new and serious."""

    def __init__(self, rules: tuple[FilterRule, ...] = filters.SHIPPED, scanner: Scanner | None = None) -> None:
        self.reader = Reader(scanner)
        self.compressor = Compressor(rules)
        self._told: set[tuple[str, str]] = set()

    def feed(self, chunk: bytes) -> tuple[Finding, ...]:
        self.reader.feed(chunk)
        self.reader.look_now()
        self.compressor.feed(chunk, whole_lines=True)
        return tuple(self._news())

    def _news(self) -> Iterator[Finding]:
        for finding in self.reader.findings():
            key = (finding.signature, finding.label)
            if key not in self._told and finding.role in (Role.INITIATING, Role.CASCADE) and finding.label:
                self._told.add(key)
                yield finding

    def frozen(self) -> bytes | None:
        """None when it is too much to be kept."""
        state = (self.reader.state(), self.compressor.state(), self._told)
        raw = self._stamp() + zlib.compress(pickle.dumps(state, protocol=5), 1)
        return raw if len(raw) <= MOST_FROZEN else None

    def _stamp(self) -> bytes:
        """The same for two followers exactly when one can go on with what the other knew."""
        words = [self.reader.rules_version, self.compressor.filters_version]
        words += [f"{one.__qualname__}:{','.join(field.name for field in fields(one))}" for one in VALUES]
        return hashlib.sha256("\n".join(words).encode()).digest()


def thawed(
    raw: bytes, rules: tuple[FilterRule, ...] = filters.SHIPPED, scanner: Scanner | None = None
) -> Follower | None:
    follower = Follower(rules, scanner)
    stamp = follower._stamp()
    if not raw.startswith(stamp):
        return None
    try:
        plain = zlib.decompressobj().decompress(raw[len(stamp) :], MOST_THAWED)
        read, compressed, told = _Known(io.BytesIO(plain)).load()
        follower.reader.take_up(read)
        follower.compressor.take_up(compressed)
        follower._told = told
    except Exception:
        return None
    return follower


class _Known(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a follower") from None
