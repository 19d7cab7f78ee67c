"""Turns a compressed log into a vector, to find the most similar past cases. Pure; no model, no download.

Words and pairs of words are hashed into 512 dimensions with an anomaly each, which preserves inner products on average
(feature hashing). Numbers, addresses and paths are removed first: logs are similar if they have the same messages, not
if they come from the same host. Lines with a signature weigh more than the lines around them.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from failures.diagnosis import lines
from failures.diagnosis.scan import Scanner, shipped_scanner
from failures.diagnosis.values import LineRole

DIMENSIONS = 512
EMBEDDING_VERSION = "hashed-words-1"  # stored beside each vector: vectors of two versions are never compared
ROLE_WEIGHTS = {LineRole.INITIATING: 6.0, LineRole.CASCADE: 3.0, LineRole.TEARDOWN: 1.0}
DEFAULT_WEIGHT = 0.3
VARIABLE_PART = re.compile(r"(?:/[\w.@+-]+){2,}|\S+@\S+|\b[\w.-]*\d[\w.:,+-]*|[0-9a-f]{12,}")
WORD = re.compile(r"[A-Za-z_][A-Za-z_]+")

Vector = NDArray[np.float32]


def embed_bundle(bundle: str, scanner: Scanner | None = None) -> Vector:
    """A vector of length 1; all zeros if no word is left."""
    weights: dict[str, float] = {}
    for row, weight in weighted_messages(bundle, scanner or shipped_scanner()):
        for token in tokens(row):  # the highest weight, not the sum: repetition does not make a line more important
            weights[token] = max(weights.get(token, 0.0), weight)
    vector = np.zeros(DIMENSIONS, dtype=np.float32)
    for token, weight in weights.items():
        code = zlib.crc32(token.encode())
        vector[code % DIMENSIONS] += np.log1p(weight) * (1 if code & 0x8000_0000 else -1)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def weighted_messages(bundle: str, scanner: Scanner) -> Iterator[tuple[str, float]]:
    """The message of each line with its weight."""
    data = bundle.encode("utf-8", "replace")
    weight_by_line: dict[int, float] = {}
    number = counted = 0
    for at, index in sorted(scanner.hits(data)):
        number, counted = number + data.count(b"\n", counted, at - 1), max(counted, at - 1)
        weight = ROLE_WEIGHTS.get(scanner.signatures[index].role, DEFAULT_WEIGHT)
        weight_by_line[number] = max(weight_by_line.get(number, DEFAULT_WEIGHT), weight)
    for number, row in enumerate(data.decode("utf-8", "replace").split("\n")):
        if row.strip():
            yield lines.parse(number, row).message, weight_by_line.get(number, DEFAULT_WEIGHT)


def tokens(message: str) -> Iterator[str]:
    words = [word.lower() for word in WORD.findall(VARIABLE_PART.sub(" ", message))]
    yield from words
    yield from (f"{first} {second}" for first, second in itertools.pairwise(words))
