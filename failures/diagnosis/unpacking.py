"""Decompresses an archived log piece by piece. Pure; bounded memory and bounded work.

gzip, bzip2, xz and zstd are recognized by their first bytes, not by the file name. A decoder returns at most one piece
at a time, so a decompression bomb uses no memory, and decompression stops at MAX_UNPACKED_BYTES, so it cannot run
forever. A truncated or damaged file is read as far as possible, and `sentence` reports the problem.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

PIECE_BYTES = 256 << 10
MAX_UNPACKED_BYTES = 64 << 30
WINDOW_LOG = 27  # the 128 MiB window of `zstd --long`; larger windows are rejected
MAX_XZ_MEMORY_BYTES = 128 << 20
HEADER_BYTES = 6


class Decoder(Protocol):
    """The common interface of the bz2, lzma and zstd decoders; GzipDecoder adapts zlib to it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class GzipDecoder:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = PIECE_BYTES) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _xz_decoder() -> Decoder:
    return lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)


def _zstd_decoder() -> Decoder | None:
    """A decoder from Python 3.14 or from the package `backports.zstd`; None if neither is available."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        decoder: Decoder = module.ZstdDecompressor(options={module.DecompressionParameter.window_log_max: WINDOW_LOG})
        return decoder
    return None


FORMATS: tuple[tuple[bytes, str, Callable[[], Decoder | None]], ...] = (
    (b"\x1f\x8b", "gzip", GzipDecoder),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", _xz_decoder),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd_decoder),
)


def is_compressed(head: bytes) -> bool:
    return bool(_detect_format(head)[0])


class DecompressedLog:
    """The decompressed chunks; iterate once. Afterwards, `sentence` reports why the text is incomplete, if it is."""

    def __init__(self, chunks: Iterable[bytes], most: int = MAX_UNPACKED_BYTES) -> None:
        self._chunks = iter(chunks)
        self._most = most
        self.sentence = ""

    def __iter__(self) -> Iterator[bytes]:
        head = self._read_header()
        name, begin = _detect_format(head)
        decoder = begin() if begin else None
        if begin and decoder is None:
            self.sentence = (
                f"This is a {name} file, and the package backports.zstd is not installed. Unpack the file first."
            )
        if begin is None or decoder is None:
            yield from ([] if begin else self._plain_chunks(head))
        else:
            yield from self._limit_size(self._decode_members(head, name, begin, decoder))

    def _read_header(self) -> bytes:
        head = b""
        while len(head) < HEADER_BYTES and (chunk := next(self._chunks, b"")):
            head += chunk
        return head

    def _plain_chunks(self, head: bytes) -> Iterator[bytes]:
        yield head
        yield from self._chunks

    def _limit_size(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        remaining = self._most
        for piece in pieces:
            yield piece[:remaining]
            remaining -= len(piece)
            if remaining <= 0:
                self.sentence = f"The unpacked log is larger than {self._most >> 20} MiB. The rest was not read."
                return

    def _decode_members(
        self, data: bytes, name: str, begin: Callable[[], Decoder | None], decoder: Decoder
    ) -> Iterator[bytes]:
        """The text of all members: `cat a.gz b.gz` is a valid gzip file too."""
        try:
            while True:
                if piece := decoder.decompress(data, PIECE_BYTES):
                    yield piece
                data = b""
                if decoder.eof:
                    data = decoder.unused_data or next(self._chunks, b"")
                    following = begin() if _detect_format(data)[0] == name else None
                    if following is None:  # end of file, or padding from a tape
                        return
                    decoder = following
                elif decoder.needs_input and not (data := next(self._chunks, b"")):
                    self.sentence = f"The {name} file is cut short. It was read up to its end."
                    return
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            self.sentence = f"The {name} file is damaged ({error}). It was read up to the damage."
        except Exception as error:  # the class of zstd errors is in a module that may not be installed
            if type(error).__name__ != "ZstdError":
                raise
            self.sentence = f"The {name} file is damaged ({error}). It was read up to the damage."


def _detect_format(head: bytes) -> tuple[str, Callable[[], Decoder | None] | None]:
    return next(((name, begin) for magic, name, begin in FORMATS if head.startswith(magic)), ("", None))
