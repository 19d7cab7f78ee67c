"""Causes above symptoms: whole logs with a story, and the rules that tell the two apart."""

from __future__ import annotations

import pytest

from failures.diagnosis import confidence
from failures.diagnosis.engine import diagnose_text
from failures.diagnosis.labels import LABELS, NONE, UNKNOWN
from failures.diagnosis.values import ExitStatus, FailureCategory, LineRole, LogDiagnosis, RestartAdvice
from tests.failures.diagnosis.samples import HEALTHY, SAMPLES, Sample

samples = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
USERS = (FailureCategory.SCRIPT, FailureCategory.FRAMEWORK)


@samples
def test_cause_is_found_with_its_evidence(sample: Sample) -> None:
    diagnosis = diagnose_text(sample.log)

    assert diagnosis.root_cause == sample.label
    assert sample.shows in diagnosis.evidence[0].text
    assert sample.log.splitlines()[diagnosis.evidence[0].line - 1].strip() == diagnosis.evidence[0].text


@samples
def test_chain_begins_with_the_cause(sample: Sample) -> None:
    chain = diagnose_text(sample.log).chain

    assert chain[0].role is LineRole.INITIATING
    assert chain[0].label == sample.label
    assert all(link.role is not LineRole.INITIATING for link in chain[1:])


@samples
def test_colors_progress_bars_and_rank_prefixes_do_not_change_the_verdict(sample: Sample) -> None:
    dressed = "".join(f"\x1b[2m{row}\x1b[0m\r\n" for row in sample.log.splitlines())

    assert diagnose_text(dressed).root_cause == sample.label


@samples
def test_a_day_of_metrics_before_the_failure_does_not_change_the_verdict(sample: Sample) -> None:
    calm = "".join(f"[rank{at % 8}]: iteration {at} / 500000 | lm loss: 2.0 | time 0.4\n" for at in range(2000))

    diagnosis = diagnose_text(calm + sample.log)

    assert diagnosis.root_cause == sample.label
    assert diagnosis.evidence[0].line > 2000


@pytest.mark.parametrize("log", HEALTHY.values(), ids=HEALTHY)
def test_healthy_log_has_no_failure(log: str) -> None:
    assert diagnose_text(log).root_cause == NONE


@pytest.mark.parametrize("log", HEALTHY.values(), ids=HEALTHY)
def test_healthy_log_with_a_good_exit_status_has_no_failure(log: str) -> None:
    assert diagnose_text(log, ExitStatus(exit_code=0)).root_cause == NONE


@pytest.mark.parametrize(
    "sample",
    [one for one in SAMPLES if LABELS[one.label].category is FailureCategory.INFRASTRUCTURE],
    ids=lambda one: one.name,
)
def test_infrastructure_failure_is_not_blamed_on_the_user(sample: Sample) -> None:
    noise = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nRuntimeError: process group is gone\n'

    assert diagnose_text(sample.log + noise).category not in USERS


def test_failed_job_without_an_error_is_unknown() -> None:
    diagnosis = diagnose_text("step 1 loss 2.0\nstep 2 loss 2.0\n", ExitStatus(exit_code=1))

    assert (diagnosis.root_cause, diagnosis.confidence) == (UNKNOWN, 0.0)


def test_lost_actor_without_a_reason_is_unknown() -> None:
    log = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file.\n"
    )

    assert diagnose_text(log).root_cause == UNKNOWN


