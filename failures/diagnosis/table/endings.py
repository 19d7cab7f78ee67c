"""Messages of launchers after another failure, and lines with the host of a rank. Never a cause. Pure."""

from __future__ import annotations

from ..signatures import Signature, rank_location, symptom, teardown
from ..values import Blame, SignatureTrait

ROWS: tuple[Signature, ...] = (
    teardown(
        "closing-signal",
        10,
        (
            r"Sending process [0-9]+ closing signal",
            r"Killing subprocess [0-9]+",
            r"sent to (?:all )?(?:child|worker)",
            r"Terminating (?:process|worker)s?",
        ),
        (
            "W0301 04:00:12.0 88 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 91 "
            "closing signal SIGTERM"
        ),
        traits=(SignatureTrait.CLOSING_SIGNAL,),
    ),
    teardown(
        "child-failed",
        12,
        (
            r"ChildFailedError",
            r"Root Cause \(first observed failure\)",
            r"failed \(exitcode: -?[0-9]+\)",
            r"exits with return code = -?[0-9]+",
            r"Primary job  terminated normally",
            r"(?:mpirun|mpiexec|prterun|orterun) noticed",
            r"MPI_ABORT|BAD TERMINATION OF ONE OF YOUR APPLICATION|\[(?:mpiexec|proxy:[0-9:]+)@[\w.-]+\] HYD\w+ \(",
            r"Job entrypoint command failed",
            r"Process group watchdog",
            r"exited with non-zero status",
            r"Fatal Python error",
            r"^g?make(?:\[[0-9]+\])?: \*\*\* .{0,200}Error [0-9]+",
            r"(?i:\b(?:killing|aborting|terminating) (?:the )?(?:whole )?(?:job|run|process group|training)\b)",
        ),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ),
    symptom(
        "child-exit",
        "",
        8,
        (
            (
                r"\bexit(?:ed)?(?: ?code| with exit code| with code| status|"
                r" with status)? *[:=]? *-?[1-9][0-9]{0,2}\b"
            ),
            r"\bexitcode *[:=] *-?[1-9]",
            r"return code *[:=]? *-?[1-9]",
        ),
        "srun: error: tern-3: task 3: Exited with exit code 1",
    ),
    symptom(
        "mpi-peer-lost",
        "NCCLRemoteError",
        45,
        r"MPI communication peer process has unexpectedly disconnected",
        "An MPI communication peer process has unexpectedly disconnected.  This",
        blame=Blame.NODE,
    ),
    symptom(  # MPI prints this for any failed call; network, memory and argument errors have more specific lines
        "mpi-fatal",
        "RuntimeError",
        40,
        (
            r"\*\*\* (?:An error occurred in MPI_|MPI_ERR)|\bMPI_INIT failed for some reason",
            r"\bFatal error in (?:internal_|P?MPI_)\w+:",
        ),
        "[tern-3:4242] *** An error occurred in MPI_Bcast",
        blame=Blame.NODE,
    ),
    teardown(
        "traceback",
        4,
        r"Traceback \(most recent call last\)",
        "Traceback (most recent call last):",
        traits=(SignatureTrait.TRACEBACK,),
    ),
    rank_location(
        "nccl-init",
        r"comm 0x[0-9a-f]+ rank [0-9]+ nranks [0-9]+ cudaDev [0-9]+",
        "heron-5:20:61 [1] NCCL INFO comm 0x55d0 rank 9 nranks 16 cudaDev 1 busId 3b000 - Init COMPLETE",
    ),
    rank_location(
        "elastic-host",
        r"^\s*(?:\[[\w:]+\] ?:? ?)?host +: +\S+",
        "  host      : tern-3",
    ),
    rank_location(
        "megatron-host",
        (
            r"\bRank +[0-9]+ Group +[0-9]+ Pid",
            r"Rank +[0-9]+ Pid +[0-9]+ on +\S+",
        ),
        "#   Rank  2 Pid  118 on heron-5 device  1 [0x1b] NVIDIA H100",
    ),
)
