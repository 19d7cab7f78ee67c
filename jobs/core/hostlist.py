"""Expands and compresses node lists in Slurm notation, such as `gpu[001-003,020]`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

from acmeweb.common.errors import InvalidInput

TRAILING_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,18}\Z")
MAX_HOSTLIST_LENGTH = 1_000_000  # characters: enough for 100,000 nodes whose names are written in full
MAX_EXPANDED_CHARACTERS = 16_000_000  # total of all names
MAX_HOSTNAME_LENGTH = 255
MAX_DIGITS = 18
MAX_HOSTNAMES = 100_000  # bounds the memory that input of a user or a cluster can use


def expand(text: str) -> list[str]:
    """Return every name in the order written: `a[1-2],b` gives a1, a2, b. Sizes are checked before anything is
    expanded."""
    if len(text) > MAX_HOSTLIST_LENGTH:
        raise InvalidInput(f"{text[:40]!r}… has more than {MAX_HOSTLIST_LENGTH} characters")
    parts = [_parse_part(part.strip()) for part in _split_at_commas(text) if part.strip()]
    # Compute the number of names before expanding, because nested ranges multiply
    counts = [prod(_name_count(piece) for piece in pieces) for pieces in parts]
    if sum(counts) > MAX_HOSTNAMES:
        raise InvalidInput(f"{text[:40]!r} names more than {MAX_HOSTNAMES} nodes")
    if sum(map(_expanded_size, parts, counts)) > MAX_EXPANDED_CHARACTERS:
        raise InvalidInput(f"{text[:40]!r} names nodes with too long names")
    names = ["".join(name) for pieces in parts for name in product(*map(_piece_texts, pieces))]
    if too_long := next((name for name in names if len(name) > MAX_HOSTNAME_LENGTH), ""):
        raise InvalidInput(f"{too_long[:40]!r} is longer than {MAX_HOSTNAME_LENGTH} characters")
    return names


def _split_at_commas(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth = start = 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise InvalidInput(f"{text[:40]!r} has unbalanced brackets")
        if char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if depth:
        raise InvalidInput(f"{text[:40]!r} has unbalanced brackets")
    yield text[start:]


# Part of a name: literal text, or the ranges of one bracket as (first, last, digits)
NumberRanges = list[tuple[int, int, int]]
HostlistPiece = str | NumberRanges


def _parse_part(part: str) -> list[HostlistPiece]:
    head, *brackets = part.split("[")
    pieces: list[HostlistPiece] = [head]
    for bracket in brackets:
        inside, _, tail = bracket.partition("]")
        pieces += [[_parse_range(piece.strip(), part) for piece in inside.split(",")], tail]
    return [piece for piece in pieces if piece]


def _parse_range(piece: str, part: str) -> tuple[int, int, int]:
    low, dash, high = piece.partition("-")
    high = high if dash else low
    if not (_is_number(low) and _is_number(high)):
        raise InvalidInput(f"{part[:40]!r}: {piece[:20]!r} is neither a number nor a range")
    if int(high) < int(low):
        raise InvalidInput(f"{part[:40]!r}: {piece[:20]!r} counts down")
    if int(high) - int(low) > MAX_HOSTNAMES:
        raise InvalidInput(f"{part[:40]!r} names more than {MAX_HOSTNAMES} nodes")
    return int(low), int(high), len(low)


def _is_number(text: str) -> bool:
    # isdigit() alone also accepts digits of other scripts
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _name_count(piece: HostlistPiece) -> int:
    return 1 if isinstance(piece, str) else sum(high - low + 1 for low, high, _ in piece)


def _expanded_size(pieces: list[HostlistPiece], count: int) -> int:
    """Return an upper bound of the characters in all names of a part."""
    return count * sum(len(piece) if isinstance(piece, str) else MAX_DIGITS for piece in pieces)


def _piece_texts(piece: HostlistPiece) -> list[str]:
    if isinstance(piece, str):
        return [piece]
    return [str(number).zfill(digits) for low, high, digits in piece for number in range(low, high + 1)]


def compress(names: Iterable[str]) -> str:
    """Return the shortest list that expands to the same set, with numbers in numeric order."""
    plain: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = TRAILING_NUMBER.search(name)
        # 1 and 01 are different names, so the width is part of the key. Numbers without a leading zero have width 0
        if match:
            head, digits = name[: match.start()], match[0]
            width = len(digits) if digits.startswith("0") else 0
            groups.setdefault((head, width), []).append(int(digits))
        else:
            plain.append(name)
    _merge_padded_groups(groups)
    lists = [_format_group(head, width, sorted(numbers)) for (head, width), numbers in sorted(groups.items())]
    return ",".join([*plain, *lists])


def _merge_padded_groups(groups: dict[tuple[str, int], list[int]]) -> None:
    """Move numbers that fill the width of a padded group exactly (gpu09, gpu10) into that group."""
    for head, width in [key for key in groups if key[1]]:
        unpadded = groups.get((head, 0), [])
        fitting = [n for n in unpadded if len(str(n)) == width]
        groups[head, width].extend(fitting)
        remaining = [n for n in unpadded if len(str(n)) != width]
        if remaining:
            groups[head, 0] = remaining
        else:
            groups.pop((head, 0), None)


def _format_group(head: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}"
    return f"{head}[{','.join(_format_ranges(numbers, width))}]"


def _format_ranges(numbers: list[int], width: int) -> Iterator[str]:
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        yield f"{start:0{width}d}" if start == previous else f"{start:0{width}d}-{previous:0{width}d}"
        if number is not None:
            start = previous = number