def test_exception_that_refers_to_another_is_not_the_cause() -> None:
    log = (
        "Exception: WorkerProc initialization failed due to an exception in a background process.\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )

    assert diagnose_text(log).root_cause == UNKNOWN
    assert diagnose_text(f"ValueError: tern has 3 heads, not 4\n{log}").root_cause == "ValueError"


def test_killed_remaining_tasks_are_not_the_cause() -> None:
    first = "srun: error: tern-1: task 5: Exited with exit code 1\n"
    swept = (
        "slurmstepd: error: *** STEP 7.0 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 ***\n"
        "srun: error: tern-1: tasks 3,7: Killed\n"
    )

    assert diagnose_text(first + swept).root_cause == UNKNOWN
    assert diagnose_text(first.replace("code 1", "code 137") + swept).root_cause == "HostOOMKilled"
    assert diagnose_text(f"TypeError: no heads\n{first}{swept}").root_cause == "TypeError"


def test_ranks_that_finish_after_a_dead_one_are_not_progress() -> None:
    log = (
        "Primary job  terminated normally, but 1 process returned\n"
        "Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to "
        "allreduce a tensor after one of the ranks finished execution.\n"
    )

    assert diagnose_text(log).root_cause == UNKNOWN


def test_preemption_listed_as_possible_reason_of_a_lost_task_is_not_the_cause() -> None:
    log = (
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:7 heartbeat timeout. This indicates that the remote task has "
        "failed, got preempted, or crashed unexpectedly.\n"
    )

    assert diagnose_text(log).root_cause == "NodeFailure"


def test_preemption_listed_as_possible_reason_of_a_lost_node_is_not_the_cause() -> None:
    log = "The node the task was on is gone: node 10.9.0.4 marked dead. This can happen if the node was preempted.\n"

    assert diagnose_text(log).root_cause == "NodeFailure"


def test_rendezvous_error_after_a_timeout_is_its_consequence() -> None:
    log = (
        "[rank2]: RuntimeError: [gloo/transport/unbound.cc:7] Timed out waiting 900000ms for recv operation\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the store has failed.\n"
    )

    assert diagnose_text(log).root_cause == "NCCLTimeoutError"
    assert diagnose_text(log.splitlines()[1]).root_cause == "ConnectionError"


def test_waiting_ranks_are_a_hang_unless_all_arrive() -> None:
    waiting = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8\n"

    assert diagnose_text(waiting).root_cause == "Hang"
    assert (
        diagnose_text(waiting + "All distributed processes registered. Starting with 8 processes\n").root_cause == NONE
    )
    assert diagnose_text("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1\n").root_cause == NONE


def test_failed_or_timed_out_operations_take_the_cause_of_the_next_line() -> None:
    either = "[rank5]:[E ProcessGroupNCCL.cpp:681] [Rank 5] Some NCCL operations have failed or timed out.\n"
    gone = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting early.\n"

    assert diagnose_text(either).root_cause == "NCCLTimeoutError"
    assert diagnose_text(either + gone).root_cause == "NCCLRemoteError"


@pytest.mark.parametrize(
    "prefix",
    ["2025-03-01 04:00:01,120 - trainer - INFO - [rank7]: ", "04:00:01.120 [rank7]: ", "trainer-run-1  | [rank7]: "],
)
def test_traceback_with_a_launcher_prefix_is_read(prefix: str) -> None:
    rows = ["Traceback (most recent call last):", '  File "/opt/run9/train.py", line 3, in main', "AssertionError"]

    assert diagnose_text("".join(f"{prefix}{row}\n" for row in rows)).root_cause == "AssertionError"


def test_installing_a_signal_handler_is_not_progress() -> None:
    log = (
        "[E ProcessGroupNCCL.cpp:1329] [Rank 3] Heartbeat monitor timed out! The process will be terminated.\n"
        "[I ThreadStackTrace.cpp:149] Successfully installed signal handler.\n"
    )

    assert diagnose_text(log).root_cause == "Hang"


@pytest.mark.parametrize(
    "ending",
    [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "mpirun noticed that process rank 3 with PID 0 on node tern-1 exited on signal 6 (Aborted).",
        "ERR cli.py:86 -- Status message: Job entrypoint command failed with exit code 1, last available logs",
        'Traceback (most recent call last):\n  File "/opt/run9/train.py", line 3, in main',
    ],
)
def test_progress_before_the_launcher_gives_up_proves_nothing(ending: str) -> None:
    steps = "".join(f"iteration {step}/100 | loss: 2.1 | lr: 1e-4\n" for step in range(3))

    assert diagnose_text(f"{steps}{ending}\n").root_cause == UNKNOWN
    assert diagnose_text(f"{steps}{ending}\n{steps}").root_cause == NONE


def test_exception_with_an_unknown_name_is_recognized_below_a_traceback() -> None:
    named = "run9.queue.KilledWorker: ('step-3', 4)\n"
    traceback = (
        'Traceback (most recent call last):\n  File "/opt/run9/train.py", line 3, in main\n    client.gather()\n'
    )

    assert diagnose_text(traceback + named).root_cause == "RuntimeError"
    assert diagnose_text(traceback + named).evidence[0].line == 4
    assert diagnose_text(named).root_cause == NONE


def test_error_words_without_a_cause_are_unknown_unless_work_continues() -> None:
    grave = "F0301 04:00:12.000001 88 step.cc:90] Check failed: left == right (3 vs. 4)\n"
    steps = "".join(f"iteration {step}/100 | loss: 2.1 | lr: 1e-4\n" for step in range(3))

    assert diagnose_text(steps + grave).root_cause == UNKNOWN
    assert diagnose_text(grave + steps).root_cause == NONE


def test_log_with_launcher_messages_only_is_unknown() -> None:
    text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : 1 (pid: 97)\n"

    assert diagnose_text(text).root_cause == UNKNOWN


def test_warning_before_progress_is_not_a_failure() -> None:
    text = (
        "ERROR [upload] Connection refused by metrics server\nstep 400 loss 2.0 time 0.4\nstep 401 loss 2.0 time 0.4\n"
    )

    assert diagnose_text(text).root_cause == NONE


def test_timed_out_step_and_path_are_not_progress() -> None:
    cancelled = "slurmstepd: *** JOB 41 CANCELLED AT 2025-03-01T04:00:12 *** on tern-3\n"

    timed_out = diagnose_text(f"{cancelled}srun: step 41.0 timed out\n")
    swept = diagnose_text(f"{cancelled}slurmstepd: problem deleting step cgroup path /cgroup/slurm: Resource busy\n")

    assert timed_out.root_cause == swept.root_cause == "Preempted/TimeLimit"


def test_error_before_the_time_limit_is_the_cause() -> None:
    text = (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        "slurmstepd: error: *** JOB 7 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 DUE TO TIME LIMIT ***\n"
    )

    assert diagnose_text(text).root_cause == "OutOfMemoryError"


def test_vague_error_after_a_symptom_is_a_symptom() -> None:
    text = (
        "[E socket.cpp:1024] [c10d] The client socket has timed out after 300s while trying to connect to (a, 1).\n"
        "RuntimeError: something went wrong\n"
    )

    assert diagnose_text(text).root_cause == "ConnectionError"


def test_clear_error_after_a_symptom_is_still_the_cause() -> None:
    text = (
        "[rank0]:[E P.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
        "traceback : Traceback (most recent call last):\n  KeyError: 'labels'\n"
    )

    assert diagnose_text(text).root_cause == "KeyError"


def test_frames_show_that_a_checkpoint_was_being_written() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/py/torch/serialization.py", line 1, in save\n'
        "RuntimeError: File /scratch/9.pt cannot be opened.\n"
    )

    assert diagnose_text(text).root_cause == "DiskFull"


