"""Reading traces: every layout with its pitfall, and bad rows."""

import gzip
import io
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmeweb.common.errors import InvalidInput
from jobs.traces.cells import parse_megabytes, parse_slurm_clock, parse_time, parse_tres_gpus
from jobs.traces.files import read_trace, write_trace
from jobs.traces.rows import read_text_trace
from jobs.traces.trace import trace_from_columns

SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
a,u1,1,8,16,SFT,COMPLETED,2023-03-01 00:00:10+08:00,2023-03-01 00:00:15+08:00,2023-03-01 00:01:15+08:00,60,5,480
b,u2,0,0,4,Eval,FAILED,2023-03-01 00:00:00+08:00,2023-03-01 00:00:00+08:00,2023-03-01 00:00:07+08:00,7,0,0
"""
KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,\
fail_time,stop_time,duration,queue,gpu_time
k,u,1,8,16,10,1,Pretrain,COMPLETED,2023-05-17 11:00:00+00:00,{start},{end},,,100,40,800
"""
HELIOS = """\
job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u,vcA,train,4,8,1,COMPLETED,2020-04-01 00:08:00,2020-04-01 00:08:10,2020-04-01 00:09:10,60,10
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,460,,LS,Running,100,1100,150
p1,12000,16384,1,460,,BE,Pending,200,,
"""
SACCT = """\
JobID|JobName|User|Account|Partition|Submit|Start|End|Elapsed|AllocTRES|ReqTRES|NNodes|NCPUS|ReqMem|State|Timelimit
12|x|ada|p|gpu|2024-01-01T00:00:00|2024-01-01T00:00:30|2024-01-01T01:00:30|01:00:00|{tres}|gres/gpu=16|2|64|500G|COMPLETED|1-00:00:00
12.batch|batch||p||2024-01-01T00:00:30|2024-01-01T00:00:30|2024-01-01T01:00:30|01:00:00|||1|32||COMPLETED|
13|y|ben|p|gpu|2024-01-01T00:01:00|Unknown|Unknown|00:00:00||gres/gpu=1|1|1|0|PENDING|UNLIMITED
"""
SWF = """\
; Version: 2.2
  1  0  5 100 64 -1 -1 64 200 -1 1 7 3 1 2 -1 -1 -1
  2 10 -1  -1 -1 -1 -1  8  -1 -1 5 7 3 1 2 -1 -1 -1
"""
PLAIN = "job_id,user,group_or_vc,type,submit_ts,duration_s,gpu_num,node_num,cpu_num,state,queue_s\n"


def lines(text):
    return io.StringIO(text)


def row(number, *, submit=0, runtime=10, gpus=1):
    return f"{number},u,all,,{submit},{runtime},{gpus},,,,\n"


# layouts


def test_seren_rows_are_sorted_by_submission():
    trace = read_text_trace(lines(SEREN))

    assert list(trace.ids) == ["b", "a"]
    assert trace.submit_s.tolist() == [0, 10]
    assert trace.runtime_s.tolist() == [7, 60]
    assert trace.queue_s.tolist() == [0, 5]
    assert list(trace.kinds) == ["evaluation", "sft"]
    assert trace.began_s == parse_time("2023-02-28T16:00:00+00:00")


@pytest.mark.parametrize(
    ("start", "end"),
    [("", ""), ("2023-05-17 11:00:40+00:00", "2023-05-17 11:01:40+00:00")],
)
def test_queueing_is_subtracted_from_the_durations_of_kalos(start, end):
    trace = read_text_trace(lines(KALOS.format(start=start, end=end)))

    assert trace.runtime_s.tolist() == [60]
    assert list(trace.kinds) == ["pretrain"]


def test_helios_keeps_virtual_cluster_and_name():
    trace = read_text_trace(lines(HELIOS))

    assert (trace.pools[0], trace.names[0], trace.gpus[0], trace.runtime_s[0]) == ("vcA", "train", 4, 60)


def test_openb_pod_runs_from_scheduling_to_deletion():
    trace = read_text_trace(lines(OPENB))

    assert (trace.runtime_s.tolist(), trace.queue_s.tolist(), trace.cpus.tolist()) == ([950], [50], [12])
    assert trace.bad[0].line == 3
    assert trace.bad[0].why == "no run time"


@pytest.mark.parametrize("tres", ["billing=64,gres/gpu:a100=16,gres/gpu=16", "gres/gpu:a100=8,gres/gpu:h100=8", ""])
def test_sacct_counts_jobs_without_their_steps(tres):
    trace = read_text_trace(lines(SACCT.format(tres=tres)))

    assert list(trace.ids) == ["12"]
    assert (trace.gpus[0], trace.nodes[0], trace.runtime_s[0], trace.queue_s[0]) == (16, 2, 3600, 30)
    assert (trace.limit_s[0], trace.memory_mb[0]) == (86400, 500 * 1024)


