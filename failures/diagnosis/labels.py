"""The words a root cause is named by: the 29 reasons of the Acme failure table and the operators' extras. Pure.

A row says the category, whether a restart helps and why, and what to do. A signature may know better about restarting.
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
    ("CUDAError", OPEN, "a bad kernel fails again, a sick GPU does not follow the job to another node",
     "Restart once on other nodes. The same error again: owner runs with CUDA_LAUNCH_BLOCKING=1. Only one node: operator tests its GPUs."),
    ("NodeFailure", YES, "the node is gone, the program is not at fault",
     "Operator: look at the node's console and power, keep it drained until it passes a test. Restart on the other nodes and a spare."),
    ("ECCError", YES, "the memory of one GPU is damaged; another GPU is not",
     "Operator: drain the node, reset the GPU, look at its remapped rows; replace it when rows run out. Restart the job elsewhere."),
    ("NetworkError", YES, "the fabric failed, the program is not at fault",
     "Operator: check link state, counters and cables of the named hosts and ports. Restart without them once the link is up."),
    ("ConnectionError", YES, "services and rendezvous come back; most such failures pass",
     "Retry with backoff. If it repeats: check that the service, its address, port and name resolution are reachable from the node."),
    ("S3StorageError", YES, "object stores recover; wait first",
     "Wait and retry with backoff. If it repeats: operator checks the store; owner checks bucket, key and credentials."),
    ("NCCLTimeoutError", YES, "a rank did not arrive; which one is not in the text",
     "Restart, and test the nodes of the ranks that reported nothing. Again at the same step: owner looks for a collective that not all ranks call."),
    ("NCCLRemoteError", YES, "a peer went away; its own log says why",
     "Read the log of the rank that went first. Without one: restart, and test the node of the named peer."),
    ("GPUFallenOffBus", YES, "the GPU is gone until the node is power cycled; the job can run elsewhere",
     "Operator: drain and power cycle the node, reseat or replace the GPU if it happens twice. Restart the job elsewhere."),
    ("XidOther", OPEN, "it depends on the code and on whether it follows the job or the GPU",
     "Look the code up in the catalogue below. Restart on another node; the same code there blames the program, here the GPU."),
    ("SlurmNodeFail", YES, "Slurm lost the node, the program is not at fault",
     "Requeue; Slurm does it by itself where the job allows it. Operator: find out why slurmd stopped answering."),
    ("Preempted/TimeLimit", YES, "nothing is broken; it continues from its newest checkpoint",
     "Requeue from the newest checkpoint. Owner: ask for more time or checkpoint on SIGTERM."),
    ("Hang", OPEN, "a lost peer passes, a deadlock in the program comes back",
     "Take stacks of all ranks (py-spy) and the flight recorder before killing. Restart once; again at the same step: it is the program."),
)  # fmt: skip

FRAMEWORK = _label_rows(
    FailureCategory.FRAMEWORK,
    ("DataloaderKilled", NO, "the workers will need as much memory again",
     "Owner: fewer or leaner data workers, more shared memory (/dev/shm) or host memory."),
    ("AttributeError", NO, "the same code meets the same object", "Owner: fix the code or match the library versions."),
    ("OutOfMemoryError", NO, "the same batch needs the same memory",
     "Owner: smaller micro batch, activation checkpointing, more sharding or more GPUs; check that no other process holds the GPU."),
    ("RuntimeError", NO, "the same code and input fail the same way", "Owner: read the message and the last frame of the evidence."),
    ("AssertionError", NO, "the same configuration breaks the same condition", "Owner: the condition in the evidence names what does not fit."),
    ("ValueError", NO, "the same configuration gives the same value", "Owner: correct the value that the evidence names."),
    ("ZeroDivisionError", NO, "the same numbers divide again", "Owner: check lengths and step counts that can be zero, such as an empty data set."),
    ("ModelLoadingError", NO, "the same weights do not fit the same model", "Owner: match model, checkpoint and tokenizer; check the path or name."),
    ("DatasetLoadingError", NO, "the same data set loads the same way", "Owner: check the data set's name, path, format and cache."),
    ("HostOOMKilled", NO, "it will need as much host memory again",
     "Ask for more host memory or use less of it: fewer data workers, no full copy of the weights in each rank."),
    ("LossNaNOrSpike", NO, "the same weights and data lead there again", "Roll back further, skip the offending data or lower the learning rate."),
    ("CheckpointCorrupt", NO, "the file stays damaged; an older checkpoint may be whole",
     "Restart from the checkpoint before this one; remove the damaged one, check that saving is atomic."),
)  # fmt: skip

SCRIPT = _label_rows(
    FailureCategory.SCRIPT,
    ("FileNotFoundError", NO, "the path will still be missing", "Owner: correct the path or mount it on the node."),
    ("OSError", NO, "the system call fails the same way", "Owner: read the errno in the evidence; operator if it names a file system."),
    ("TypeError", NO, "the same call fails again", "Owner: fix the call or match the library versions."),
    ("NameError", NO, "the same code fails again", "Owner: define or import the name."),
    ("PermissionError", NO, "rights do not change by themselves", "Owner: get access to the path or resource that the evidence names."),
    ("ImportError", NO, "the package will still be missing", "Owner: install or match the package in the job's environment."),
    ("KeyError", NO, "the same data lack the same key", "Owner: add the key or correct its name."),
    ("SyntaxError", NO, "the same file does not parse", "Owner: fix the syntax, or use the interpreter the file was written for."),
    ("ArgumentError", NO, "the same command line is refused again", "Owner: correct the arguments; the evidence names them."),
    ("CalledProcessError", NO, "the same command fails again", "Owner: run the named command alone and read its output."),
    ("IndexError", NO, "the same index is out of range again", "Owner: check the lengths of the named data."),
    ("DiskFull", NO, "the disk is still full", "Free or enlarge the file system (for /dev/shm: the container's shared memory); then restart."),
)  # fmt: skip

OTHER_LABELS = {
    NONE: Label(name=NONE, category=FailureCategory.NONE, restart=NO, reason="nothing failed", action="Nothing to do."),
    UNKNOWN: Label(
        name=UNKNOWN, category=FailureCategory.UNKNOWN, restart=OPEN, reason="the cause is not in this text",
        action="Look at the logs of the other ranks, the node's kernel log and the scheduler's record of the job.",
    ),
}  # fmt: skip

LABELS: dict[str, Label] = {**INFRASTRUCTURE, **FRAMEWORK, **SCRIPT, **OTHER_LABELS}