def test_frames_show_that_a_bucket_was_being_written() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.12/site-packages/minio/api.py", line 740, in put_object\n'
        "urllib3.exceptions.ProtocolError: ('Connection aborted.', ConnectionResetError(104, 'reset by peer'))\n"
    )

    assert diagnose_text(log).root_cause == "S3StorageError"
    assert diagnose_text(log.replace("minio", "requests")).root_cause == "ConnectionError"


def test_frames_show_that_a_data_set_was_being_built() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/py/datasets/builder.py", line 1, in _prepare_split\n'
        "ValueError: nothing to write\n"
    )

    assert diagnose_text(text).root_cause == "DatasetLoadingError"


def test_frames_show_that_a_weight_was_being_loaded() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/py/models/tern.py", line 9, in load_weights\n'
        '  File "/py/layers/linear.py", line 4, in weight_loader\n'
        "RuntimeError: The expanded size of the tensor (264) must match the existing size (256)\n"
    )

    assert diagnose_text(text).root_cause == "ModelLoadingError"
    assert diagnose_text(text.replace("weight", "batch")).root_cause == "RuntimeError"


def test_failed_scheduler_cleanup_is_not_a_disk_failure() -> None:
    swept = (
        'time="2025-03-01T04:00:12Z" level=warning msg="Failed to remove cgroup (will retry)" '
        'error="rmdir /cgroup/step_1/box: device or resource busy"\n'
    )
    failed = "RuntimeError: The server socket has failed to listen on any local network address.\n"

    assert diagnose_text(failed + swept).root_cause == "ConnectionError"


