"""Formats rows as squeue and sinfo do, or as CSV and JSON. Control characters in names are never interpreted."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

TableRow = Mapping[str, Any]
TableColumn = tuple[str, Callable[[TableRow], Any]]

# Terminals interpret these characters, so names and logs must not contain them
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

STATE_CODES = {
    "PD": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
}


def clean_text(value: Any) -> str:
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", "" if value is None else str(value))


ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)


def clean_log_text(text: str) -> str:
    """Remove terminal control from job output: newlines and tabs stay, colors do not."""
    lines = ESCAPE_SEQUENCES.sub("", text.replace("\r\n", "\n")).split("\n")
    return "\n".join("\t".join(clean_text(cell) for cell in line.rpartition("\r")[2].split("\t")) for line in lines)


def format_duration(seconds: float) -> str:
    """Return `D-HH:MM:SS`; below an hour `M:SS`, like squeue."""
    total = max(0, int(seconds))
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    short = f"{rest // 60:02d}:{rest % 60:02d}"
    if days:
        return f"{days}-{hours:02d}:{short}"
    return f"{hours}:{short}" if hours else f"{rest // 60}:{rest % 60:02d}"


def format_time(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M:%S} UTC"


def elapsed_time(row: TableRow, now: datetime) -> str:
    if not row["started_at"]:
        return "0:00"
    end = datetime.fromisoformat(row["ended_at"]) if row["ended_at"] else now
    return format_duration((end - datetime.fromisoformat(row["started_at"])).total_seconds())


def nodelist_or_reason(row: TableRow) -> str:
    """Return the value of squeue's column NODELIST(REASON)."""
    return f"({row['reason'] or 'None'})" if row["state"] == "PENDING" else str(row["nodelist"])


def job_columns(now: datetime, wide: bool) -> list[TableColumn]:
    columns: list[TableColumn] = [
        ("JOBID", lambda row: row["id"]),
        ("CLUSTER", lambda row: row["cluster"]),
        ("NAME", lambda row: row["name"]),
        ("USER", lambda row: row["user"]),
        ("ST", lambda row: row["code"]),
        ("TIME", lambda row: elapsed_time(row, now)),
        ("NODES", lambda row: row["nodes"]),
        ("NODELIST(REASON)", nodelist_or_reason),
    ]
    more: list[TableColumn] = [
        ("ACCOUNT", lambda row: row["team"]),
        ("KIND", lambda row: row["kind"]),
        ("GPUS", lambda row: row["gpus"]),
        ("PRIORITY", lambda row: row["priority"]),
        ("TIMELIMIT", lambda row: format_duration(row["time_limit"]) if row["time_limit"] is not None else "UNLIMITED"),
        ("SUBMIT", lambda row: row["submitted_at"]),
        ("START", lambda row: row["started_at"]),
        ("WHY", lambda row: row["why"]),
    ]
    return columns + more if wide else columns


NODE_COLUMNS: list[TableColumn] = [
    ("NODE", lambda row: row["id"]),
    ("STATE", lambda row: row["code"]),
    ("GPUS", lambda row: f"{row['gpus_allocated']}/{row['gpus']}"),
    ("MODEL", lambda row: row["gpu_model"]),
    ("CPUS", lambda row: row["cpus"]),
    ("MEMORY", lambda row: row["memory"]),
    ("RACK", lambda row: row["rack"]),
    ("REASON", lambda row: row["reason"]),
    ("BY", lambda row: row["reason_by"]),
]
OUTCOME_COLUMNS: list[TableColumn] = [
    ("JOBID", lambda row: row["id"]),
    ("SUCCEEDED", lambda row: "yes" if row["succeeded"] else "no"),
    ("ERROR", lambda row: row.get("error", "")),
]
GROUP_COLUMNS: list[TableColumn] = [
    (name, itemgetter(name)) for name in ("CLUSTER", "NODES", "STATE", "GPUS", "NODELIST")
]


