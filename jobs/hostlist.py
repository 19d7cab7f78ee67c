"""Node lists as Slurm writes them: `gpu[001-003,020]`. Pure text in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

NUMBERED = re.compile(r"^(.*?)(\d+)$")
MOST = 100_000  # a list is typed by a person or sent by a cluster; neither may make us fill the memory


class BadHostlist(ValueError):
    pass


def expand(text: str) -> list[str]:
    """Every name in the order written: `a[1-2],b` is a1, a2, b."""
    names = list(islice((name for part in _split(text) for name in _expand_part(part)), MOST + 1))
    if len(names) > MOST:
        raise BadHostlist(f"{text[:40]!r} names more than {MOST} nodes")
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


def _expand_part(part: str) -> Iterator[str]:
    part = part.strip()
    if not part:
        return
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for number in _numbers(inside, part):
        for end in _expand_part(tail) if tail else [""]:
            yield f"{head}{number}{end}"


def _numbers(inside: str, part: str) -> Iterator[str]:
    for piece in inside.split(","):
        low, dash, high = piece.strip().partition("-")
        high = high if dash else low
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit()):
            raise BadHostlist(f"{part[:40]!r}: {piece[:20]!r} is neither a number nor a range")
        if int(high) - int(low) > MOST:
            raise BadHostlist(f"{part[:40]!r} names more than {MOST} nodes")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


def compress(names: Iterable[str]) -> str:
    """The shortest list that expands to the same set, sorted the way a person counts."""
    plain: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = NUMBERED.match(name)
        # 1 and 01 are different names, so the width belongs to the group; a plain number has none beyond its digits
        if match:
            head, digits = match[1], match[2]
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