@pytest.mark.parametrize(("column", "team"), [("Account", "nlp"), ("Comment", "gpu")])
def test_team_of_a_slurm_job_is_its_account_if_the_table_has_it(column, team):
    trace = read_text_trace(
        [
            f"JobID|User|Partition|{column}|State|Submit|Start|End|AllocTRES",
            "7|ada|gpu|nlp|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T00:01:00|gres/gpu=1",
        ]
    )

    assert trace.pools[0] == team


def test_sacct_job_that_did_not_run_is_a_bad_row():
    trace = read_text_trace(lines(SACCT.format(tres="")))

    assert [(bad.line, bad.why) for bad in trace.bad] == [(4, "no run time")]


def test_swf_uses_cpus_and_minus_one_for_unknown():
    trace = read_text_trace(lines(SWF))

    assert (trace.cpus.tolist(), trace.limit_s.tolist(), trace.queue_s.tolist()) == ([64], [200], [5])
    assert trace.users[0] == "7"
    assert (trace.bad[0].line, trace.bad[0].why) == (3, "no run time")


def test_philly_sums_attempts_and_uses_the_gpus_of_the_first():
    attempt = {"start_time": "2017-10-09 00:01:00", "end_time": "2017-10-09 00:02:00"}
    first = {**attempt, "detail": [{"ip": "m1", "gpus": ["g0", "g1"]}, {"ip": "m2", "gpus": ["g0"]}]}
    job = {"status": "Pass", "vc": "v", "jobid": "j", "user": "u", "submitted_time": "2017-10-09 00:00:00"}
    never = {**job, "attempts": []}

    trace = read_text_trace(lines(json.dumps([{**job, "attempts": [first, attempt]}, never])))

    assert (trace.gpus.tolist(), trace.nodes.tolist(), trace.runtime_s.tolist()) == ([3], [2], [120])
    assert (trace.bad_count, trace.bad[0].line) == (1, 2)


# bad rows, bad files


def test_bad_row_is_quoted_with_its_line_and_the_others_are_read():
    text = PLAIN + row(1) + row(2, runtime="soon") + "3,short\n" + row(4, runtime=-1) + row(5, gpus=-2) + row(6)

    trace = read_text_trace(lines(text))

    assert list(trace.ids) == ["1", "6"]
    assert [(bad.line, bad.why) for bad in sorted(trace.bad, key=lambda bad: bad.line)] == [
        (3, "'soon' cannot be read"),
        (4, "2 cells, the header has 11"),
        (5, "negative run time"),
        (6, "negative number of GPUs"),
    ]
    assert trace.bad_count == 4


def test_all_bad_rows_are_counted_and_the_first_are_quoted():
    trace = read_text_trace(lines(PLAIN + "".join(row(n, runtime="x") for n in range(100))))

    assert (len(trace), trace.bad_count, len(trace.bad)) == (0, 100, 20)


def test_unclosed_quote_is_a_bad_row():
    trace = read_text_trace(lines(PLAIN + row(1) + '"2,u,all\n' + row(3)))

    assert list(trace.ids) == ["1"]
    assert trace.bad_count >= 1


@pytest.mark.parametrize("text", ["", "time,power\n1,2\n"])
def test_file_that_is_not_a_trace_is_rejected(text):
    with pytest.raises(InvalidInput):
        read_text_trace(lines(text))


@given(st.text(alphabet='0123456789,.-"\n\r aTZ|;', max_size=300))
def test_no_text_after_a_good_header_crashes_the_reader(text):
    trace = read_text_trace(io.StringIO(PLAIN + text, newline=""))

    assert len(trace) + trace.bad_count >= 0


# cells


@pytest.mark.parametrize(
    ("cell", "seconds"), [("1-00:00:00", 86400), ("02:30", 150), ("01:00:01.5", 3601.5), ("90", 90)]
)
def test_all_duration_notations_of_slurm_are_parsed(cell, seconds):
    assert parse_slurm_clock(cell) == seconds


@pytest.mark.parametrize(("cell", "mb"), [("500G", 512000), ("1T", 1048576), ("2048K", 2), ("4000Mc", 4000), ("7", 7)])
def test_memory_is_converted_to_mebibytes(cell, mb):
    assert parse_megabytes(cell) == mb


def test_gpus_of_several_models_are_summed():
    assert parse_tres_gpus("cpu=4,gres/gpu:a100=3,gres/gpu:h100=2") == 5


def test_times_with_different_zone_notations_may_be_mixed():
    text = SEREN.replace("2023-03-01 00:00:10+08:00", "2023-02-28T16:00:10Z").replace(":15+08:00,60", ":15+08:00,60")

    assert read_text_trace(lines(text)).submit_s.tolist() == [0, 10]


# files


def test_compressed_file_is_detected_by_its_first_bytes(tmp_path):
    packed = tmp_path / "trace"
    packed.write_bytes(gzip.compress((PLAIN + row(1)).encode()))

    assert len(read_trace(packed)) == 1