def group_nodes(nodes: Sequence[TableRow]) -> list[TableRow]:
    """Return sinfo's summary: one line for the nodes of a cluster in the same state."""
    groups: dict[tuple[str, str], list[TableRow]] = {}
    for node in nodes:
        groups.setdefault((node["cluster"], node["code"]), []).append(node)
    return [
        {
            "CLUSTER": cluster,
            "NODES": len(members),
            "STATE": state,
            "GPUS": f"{sum(node['gpus_allocated'] for node in members)}/{sum(node['gpus'] for node in members)}",
            "NODELIST": format_hostlist([node["name"] for node in members]),
        }
        for (cluster, state), members in groups.items()
    ]


def format_hostlist(names: Sequence[str]) -> str:
    """Return a host list such as `gpu[001-016,020]`; names without a trailing number are listed one by one."""
    plain: list[str] = []
    numbered: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if match:
            numbered.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            plain.append(name)
    return ",".join(
        plain + [_format_hostlist_range(prefix, width, sorted(found)) for (prefix, width), found in numbered.items()]
    )


def _format_hostlist_range(prefix: str, width: int, numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    parts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
    return f"{prefix}[{','.join(parts)}]"


def format_table(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> str:
    cells = [[title for title, _ in columns], *([clean_text(read(row)) for _, read in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    return "\n".join(" ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def format_csv(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([title for title, _ in columns])
    writer.writerows([_escape_formula(clean_text(read(row))) for _, read in columns] for row in rows)
    return text.getvalue().rstrip("\n")


def _escape_formula(cell: str) -> str:
    """Quote a cell that a spreadsheet would treat as a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "@") else cell


def format_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def progress_fields(progress: TableRow, checkpoints: Sequence[TableRow]) -> dict[str, str]:
    """Return step, loss and last checkpoint of a job, as far as known. A checkpoint from the log counts only if none
    was reported. The server discards all values from the log once the job reports a step."""
    newest, by_log = progress["latest"] or {}, " (from the log)" if progress["source"] else ""
    fields = {}
    if newest.get("step") is not None:
        total = f" of {progress['steps_total']}" if progress.get("steps_total") is not None else ""
        fields["Step"] = f"{newest['step']}{total} at {format_time(newest['at'])}{by_log}"
    if newest.get("loss") is not None:
        fields["Loss"] = str(newest["loss"])
    for checkpoint in checkpoints[:1]:
        state = "durable" if checkpoint["durable_at"] else "not durable yet"
        fields["Last save"] = (
            f"step {checkpoint['step']} at {format_time(checkpoint['saved_at'])}, {state}, in {checkpoint['path']}"
        )
    if not checkpoints and progress.get("saved_at"):
        fields["Last save"] = (
            f"step {progress['saved_step']} at {format_time(progress['saved_at'])}{by_log}, unverified"
        )
    return fields


def format_details(row: TableRow) -> str:
    width = max(map(len, row))
    return "\n".join(f"{name.ljust(width)}  {_format_detail(value)}" for name, value in row.items())


def _format_detail(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{clean_text(name)}={clean_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ",".join(map(clean_text, value))
    if isinstance(value, str) and "\n" in value:
        return "".join(f"\n    {clean_text(line)}" for line in value.splitlines())
    return clean_text(value)


def expand_task_ids(ids: Sequence[str]) -> list[str]:
    """Expand ranges of array tasks: `ID_[0-3,7]` is five tasks."""
    expanded: list[str] = []
    for id in ids:
        match = re.fullmatch(r"(\w+?)_\[([\d,-]+)\]", id)
        if not match:
            expanded.append(id)
            continue
        for part in match[2].split(","):
            low, _, high = part.partition("-")
            if not low or (high and int(high) - int(low) > 5000):
                raise ValueError(f"{id} is not a range of tasks. Write ID_[0-7].")
            expanded += [f"{match[1]}_{index}" for index in range(int(low), int(high or low) + 1)]
    return expanded