def test_truncated_file_in_a_data_worker_is_a_dataset_error() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/py/torch/utils/data/_utils/fetch.py", line 1, in fetch\n'
        '  File "/run9/index.py", line 7, in read\nEOFError: Ran out of input\n'
    )

    assert diagnose_text(text).root_cause == "DatasetLoadingError"
    assert diagnose_text(text.replace("torch/utils/data", "tern/utils")).root_cause == "CheckpointCorrupt"


def test_progress_before_workers_are_stopped_does_not_prove_success() -> None:
    work = " 12%|#         | 2/17 [00:03<00:26,  1.79s/it]\n"
    sent_home = (
        "W0301 04:00:12.0 88 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 91 closing signal\n"
    )

    assert diagnose_text(work + sent_home).root_cause == UNKNOWN
    assert diagnose_text(work + sent_home + "Training completed successfully\n").root_cause == NONE
    assert diagnose_text(work + "Training completed successfully\n" + sent_home).root_cause == NONE


def test_truncated_start_of_a_child_process_is_not_the_cause() -> None:
    failed = "AssertionError: heads must be divisible\n"
    orphan = (
        'Traceback (most recent call last):\n  File "/py/multiprocessing/spawn.py", line 126, in _main\n'
        "    self = reduction.pickle.load(from_parent)\n_pickle.UnpicklingError: pickle data was truncated\n"
    )

    assert diagnose_text(failed + orphan).root_cause == "AssertionError"
    assert diagnose_text(orphan).root_cause == UNKNOWN


def test_continued_download_is_not_progress() -> None:
    failed = "AttributeError: module 'tern' has no attribute 'wing'\n"
    bar = "tern.safetensors: 100%|####| 605M/605M [14:08<00:00, 713kB/s]\n"

    assert diagnose_text(failed + 2 * bar).root_cause == "AttributeError"


def test_source_line_in_a_traceback_is_not_an_exception() -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    raise KeyError("x")\nTypeError: no\n'

    assert diagnose_text(text).root_cause == "TypeError"


def test_further_lines_of_the_same_cause_are_evidence() -> None:
    evidence = diagnose_text(SAMPLES[8].log).evidence

    assert len(evidence) == 2
    assert "Got completion" in evidence[1].text


def test_same_line_from_forty_ranks_is_one_link() -> None:
    text = "".join(f"[rank{rank}]: Watchdog caught collective operation timeout: x{rank}\n" for rank in range(40))

    (link,) = diagnose_text(text).chain

    assert (link.count, len(link.ranks)) == (40, 40)


def test_rival_causes_are_alternatives_and_lower_the_confidence() -> None:
    alone = diagnose_text("KeyError: 'x'\n")
    contested = diagnose_text("KeyError: 'x'\nTypeError: y\n")

    assert [other.root_cause for other in contested.alternatives] == ["TypeError"]
    assert contested.confidence < alone.confidence


def test_mentioned_exception_is_never_the_cause() -> None:
    text = "2025-03-01 04:00:01,120 INFO handled ValueError: odd\n[E P.cpp:1] Heartbeat monitor timed out!\n"

    assert diagnose_text(text).root_cause == "Hang"