def test_truncated_file_is_rejected(tmp_path):
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress((PLAIN + "".join(row(n) for n in range(5000))).encode())[:-2000])

    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(packed)


def test_exported_trace_is_read_back_unchanged(tmp_path):
    trace = trace_from_columns(
        "ours", submit_s=[0, 5], runtime_s=[1.5, 2], gpus=[1, 12], limit_s=[np.nan, 60], users=["a,b", 'c"d']
    )
    with (tmp_path / "out.csv").open("w") as out:
        write_trace(trace, out)

    again = read_trace(tmp_path / "out.csv")

    assert (again.runtime_s.tolist(), again.gpus.tolist(), list(again.users)) == ([1.5, 2], [1, 12], ["a,b", 'c"d'])
    assert np.array_equal(again.limit_s, trace.limit_s, equal_nan=True)


def test_rows_of_several_blocks_are_all_read():
    text = PLAIN + "".join(row(n, submit=n, runtime="bad" if n % 9999 == 0 else 1) for n in range(45_000))

    trace = read_text_trace(lines(text))

    assert len(trace) + trace.bad_count == 45_000
    assert [bad.line for bad in trace.bad] == [2, 10_001, 20_000, 29_999, 39_998]


def test_zstd_file_is_decompressed(tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    packed = tmp_path / "trace.csv"
    packed.write_bytes(zstd.compress((PLAIN + row(1) + row(2)).encode()))

    assert list(read_trace(packed).ids) == ["1", "2"]


# Parquet


def table(tmp_path, **columns):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "trace"
    parquet.write_table(pytest.importorskip("pyarrow").table(columns), path, compression="zstd", row_group_size=2)
    return path


PARQUET = {
    "job_id": ["a", "b", "c"],
    "user": ["u1", "u2", None],
    "node_num": [1, 0, 1],
    "gpu_num": [8, 0, 2],
    "cpu_num": [16, 4, None],
    "type": ["SFT", "Eval", "Eval"],
    "state": ["COMPLETED"] * 3,
    "submit_time": [datetime(2023, 3, 1, 0, 0, second, tzinfo=UTC) for second in (10, 0, 20)],
    "start_time": [datetime(2023, 3, 1, 0, 0, second, tzinfo=UTC) for second in (15, 0, 21)],
    "end_time": [datetime(2023, 3, 1, 0, 1, 15, tzinfo=UTC), datetime(2023, 3, 1, 0, 0, 7, tzinfo=UTC), None],
    "duration": [60.0, 7.0, None],
    "queue": [5, 0, 1],
}


def test_parquet_is_detected_by_its_first_bytes_and_read_like_csv(tmp_path):
    trace = read_trace(table(tmp_path, **PARQUET))

    assert list(trace.ids) == ["b", "a"]
    assert (trace.submit_s.tolist(), trace.runtime_s.tolist(), trace.gpus.tolist()) == ([0, 10], [7, 60], [0, 8])
    assert [(bad.line, bad.why) for bad in trace.bad] == [(3, "no run time")]


def test_parquet_with_unknown_layout_or_truncated_is_rejected(tmp_path):
    with pytest.raises(InvalidInput, match="matches no known layout"):
        read_trace(table(tmp_path, a=[1], b=[2]))
    path = table(tmp_path, **PARQUET)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(path)


def test_nested_parquet_column_is_rejected(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(table(tmp_path, **(PARQUET | {"queue": [[1], [2], [3]]})))


# files that are broken


@pytest.mark.parametrize("text", ['[{"jobid": ', "{not json"])
def test_invalid_json_is_rejected(text):
    with pytest.raises(InvalidInput, match="is not valid JSON"):
        read_text_trace(lines(text))


def test_damaged_compressed_file_is_rejected(tmp_path):
    zstd = pytest.importorskip("backports.zstd")
    text = "".join(f"{n},{n * 7919 % 1000}\n" for n in range(9000)).encode()
    for name, packed in (("a.gz", gzip.compress(text)), ("a.zst", zstd.compress(text))):
        (tmp_path / name).write_bytes(packed[:40] + bytes(40) + packed[80:])
        with pytest.raises(InvalidInput):
            read_trace(tmp_path / name)


@pytest.mark.parametrize("gpus", ["inf", "1e12"])
def test_impossible_number_of_gpus_is_a_bad_row(gpus):
    trace = read_text_trace(lines(PLAIN + row(1, gpus=gpus) + row(2)))

    assert list(trace.ids) == ["2"]
    assert trace.bad[0].why == "more than 10,000,000 GPUs"


@given(st.text(max_size=300))
def test_no_text_crashes_the_reader(text):
    for head in ("", PLAIN, SEREN, SWF, "[", SACCT):
        try:
            read_text_trace(lines(head + text))
        except InvalidInput as refused:
            assert str(refused)
