"""What Kubernetes reports about pods: reasons of their ends, and Events. Pure.

Acme writes both to the log of a job: `acme: pod NAME on node NODE ended: REASON`, and Events as kubectl prints them.
Messages that Kubernetes shares with other schedulers are in `scheduler`, `network`, `storage` and `hardware`.
"""

from __future__ import annotations

from ..signatures import Signature, benign, cause, symptom
from ..values import Blame, RestartAdvice, SignatureTrait

ROWS: tuple[Signature, ...] = (
    benign(  # remarks about the log itself; the state in the last one repeats what is above it
        "acme-log-remark",
        (
            r"acme: (?:end of the log of [0-9]|the log of (?:pod|this job) |the log is longer than |"
            r"the kubelet began another log file )"
        ),
        "acme: end of the log of 4 pods: NODE_FAIL",
        specificity=99,
    ),
    cause(  # its own limit; a node that is full evicts whoever is there
        "pod-evicted-for-its-disk",
        "DiskFull",
        97,
        (
            r"exceeds the total limit of containers|exceeded its local ephemeral storage limit",
            r"[Uu]sage of EmptyDir volume .{1,260}exceeds the limit",
        ),
        'Warning  Evicted  pod/acme-q7-1-0  Usage of EmptyDir volume "scratch" exceeds the limit "40Gi".',
    ),
    cause(
        "pod-evicted-for-its-memory",
        "HostOOMKilled",
        97,
        r"low on resource: memory\b.{0,200}exceeds its request of",
        "acme: pod acme-q7-1-0 on node fen-2 ended: Evicted: The node was low on resource: memory. Container job was"
        " using 870Gi, which exceeds its request of 600Gi.",
    ),
    cause(
        "pod-rejected-devices",
        "NodeFailure",
        96,
        (
            r"no healthy devices present|cannot allocate unhealthy devices",
            r"requested number of devices unavailable for",
            r"UnexpectedAdmissionError",
        ),
        "acme: pod acme-q7-1-3 on node fen-5 ended: UnexpectedAdmissionError: Allocate failed due to no healthy devices"
        " present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected",
        blame=Blame.NODE,
    ),
    cause(  # somebody else took the capacity
        "pod-rejected-capacity",
        "NodeFailure",
        90,
        r"\bOutOf[a-z][a-z0-9./-]{1,80}: |Node didn't have enough resource: ",
        "acme: pod acme-q7-1-3 on node fen-5 ended: OutOfnvidia.com/gpu: Node didn't have enough resource:"
        " nvidia.com/gpu, requested: 8, used: 4, capacity: 8",
        blame=Blame.SCHEDULER,
    ),
    cause(
        "pod-node-lost",
        "NodeFailure",
        94,
        (
            r"\bDeletionByTaintManager\b|\bDeletionByPodGC\b",
            r"deleted after (?:the )?node (?:\S{1,253} )?was lost",
            r"ended: (?:NodeLost: )?node \S{1,253} does not respond",
        ),
        "acme: pod acme-q7-1-2 on node fen-9 ended: deleted after node fen-9 was lost",
        blame=Blame.NODE,
    ),
    cause(
        "image-missing",
        "ArgumentError",
        93,
        r"(?:[Ff]ailed to pull (?:and unpack )?image|ErrImagePull|ImagePullBackOff).{0,400}"
        r"(?:: not found\b|manifest unknown|NotFound|repository does not exist)|\bInvalidImageName\b",
        'Warning  Failed  pod/acme-q7-1-0  Failed to pull image "hub.example/lm:v9": hub.example/lm:v9: not found',
    ),
    cause(
        "image-forbidden",
        "PermissionError",
        93,
        r"(?:[Ff]ailed to pull (?:and unpack )?image|ErrImagePull|ImagePullBackOff).{0,400}"
        r"(?:401 Unauthorized|403 Forbidden|authorization failed|no basic auth credentials|pull access denied)",
        'Warning  Failed  pod/acme-q7-1-0  Failed to pull image "hub.example/lm:v9": pull access denied',
    ),
    cause(
        "pod-configuration-missing",
        "FileNotFoundError",
        92,
        (
            r"\bCreateContainerConfigError\b",
            r"\b(?:secret|configmap|persistentvolumeclaim) \"[^\"]{1,253}\" not found",
        ),
        'acme: pod acme-q7-1-0 waits: CreateContainerConfigError: secret "wandb" not found',
    ),
    symptom(
        "volume-attached-elsewhere",
        "OSError",
        47,
        r"Multi-Attach error for volume|\bFailedAttachVolume\b",
        'Warning  FailedAttachVolume  pod/acme-q7-1-0  Multi-Attach error for volume "pvc-7" Volume is already used by'
        " pod(s) eval-4",
        restart=RestartAdvice.YES,
    ),
    cause(
        "pod-preempted",
        "Preempted/TimeLimit",
        96,
        r"\bPreemptionByScheduler\b|\bEvictionByEvictionAPI\b|Warning +Preempted +pod/",
        "acme: pod acme-q7-1-0 on node fen-2 ended: PreemptionByScheduler: preempting to accommodate another pod",
        blame=Blame.SCHEDULER,
        traits=(SignatureTrait.SCHEDULER_STOP,),
    ),
)
