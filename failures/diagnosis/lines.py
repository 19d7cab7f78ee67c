"""Parses one log line into time, host, rank, level and message. Pure.

Launchers, loggers and kernels add prefixes to a line, often several in a row, so prefixes are removed one by one until
none is left. At most eight are removed: a line that consists of brackets only is text.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field

from .values import ParsedLine

MAX_PREFIXES = 8
MAX_LINE_CHARS = 4096
TIMESTAMP_GROUP = r"(?P<time>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
LEVEL_GROUP = (
    r"(?P<level>DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL|err(?:or)?|warning|info|debug|crit|emerg|alert)"
)
DIGITS, LOWER, UPPER = string.digits, string.ascii_lowercase, string.ascii_uppercase
LETTERS = LOWER + UPPER
# (first characters, pattern) of each prefix; the first match is used
PREFIXES: tuple[tuple[str, str], ...] = (
    ("@", r"@\d+(?: x\d+)? \| "),  # a row of a bundle
    ("[", r"\[rank:? ?(?P<rank>\d+)\](?::| |$)"),
    ("[", r"\[[a-zA-Z_]\w*?(?P<local>\d+)\]:"),  # elastic's [default3]:
    ("[", r"\[\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[\w.-]+)?\](?:<std(?:out|err)>)?:"),  # mpirun --tag-output, SageMaker
    ("Rr", r"[Rr]ank ?(?P<rank>\d+)(?:/\d+)? ?[:|]"),
    ("[", r"\[[Rr]ank (?P<rank>\d+)\]"),
    ("[", r"\[PG [^\]]*?Rank (?P<rank>\d+)\]"),
    (DIGITS, r"(?P<rank>\d{1,5}):(?= +\S)"),  # srun --label
    (
        "(" + LETTERS,
        r"\(?(?P<tag>[A-Za-z]\w*) (?:rank=(?P<rank>\d+),? ?)?pid=\d+(?:, ?ip=(?P<host>[\w.:-]+))?\)?",
    ),  # Ray, vLLM
    ("[", r"\[[^\]]{0,60}\bTP(?P<rank>\d+)[^\]]{0,20}\]"),
    ("[" + DIGITS, rf"\[?{TIMESTAMP_GROUP}\]?:?"),
    ("[", r"\[(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)\]"),
    (DIGITS, r"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?) (?=\S)"),
    (LETTERS, rf"(?:[\w.]{{1,60}} - )?{LEVEL_GROUP} - (?=\S)"),  # logging's name and level between dashes
    ("t", rf'time="?(?P<time>[^" ]{{1,40}})"? level={LEVEL_GROUP} msg="?'),  # logfmt, of programs written in Go
    (LOWER, r"[a-z][\w.-]{1,80} +\|(?= +\S)"),  # docker compose
    ("s", r"std(?:out|err) [FP]\b"),  # a container's log file, after its time
    ("{", r'\{"(?:log|message|msg|line|textPayload)": ?"'),  # one JSON object per line
    ("[", r"\[pod/[\w./-]+\]"),  # kubectl logs --prefix
    ("[", r"\[local_rank:? ?(?P<local>\d+)\]"),
    ("[", r"\[[\w/.-]+ \(pid \d+\)\]"),  # Metaflow
    (DIGITS, r"\d{13}(?= )"),  # milliseconds of a log service
    (UPPER, r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.-]+) (?=[\w./-]+(?:\[\d+\])?:)"),  # syslog
    ("[", r"\[ *(?P<uptime>\d+\.\d{3,6})\]"),  # dmesg
    ("ksnj", r"(?P<tag>kernel|systemd|slurmd|slurmctld|slurmstepd|srun|nvidia-persistenced|journal)(?:\[\d+\])?:"),
    (LETTERS, r"[A-Za-z][\w./-]{0,60}\[\d+\]:"),  # any other program in the journal
    ("k", r"kern: *"),
    (
        "[IWEF",
        r"\[?(?P<glog>[IWEF])\d{3,4} (?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)(?: +\d+)? (?P<src>[\w./-]+:\d+)\] ?",
    ),
    ("[IWEF", r"\[?(?P<glog>[IWEF]) (?P<src>[\w./-]+:\d+)\] ?"),
    (LETTERS, r"(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+):\d+ \[(?P<gpu>\d+)\](?: [\w./-]+:\d+)?"),  # NCCL
    (
        "[DINWEFCewidca",
        rf"\[?{LEVEL_GROUP}\]?(?=[\s:\]|])(?: \d\d-\d\d (?P<time>\d\d:\d\d:\d\d))?(?: \[[^\]]{{0,60}}\])?:?",
    ),
    ("[", r"\[(?:[\w./-]+:\d+:?\w*|[\w.]+)\]"),
    (DIGITS + LOWER, r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}|[a-z][\w-]*-\d[\w.-]*):(?= +\S)"),  # pdsh, DeepSpeed
    ("|", r"\| ?"),
    ("N", r"NCCL (?P<level>WARN|INFO)"),
    ("-", r"-+ "),
)
# Prefixes by first character, so that a plain line is tried against three of them and not against all
PREFIXES_BY_LETTER: dict[str, tuple[re.Pattern[str], ...]] = {
    letter: tuple(re.compile(pattern) for starts, pattern in PREFIXES if letter in starts)
    for letter in {letter for starts, _ in PREFIXES for letter in starts}
}
GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
LOW_LEVELS = frozenset({"DEBUG", "INFO", "NOTICE", "WARNING"})
RANK_MENTION = re.compile(r"\b[Rr]ank[ :=]{1,3}(\d{1,6})\b")


@dataclass
class _PrefixFields:
    rank: int | None = None
    gpu: int | None = None
    host: str = ""
    time: str = ""
    level: str = ""
    words: dict[str, str] = field(default_factory=dict)

    def take(self, parts: dict[str, str | None]) -> None:
        """Add the fields of a prefix. Outer prefixes win: the launcher adds them and is the most reliable source."""
        for name in ("rank", "gpu"):
            if (text := parts.get(name)) is not None and getattr(self, name) is None:
                setattr(self, name, int(text))
        self.host = self.host or parts.get("host") or ""
        self.time = self.time or parts.get("time") or parts.get("uptime") or ""
        self.level = self.level or _log_level(parts)
        if self.gpu is None and (local := parts.get("local")) is not None:
            self.gpu = int(local)


def _log_level(parts: dict[str, str | None]) -> str:
    if letter := parts.get("glog"):
        return GLOG_LEVELS[letter]
    word = (parts.get("level") or "").upper()
    return {"WARN": "WARNING", "ERR": "ERROR"}.get(word, word)


def parse(number: int, text: str) -> ParsedLine:
    """The line without its prefixes. The message keeps its own indentation."""
    text = text[:MAX_LINE_CHARS].rstrip()
    fields, remainder = _PrefixFields(), text
    for _ in range(MAX_PREFIXES):
        bare = remainder.lstrip()
        match = _match_prefix(bare)
        if match is None or match.end() == 0:
            break
        fields.take(match.groupdict())
        remainder = bare[match.end() :]
    message = remainder[1:] if remainder is not text and remainder.startswith(" ") else remainder
    if fields.rank is None and "ank" in text and (named := RANK_MENTION.search(text)):
        fields.rank = int(named[1])
    return ParsedLine(
        number=number, text=text.strip(), message=message, rank=fields.rank, host=fields.host, gpu=fields.gpu,
        time=fields.time, level=fields.level,
    )  # fmt: skip


def _match_prefix(bare: str) -> re.Match[str] | None:
    for prefix in PREFIXES_BY_LETTER.get(bare[:1], ()):
        if match := prefix.match(bare):
            return match
    return None
