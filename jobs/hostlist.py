"""Node lists as Slurm writes them: `gpu[001-003,020]`. Pure text in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

NUMBERED = re.compile(r"(?<![0-9])[0-9]{1,18}\Z")
LONGEST = 1_000_000  # characters of a list: 100,000 nodes, each with its name written out
MOST_CHARACTERS = 16_000_000  # of all names together
LONGEST_NAME = 255
MOST_DIGITS = 18
MOST = 100_000  # a list is typed by a person or sent by a cluster; neither may make us fill the memory


class BadHostlist(ValueError):
    pass


def expand(text: str) -> list[str]:
    """Every name in the order written: `a[1-2],b` is a1, a2, b. Counted before anything is expanded."""
    if len(text) > LONGEST:
        raise BadHostlist(f"{text[:40]!r}… has more than {LONGEST} characters")
    parts = [_read_part(part.strip()) for part in _split(text) if part.strip()]
    counts = [prod(_count(piece) for piece in pieces) for pieces in parts]
    if sum(counts) > MOST:
        raise BadHostlist(f"{text[:40]!r} names more than {MOST} nodes")
    if sum(map(_size, parts, counts)) > MOST_CHARACTERS:
        raise BadHostlist(f"{text[:40]!r} names nodes with too long names")
    names = ["".join(name) for pieces in parts for name in product(*map(_texts, pieces))]
    if too_long := next((name for name in names if len(name) > LONGEST_NAME), ""):
        raise BadHostlist(f"{too_long[:40]!r} is longer than {LONGEST_NAME} characters")
    return names


def _split(text: str) -> Iterator[str]:
    """Cut at the commas that stand outside brackets."""
    depth = start = 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise BadHostlist(f"{text[:40]!r} has unbalanced brackets")
        if char == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if depth:
        raise BadHostlist(f"{text[:40]!r} has unbalanced brackets")
    yield text[start:]


# A piece of a name: text as it stands, or the ranges of a bracket as (first, last, digits)
Ranges = list[tuple[int, int, int]]
Piece = str | Ranges


def _read_part(part: str) -> list[Piece]:
    head, *brackets = part.split("[")
    pieces: list[Piece] = [head]
    for bracket in brackets:
        inside, _, tail = bracket.partition("]")
        pieces += [[_range(piece.strip(), part) for piece in inside.split(",")], tail]
    return [piece for piece in pieces if piece]


def _range(piece: str, part: str) -> tuple[int, int, int]:
    low, dash, high = piece.partition("-")
    high = high if dash else low
    if not (_is_number(low) and _is_number(high)):
        raise BadHostlist(f"{part[:40]!r}: {piece[:20]!r} is neither a number nor a range")
    if int(high) < int(low):
        raise BadHostlist(f"{part[:40]!r}: {piece[:20]!r} counts down")
    if int(high) - int(low) > MOST:
        raise BadHostlist(f"{part[:40]!r} names more than {MOST} nodes")
    return int(low), int(high), len(low)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def _count(piece: Piece) -> int:
    return 1 if isinstance(piece, str) else sum(high - low + 1 for low, high, _ in piece)


def _size(pieces: list[Piece], count: int) -> int:
    """Characters of all names of a part, at most."""
    return count * sum(len(piece) if isinstance(piece, str) else MOST_DIGITS for piece in pieces)


def _texts(piece: Piece) -> list[str]:
    if isinstance(piece, str):
        return [piece]
    return [str(number).zfill(digits) for low, high, digits in piece for number in range(low, high + 1)]


def compress(names: Iterable[str]) -> str:
    """The shortest list that expands to the same set, sorted the way a person counts."""
    plain: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = NUMBERED.search(name)
        # 1 and 01 are different names, so the width belongs to the group; a plain number has none beyond its digits
        if match:
            head, digits = name[: match.start()], match[0]
            width = len(digits) if digits.startswith("0") else 0
            groups.setdefault((head, width), []).append(int(digits))
        else:
            plain.append(name)
    _join_widths(groups)
    lists = [_group(head, width, sorted(numbers)) for (head, width), numbers in sorted(groups.items())]
    return ",".join([*plain, *lists])


def _join_widths(groups: dict[tuple[str, int], list[int]]) -> None:
    """Numbers that fill a padded group's width exactly (gpu09, gpu10) belong to that group."""
    for head, width in [key for key in groups if key[1]]:
        free = groups.get((head, 0), [])
        fitting = [n for n in free if len(str(n)) == width]
        groups[head, width].extend(fitting)
        rest = [n for n in free if len(str(n)) != width]
        if rest:
            groups[head, 0] = rest
        else:
            groups.pop((head, 0), None)


def _group(head: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}"
    return f"{head}[{','.join(_ranges(numbers, width))}]"


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    start = previous = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == previous + 1:
            previous = number
            continue
        yield f"{start:0{width}d}" if start == previous else f"{start:0{width}d}-{previous:0{width}d}"
        if number is not None:
            start = previous = number