@pytest.mark.parametrize(
    ("ending", "label"),
    [
        (ExitStatus(exit_code=137), "HostOOMKilled"),
        (ExitStatus(exit_code=-9), "HostOOMKilled"),
        (ExitStatus(signal=9), "HostOOMKilled"),
        (ExitStatus(exit_code=124), "Preempted/TimeLimit"),
        (ExitStatus(exit_code=143), "Preempted/TimeLimit"),
        (ExitStatus(exit_code=127), "FileNotFoundError"),
        (ExitStatus(exit_code=139), "RuntimeError"),
        (ExitStatus(signal=7), "DataloaderKilled"),
        (ExitStatus(exit_code=1), UNKNOWN),
        (ExitStatus(exit_code=0), NONE),
        (ExitStatus(), NONE),
    ],
)
def test_exit_status_is_evidence_if_the_log_is_silent(ending: ExitStatus, label: str) -> None:
    assert diagnose_text("step 1 loss 2.0 time 0.4\n", ending).root_cause == label


@pytest.mark.parametrize("ending", [ExitStatus(exit_code=137), ExitStatus(signal=15), ExitStatus(exit_code=1)])
def test_cause_in_the_log_ranks_above_the_exit_status(ending: ExitStatus) -> None:
    assert diagnose_text(SAMPLES[0].log, ending).root_cause == "ECCError"


def test_exit_code_zero_does_not_hide_a_clear_cause() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"

    assert diagnose_text(text, ExitStatus(exit_code=0)).root_cause == "OutOfMemoryError"


@pytest.mark.parametrize(
    ("label", "restart"),
    [("ECCError", RestartAdvice.YES), ("NameError", RestartAdvice.NO), ("Hang", RestartAdvice.UNKNOWN)],
)
def test_restart_advice_depends_on_the_cause(label: str, restart: RestartAdvice) -> None:
    diagnosis = diagnose_text(next(sample.log for sample in SAMPLES if sample.label == label))

    assert diagnosis.restart_helps is restart
    assert diagnosis.restart_reason
    assert diagnosis.action


def test_weaker_evidence_has_lower_confidence() -> None:
    values = [value for rows in (confidence.CAUSE_CONFIDENCE, confidence.SYMPTOM_CONFIDENCE) for _, value in rows]

    assert all(0 < value < 1 for value in values)
    assert tuple(sorted(confidence.SYMPTOM_CONFIDENCE, reverse=True)) == confidence.SYMPTOM_CONFIDENCE


def suspects(text: str) -> LogDiagnosis:
    return diagnose_text(text)


def test_node_named_by_slurm_is_the_suspect() -> None:
    assert [node.host for node in suspects("srun: error: Node failure on tern-9\n").suspect_nodes] == ["tern-9"]


