"""Every function on user text takes time proportional to its length, or limits the length.

The table names the functions, with the largest text that reaches each. Every one gets each of the SEEDS, repeated to a
quarter, a half and the whole of that size. Four times the text may take at most GROWTH times the processor time, and
twice the text GROWTH_OF_HALF times: linear work takes four times and twice as long. Work below MEASURABLE_S at the full
size is too short to compare, and short enough. A busy machine makes single measurements too long, never too short, so
the best of several counts, and a ratio that looks too large is measured again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from acme_client import script, table
from rest_framework.exceptions import APIException

from acmeweb.common.errors import InvalidField, MalformedResponse
from failures.agent import answers
from failures.agent import masking as agent_masking
from failures.detection import stacks, step_cadence, training_output
from failures.diagnosis import engine, lines
from failures.diagnosis.compress import LogCompressor
from failures.diagnosis.parsers import collectives
from failures.diagnosis.values import ParsedLine
from failures.incidents import grouping
from failures.learning import embedding, rule_proposals
from failures.recovery.rules import resizing
from jobs.core import display_text, hostlist, masking, parsing, slurm_notation, spec
from jobs.core.request_fields import REQUEST_FIELDS
from jobs.logs import job_log, log_search
from jobs.rest import json_body
from jobs.traces import cells, rows
from jobs.web import job_forms
from scheduling.backends import dialect, telemetry
from scheduling.evaluation.rules import job_output

KIB = 1024
GROWTH, GROWTH_OF_HALF = 9.0, 3.5  # quadratic: 16 and 4
MEASURABLE_S = 0.1
TRIES = 4

SEEDS = (
    *("a", "0", "A0", "_", "é", " ", "\t", "\n", "a ", "a\n", "\r", "\x1b[", "\x1b]", "\u202e"),
    *('"', "'", "\\", "\"'", '\\"', 'a="', "a='", 'a=\\"', "a =", "=", "--a ", "--a=", "-", "a-", "a.", "a/", "/a"),
    *("TOKEN=", "a_TOKEN ", "--api-key ", "--api-key '", '"key": ', "http://a:", "://", "://a:b", "@", "a@", "a@b."),
    *("Authorization: ", "bearer ", "sk-", "hf_", "eyJ", "eyJaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "-----END "),
    *(
        "[",
        "]",
        "[]",
        "a[",
        "[0",
        "[0-1]",
        "[1-2],",
        "a[1-9]b",
        ",",
        "1,",
        "1-",
        "1:",
        "0-1,",
        "{",
        "}",
        "(",
        ")",
        "[[",
    ),
    *("#", "#a", " #a", "#SBATCH --a ", "#SBATCH '", "$", "${a", "batch_size", "--batch-size 8 ", "a 'b", 'a "b'),
    *(
        "step ",
        "step 1 ",
        "loss: ",
        "iter 1/",
        "rank ",
        "[rank0",
        "time: 1 ",
        "saved ",
        "10.0.",
        "1e",
        "%|",
        "1%|",
        "lr ",
    ),
    *('File "', 'File "a", line 1, in b\n', "Traceback ", "a.Error: ", "Error ", "RuntimeError: x\n", "Xid (", "x=1, "),
    *(
        'a{b="',
        '{b="c",',
        "gres/gpu:",
        "gpu:a:",
        "gpu(IDX:",
        "acme:n {",
        '{"a":',
        "[1,",
        "null,",
        "afterok:1,",
        "A=1\n",
    ),
)


@dataclass(frozen=True)
class Case:
    name: str
    call: Callable[[str], object]
    size: int = 64 * KIB  # largest text that reaches the function


def field(name: str) -> Callable[[str], object]:
    return lambda text: spec.parse({"command": "x", name: text}, SHAPE)


SHAPE = spec.ClusterShape(name="seren", nodes=(spec.NodeShape(count=4, gpus=8, cpus=64, memory_mb=1 << 20),))
# A refusal is a valid result; any other exception fails the test
REFUSALS = (ValueError, APIException, InvalidField, MalformedResponse)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def resized(text: str) -> object:
    asked = resizing.JobRequest(command=text, environment={"A": text[: len(text) // 4]})
    found = resizing.build_memory_request(asked, most_memory_mb=1 << 20, whole_nodes=False)
    return resizing.applicable_request(resizing.GPU_OOM, found, asked)


def directives(text: str) -> object:
    return script.build_submit_body([], text, now=NOW, environment={})


def looked_for(text: str) -> object:
    return [list(log_search.text_matcher(word)((text * 4).encode(), 4 * len(text))) for word in (text[:200], "a")]


def compressed(text: str) -> object:
    compressor = LogCompressor()
    compressor.feed(text.encode())
    return compressor.bundle()


def confirmed(text: str) -> object:
    past = rule_proposals.StoredBundle(key=1, cause="CUDAError", bundle=text, confirmed=True)
    other = rule_proposals.StoredBundle(key=2, cause="ImportError", bundle=text[: len(text) // 2], confirmed=True)
    return rule_proposals.propose_rule(past, [text[:400]], [past, other])


CASES = (
    # display of commands, environments, comments, labels and names
    Case("masked command or comment", masking.mask_text),
    Case("masked environment", lambda text: masking.mask_secrets({"A": text})),
    Case("secret name", masking.is_secret_name),
    Case("cleaned text", display_text.strip_control_characters),
    Case("cleaned name", display_text.single_line),
    Case("masked text for a model", agent_masking.mask_bundle),
    Case("cells for a terminal", lambda text: table.format_table([("A", lambda row: row)], [text])),  # type: ignore[arg-type]
    Case("lines for a terminal", table.clean_log_text, 256 * KIB),
    # parsing of requests
    *(Case(f"field {name}", field(name)) for name in REQUEST_FIELDS),
    Case("environment of a request", lambda text: spec.parse({"command": "x", "environment": {"A": text}}, SHAPE)),
    Case("labels of a request", lambda text: spec.parse({"command": "x", "labels": {text: text}}, SHAPE)),
    Case("text field", lambda text: parsing.text_reader(64 * KIB)("comment", text)),
    Case("JSON body", lambda text: json_body.read(text.encode()), 1024 * KIB),
    Case("JSON text", lambda text: json_body.read(json.dumps({"command": text}).encode()), 1024 * KIB),
    Case("form lines", lambda text: job_forms.parse_pairs("labels", text)),
    Case("duration", slurm_notation.parse_duration),
    Case("memory", slurm_notation.parse_memory_mb),
    Case("array", lambda text: slurm_notation.parse_array(text, 5000)),
    Case("signal", slurm_notation.parse_signal),
    Case("node list", hostlist.expand),
    Case("node names", lambda text: hostlist.compress(text.split(","))),
    Case("node name", lambda text: hostlist.compress([text])),
    Case("sbatch script", directives),
    Case("sbatch words", lambda text: script.split_options(text.split(" "))),
    Case("task ids of the command line", lambda text: table.expand_task_ids([text])),
    Case("node names of the command line", lambda text: table.format_hostlist(text.split(","))),
    # processing of commands
    Case("smaller batch of a command", resized),
    # logs
    Case("cleaned log", lambda text: job_log.decode_log_text(text.encode()), 256 * KIB),
    Case("search in a log", looked_for),
    Case(
        "level in a log",
        lambda text: list(log_search.words_matcher(log_search.LEVEL_WORDS["warning"])(text.encode(), len(text))),
        256 * KIB,
    ),
    Case("rank in a log", lambda text: list(log_search.rank_matcher(3)(text.encode(), len(text))), 256 * KIB),
    Case("one log line", lambda text: lines.parse(1, text)),
    Case(
        "collective of a rank", lambda text: collectives.parse_position(ParsedLine(number=1, text=text, message=text))
    ),
    Case("diagnosis of a log", lambda text: engine.diagnose_text(text), 128 * KIB),
    Case("compressed log", compressed, 128 * KIB),
    Case("steps in a log", lambda text: training_output.parse_training_output(text.split("\n"))),
    Case(
        "cadence of a log", lambda text: step_cadence.update_cadence(step_cadence.CadenceState(), text.split("\n"), 0.0)
    ),
    Case("stacks in a log", stacks.parse_stacks, 128 * KIB),
    Case("words of a failure", grouping.shape_of_line),
    Case("vector of a bundle", embedding.embed_bundle),
    Case("proposed rule", confirmed),
    Case("answer of a model", lambda text: answers.parse_json_object(text)),
    Case("results of an evaluation", lambda text: job_output.parse_job_output(["acme:n " + text], "n"), 128 * KIB),
    # tables, and responses of clusters
    *(
        Case(f"cell {parse.__name__}", parse)
        for parse in (cells.parse_number, cells.parse_time, cells.parse_slurm_clock, cells.parse_megabytes)
    ),
    Case("cell gpus_of_tres", cells.parse_tres_gpus),
    Case("trace", lambda text: rows.read_text_trace(["job_id,submit_time,duration,num_gpus", *text.split("\n")])),
    Case("telemetry page", telemetry.parse, 128 * KIB),
    Case("GPUs of a node", lambda text: dialect.GPU_COUNT.findall(text) + dialect.GPU_INDICES.findall(text)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_four_times_the_text_takes_about_four_times_as_long(case):
    slow = [seed for seed in SEEDS if not any(grows_linearly(case, seed) for _ in range(TRIES))]

    assert not slow


def grows_linearly(case: Case, seed: str) -> bool:
    whole = taken(case, repeated(seed, case.size))
    if whole < MEASURABLE_S:
        return True
    quarter, half, again = (best_of(case, repeated(seed, case.size // part), 2) for part in (4, 2, 1))
    whole = min(whole, again)
    return whole < MEASURABLE_S or (whole < GROWTH * quarter and whole < GROWTH_OF_HALF * half)


def repeated(seed: str, size: int) -> str:
    return (seed * (size // len(seed) + 1))[:size] + "!"


def best_of(case: Case, text: str, times: int) -> float:
    return min(taken(case, text) for _ in range(times))


def taken(case: Case, text: str) -> float:
    began = time.process_time()
    with suppress(*REFUSALS):
        case.call(text)
    return time.process_time() - began


def test_a_quadratic_function_is_found():
    quadratic = Case("quadratic", re.compile("a+b").search, 32 * KIB)

    assert not grows_linearly(quadratic, "a")
