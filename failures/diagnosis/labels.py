"""The root cause labels: the 29 reasons of the Acme failure table, and some that operators need. Pure.

A row has the category, whether a restart helps and why, and what to do. A signature may override the restart advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from .values import FailureCategory, RestartAdvice

NONE = "None"
UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True)
class Label:
    name: str
    category: FailureCategory
    restart: RestartAdvice
    reason: str
    action: str


def _label_rows(category: FailureCategory, *rows: tuple[str, RestartAdvice, str, str]) -> dict[str, Label]:
    return {
        name: Label(name=name, category=category, restart=restart, reason=reason, action=action)
        for name, restart, reason, action in rows
    }


YES, NO, OPEN = RestartAdvice.YES, RestartAdvice.NO, RestartAdvice.UNKNOWN

INFRASTRUCTURE = _label_rows(
    FailureCategory.INFRASTRUCTURE,
    ("NVLinkError", YES, "a link between GPUs failed; other nodes are not affected",
     "Operator: drain the node, run the two-round node test and DCGM level 3, reset the GPUs and NVSwitches. Restart the job elsewhere."),
    ("CUDAError", OPEN, "a faulty kernel fails on any node, a faulty GPU only on its own",
     "Restart once on other nodes. If the error follows the job, owner: run with CUDA_LAUNCH_BLOCKING=1. If it occurs on one node only, operator: test its GPUs."),
    ("NodeFailure", YES, "node failure, not a program error",
     "Operator: check the node's console and power, and keep it drained until it passes a test. Restart the job on the other nodes and a spare."),
    ("ECCError", YES, "the memory of one GPU is damaged; other GPUs are not affected",
     "Operator: drain the node, reset the GPU and check its remapped rows; replace it if no spare rows are left. Restart the job elsewhere."),
    ("NetworkError", YES, "network failure, not a program error",
     "Operator: check link state, counters and cables of the named hosts and ports. Restart without them once the link is up."),
    ("ConnectionError", YES, "most connection failures are temporary",
     "Retry with backoff. If it happens again, check that the service, its address, port and name resolution are reachable from the node."),
    ("S3StorageError", YES, "object store failures are usually temporary",
     "Wait and retry with backoff. If it happens again, operator: check the store; owner: check bucket, key and credentials."),
    ("NCCLTimeoutError", YES, "a rank did not reach the collective; the log does not show which one",
     "Restart, and test the nodes of the ranks that reported nothing. If it fails again at the same step, owner: look for a collective that not all ranks call."),
    ("NCCLRemoteError", YES, "a peer was lost; its own log shows why",
     "Read the log of the rank that failed first. If there is none, restart, and test the node of the named peer."),
    ("GPUFallenOffBus", YES, "the GPU is lost until the node is power cycled; the job can run elsewhere",
     "Operator: drain and power cycle the node; reseat or replace the GPU if it happens twice. Restart the job elsewhere."),
    ("XidOther", OPEN, "depends on the code, and on whether it follows the job or the GPU",
     "Look up the code in the catalogue below. Restart on another node: if the code occurs there too, the program is the cause; if not, the GPU is."),
    ("SlurmNodeFail", YES, "Slurm lost contact with the node; not a program error",
     "Requeue the job; Slurm does this itself if the job allows it. Operator: find out why slurmd stopped answering."),
    ("Preempted/TimeLimit", YES, "nothing is broken; the job continues from its newest checkpoint",
     "Requeue from the newest checkpoint. Owner: request more time, or save a checkpoint on SIGTERM."),
    ("Hang", OPEN, "a lost peer is temporary, a deadlock in the program is not",
     "Collect the stacks of all ranks (py-spy) and the flight recorder before killing the job. Restart once. If it hangs again at the same step, the program is the cause."),
)  # fmt: skip

FRAMEWORK = _label_rows(
    FailureCategory.FRAMEWORK,
    ("DataloaderKilled", NO, "the workers will need as much memory again",
     "Owner: use fewer or smaller data workers, or request more shared memory (/dev/shm) or host memory."),
    ("AttributeError", NO, "the same code will fail again", "Owner: fix the code or match the library versions."),
    ("OutOfMemoryError", NO, "the same batch needs the same memory",
     "Owner: use a smaller micro batch, activation checkpointing, more sharding or more GPUs. Check that no other process uses the GPU."),
    ("RuntimeError", NO, "the same code and input will fail again", "Owner: read the message and the last frame in the evidence."),
    ("AssertionError", NO, "the same configuration will fail the same check", "Owner: correct what the check in the evidence names."),
    ("ValueError", NO, "the same configuration gives the same value", "Owner: correct the value named in the evidence."),
    ("ZeroDivisionError", NO, "the same numbers will be divided again", "Owner: check lengths and step counts that can be zero, for example of an empty data set."),
    ("ModelLoadingError", NO, "the same weights will not fit the model", "Owner: make sure that model, checkpoint and tokenizer match. Check the path or name."),
    ("DatasetLoadingError", NO, "the same data set will fail to load again", "Owner: check the data set's name, path, format and cache."),
    ("HostOOMKilled", NO, "the job will need as much host memory again",
     "Request more host memory or use less: fewer data workers, no full copy of the weights in each rank."),
    ("LossNaNOrSpike", NO, "the same weights and data will lead to the same loss", "Roll back further, skip the data in question or lower the learning rate."),
    ("CheckpointCorrupt", NO, "the file stays damaged; an older checkpoint may be intact",
     "Restart from the checkpoint before this one. Remove the damaged one, and check that saving is atomic."),
)  # fmt: skip

SCRIPT = _label_rows(
    FailureCategory.SCRIPT,
    ("FileNotFoundError", NO, "the path will still be missing", "Owner: correct the path, or mount it on the node."),
    ("OSError", NO, "the system call will fail again", "Owner: read the errno in the evidence. If it names a file system, operator: check it."),
    ("TypeError", NO, "the same call will fail again", "Owner: fix the call or match the library versions."),
    ("NameError", NO, "the same code will fail again", "Owner: define or import the name."),
    ("PermissionError", NO, "the permissions will still be missing", "Owner: get access to the path or resource named in the evidence."),
    ("ImportError", NO, "the package will still be missing", "Owner: install or match the package in the job's environment."),
    ("KeyError", NO, "the same data lacks the same key", "Owner: add the key or correct its name."),
    ("SyntaxError", NO, "the same file cannot be parsed", "Owner: fix the syntax, or use the interpreter that the file was written for."),
    ("ArgumentError", NO, "the same command line will be rejected again", "Owner: correct the arguments named in the evidence."),
    ("CalledProcessError", NO, "the same command will fail again", "Owner: run the named command by itself and read its output."),
    ("IndexError", NO, "the same index will be out of range again", "Owner: check the lengths of the data named in the evidence."),
    ("DiskFull", NO, "the disk will still be full", "Free space on the file system or enlarge it (for /dev/shm: the container's shared memory). Then restart."),
)  # fmt: skip

OTHER_LABELS = {
    NONE: Label(name=NONE, category=FailureCategory.NONE, restart=NO, reason="nothing failed", action="No action needed."),
    UNKNOWN: Label(
        name=UNKNOWN, category=FailureCategory.UNKNOWN, restart=OPEN, reason="the cause is not in this log",
        action="Check the logs of the other ranks, the node's kernel log and the scheduler's record of the job.",
    ),
}  # fmt: skip

LABELS: dict[str, Label] = {**INFRASTRUCTURE, **FRAMEWORK, **SCRIPT, **OTHER_LABELS}