def test_suspect_gpu_has_its_address_and_rank() -> None:
    text = (
        "tern-3:20:61 [1] NCCL INFO comm 0x55d0 rank 9 nranks 16 cudaDev 1 busId 3b000 - Init COMPLETE\n"
        "Mar  1 04:10:00 tern-3 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    )

    (gpu,) = suspects(text).suspect_gpus

    assert (gpu.host, gpu.pci, gpu.rank) == ("tern-3", "0000:3b:00", 9)


def test_rank_is_mapped_to_its_host() -> None:
    text = (
        "tern-5:20:61 [1] NCCL INFO comm 0x55d0 rank 3 nranks 16 cudaDev 1 busId 5e000 - Init COMPLETE\n"
        "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error\n"
    )
    diagnosis = suspects(text)

    assert [node.host for node in diagnosis.suspect_nodes] == ["tern-5"]
    assert [(gpu.host, gpu.pci, gpu.rank) for gpu in diagnosis.suspect_gpus] == [("tern-5", "5e000", 3)]


def test_silent_rank_is_the_suspect_of_a_timeout() -> None:
    places = "".join(
        f"tern-{rank}:20:61 [0] NCCL INFO comm 0x5 rank {rank} nranks 8 cudaDev 0 busId 3b000 - Init\n"
        for rank in range(8)
    )
    cries = "".join(
        f"[rank{rank}]:[E P.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
        for rank in range(8)
        if rank != 5
    )

    assert [node.host for node in suspects(places + cries).suspect_nodes] == ["tern-5"]


def test_user_error_has_no_suspects() -> None:
    diagnosis = suspects("tern-4: KeyError: 'x'\n")

    assert (diagnosis.suspect_nodes, diagnosis.suspect_gpus) == ((), ())


CRASH = (
    "Traceback (most recent call last):",
    '  File "train.py", line 31, in <module>',
    "    main()",
    "ZeroDivisionError: division by zero",
)


@pytest.mark.parametrize(
    "prefix",
    (
        "run9-worker-3 trainer ",
        "(4242) ",
        "<gpu 3 of 8> ",
        "collector|{n}|tern-3|",
        "2025-03-01T04:00:1{n}.123456789Z stdout F ",
        "Mar  1 04:00:1{n} tern-3 python3[4242]: ",
        "[pod/run9-worker-3/trainer] ",
        '{{"stream":"stderr","log":"',
    ),
)
def test_exception_is_found_after_the_prefix_of_any_log_collector(prefix: str) -> None:
    log = "\n".join(prefix.format(n=number) + row for number, row in enumerate(CRASH))

    assert diagnose_text(log).root_cause == "ZeroDivisionError"


@pytest.mark.parametrize(
    "message",
    [
        "expandable_segments:True does not go with registered buffers",
        "exit_interval should be divisible by the number of batches",
        "no fused kernel for q_rank=None, fallback to the plain one first",
    ],
)
def test_raised_exception_with_a_benign_phrase_is_the_cause(message: str) -> None:
    raised = f'Traceback (most recent call last):\n  File "tern.py", line 8, in check\nAssertionError: {message}\n'
    assert diagnose_text(raised).root_cause == "AssertionError"


def test_exception_name_inside_a_sentence_is_a_mention() -> None:
    log = "step 1 loss 2.1\nthe loop skips a ZeroDivisionError: it is expected\nstep 2 loss 2.0\nstep 3 loss 1.9\n"

    assert diagnose_text(log).root_cause == "None"


def test_lost_daemon_after_a_kill_is_a_consequence() -> None:
    lost = "ORTE has lost communication with a remote daemon.\n"

    assert diagnose_text(lost).root_cause == "NodeFailure"
    assert diagnose_text("command terminated with exit code 137\n" + lost).root_cause == "HostOOMKilled"


def test_steps_at_the_lowest_loss_scale_do_not_prove_success() -> None:
    floor = "[INFO] [stage2.py:9:step] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1\n"
    log = "".join(f"{floor} 1%| | {step}/900 [00:40<2:40, 2.5it/s]\n" for step in range(90, 94))

    assert diagnose_text(log).root_cause == "LossNaNOrSpike"


@pytest.mark.parametrize(
    "warning",
    (
        "WARNING: There was an error initializing an OpenFabrics device.",
        "ERROR: ld.so: object 'libtern.so' from LD_PRELOAD cannot be preloaded (cannot open file): ignored.",
        "slurmstepd: error: couldn't chdir to `/home/ada': No such file or directory: going to /tmp instead",
        "(raylet) The autoscaler failed with the following error:",
        "NVRM: Xid (PCI:0000:3b:00): 63, pid=9, name=python, Row Remapper: New row marked for remapping",
        "wandb: Network error (ConnectionError), entering retry loop.",
    ),
)
def test_warning_followed_by_progress_is_not_a_failure(warning: str) -> None:
    assert diagnose_text(f"{warning}\nstep 1 loss 2.1 lr 0.1\nstep 2 loss 2.0 lr 0.1\n").root_cause == NONE
