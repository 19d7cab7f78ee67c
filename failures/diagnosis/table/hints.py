"""Generic hints: technical terms next to words for failure, for messages that no signature covers. Pure.

Hints are weak on purpose: any signature and any exception ranks above a hint, warnings do not count, and one line of
progress after a hint cancels it. Without hints, a new wording of a known failure would look like a healthy log.
"""

from __future__ import annotations

from ..signatures import Signature, symptom, teardown
from ..values import Blame

REASSURING_WORDS = (
    # Kubernetes writes `Warning` between two columns for every important event, so that one does not reassure
    r"(?i)\bwarn(?!ing {2,}\w+ {2,})|"
    r"\bno (?:\w+ ){0,2}(?:errors?|failures?)\b|\b(?:0|zero) (?:\w+ )?(?:errors?|failures?)|"
    r"retrying|fallback|falling back|\bfailed over|: (?:0|false|none|off|disabled)\W*$|\bis (?:en|dis)abled|"
    r"\bverified\b|\bnothing\b|\bcount(?:er)?s?[ :=]{1,3}0\b|\b(?:passed|succeeded|successful(?:ly)?)\b"
)

ROWS: tuple[Signature, ...] = (
    symptom(
        "hint-nvlink",
        "NVLinkError",
        42,
        r"\b(?:NV(?:Link|Switch)|knvlink|nvlink)\w*\b.{0,100}(?:error|[Ff]ail|fatal|above threshold|uncorrectable)",
        "gpu-doctor: NVLink lane 2 of GPU 6 failed its loopback",
        caseless=True,
        blame=Blame.GPU,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-node",
        "NodeFailure",
        42,
        (
            (
                r"\b(?:node|host|machine|instance)(?:\(s\)|s)? .{0,60}\b(?:unreachable|rebooted|crashed|"
                r"gone down|powered off|dead|unresponsive)"
            ),
            r"lost contact with .{0,30}\b(?:host|node)|\bhost \S+ has been blacklisted",
            r"\bheartbeat (?:expired|timed out|was lost)|lost connection to .{0,30}\b(?:agent|host|node|executor)\b",
            r"unable to reach .{0,40}\bnodes?\b|terminated by the host\b|\bnode .{0,20}out of service",
            r"stopped posting node status|NodeStatusUnknown|stateDown|SISTER_EOF",
            r"TaintManagerEviction.{0,40}Marking for deletion",
            r"agent heartbeat lost|left the rendezvous unexpectedly",
            r"\bstopped sending heartbeats?\b|\btasks? (?:are|is) unhealthy\b",
            r"\bnode \S{1,60} (?:(?:has )?no heartbeat|is (?:unknown|lost|gone)\b)|\bNODE_ERROR\b",
        ),
        "fleet: machine tern-6 rebooted by itself during the run",
        caseless=True,
        blame=Blame.NODE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-fabric",
        "NetworkError",
        42,
        (
            (
                r"\b(?:InfiniBand|RoCE|RDMA|EFA|HCA|irdma|mlx[45]\w*|OpenIB|verbs|OFI|libfabric|UCX|PSM[23]|"
                r"subnet manager)\b[^-\w].{0,120}(?:error|fail|fatal|lost|down|exceeded|timed? ?out|unreachable)"
            ),
            r"(?:exceeded|timed? ?out|unreachable)\b.{0,60}\b(?:mlx[45]_[0-9]|RoCE|InfiniBand|RDMA)\b",
            r"(?:fail(?:ed|ure)|error)\b.{0,60}\b(?:OFI|libfabric|UCX|verbs|RDMA|InfiniBand|RoCE)\b",
            r"\bport [0-9]+ link lost|got completion with error",
        ),
        "fleet: RDMA device 3 failed its loopback",
        caseless=True,
        blame=Blame.NETWORK,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-store",
        "S3StorageError",
        43,
        (
            (
                r"\b(?:s3|bucket|minio|rados|ceph|object[ _]?stor(?:e|age)|gcs (?:bucket|object|batch|blob|upload|"
                r"download)|oss|blob storage|rclone)\b.{0,160}(?:error|fail|denied|timed? ?out|unavailable|"
                r"slow ?down|throttl)"
            ),
            (
                r"\b(?:errors?|fail\w*|denied|timed? ?out|unavailable|slow ?down|throttl\w*)\b.{0,160}\b(?:s3|bucket|"
                r"minio|rados|ceph|object ?stor(?:e|age)|gcs (?:bucket|object|blob)|oss|blob storage)\b"
            ),
            r"(?:googleapis\.com/storage|storage\.googleapis)",
        ),
        "copier: object store said unavailable while shard 7 was written",
        caseless=True,
        blame=Blame.STORAGE,
        unless=rf"{REASSURING_WORDS}|bucket[_ ](?:size|cap|view)|(?:reduce|gather|gradient|grad|ddp|length)[_ ]?bucket|"
        r"\bbuckets? #?[0-9]{1,3}(?:[\s,:;)]|$)|"  # DDP numbers its buckets
        r"\bray(?:let)?\b|gcs_\w+|(?:from|to) gcs\b|\bgcs (?:server|client)\b",
    ),
    symptom(
        "hint-ended-from-outside",
        "Preempted/TimeLimit",
        42,
        (
            r"\b(?:was|been|being|be|got|is|are) (?:evicted|preempted|reclaimed)\b",
            (
                r"(?:wall ?clock|wall ?time|time|run ?time) ?(?:limit|time)? (?:limit )?(?:was |is |"
                r"has been )?(?:reached|exceeded|exhausted|expired)"
            ),
            r"exceeded .{0,20}(?:wall ?clock|wall ?time|time limit|time (?:budget|quota|allowance))",
            r"TERMINATE_ON_HOST_MAINTENANCE|maintenance event",
        ),
        "broker: the job was evicted to make room for queue gold",
        caseless=True,
        blame=Blame.SCHEDULER,
        unless=rf"{REASSURING_WORDS}|\brequests?\b|\bcache|\bblocks?\b",  # a server evicts these by itself
    ),
    symptom(
        "hint-gpu-gone",
        "GPUFallenOffBus",
        43,
        (
            r"fell off the bus|pciehp: Slot\(\w+\): (?:Card not present|Link Down)|"
            r"GPU .{0,40}(?:disappeared|is missing(?:$|[ ,.;:]*(?:from|on|in)\b)|not detected|vanished)"
        ),
        "gpu-doctor: GPU 3 disappeared from the list of devices",
        blame=Blame.NODE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-xid",
        "XidOther",
        42,
        r"\bxid\b.{0,30}(?:error|\b[0-9]{1,3}\b)|\bNVRM: .{0,120}(?:timed? ?out|GSP timeout|fatal|RPC error)",
        "gpu-doctor: xid event 61 seen on GPU 3",
        caseless=True,
        blame=Blame.GPU,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-hang",
        "Hang",
        41,
        (
            (
                r"\b(?:task|job|rank|process|worker|collective)\b.{0,40}"
                r"\b(?:hung|is hanging|hangs|stalled|deadlock(?:ed)?|makes no progress)\b"
            ),
            r"\bdumping (?:py-spy )?stacks\b|py-spy dump|\bpresumed (?:hung|deadlock|hang)|flight recorder dump",
            r"\bno heartbeats? (?:of|from|for) (?:the )?(?:rank|worker|task|process|node|component)s?\b",
            r"\black of heartbeats?\b|\bwatchdog time(?:out|d out)\b|\b(?:not making|made no) progress\b",
            r"\bwait(?:s|ed|ing)? .{0,60}\bfor [0-9]{3,} ?s(?:ec(?:onds)?)?\b",
        ),
        "trainer: rank 4 hung in all_gather for 20 minutes",
        caseless=True,
        blame=Blame.NODE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-connection",
        "ConnectionError",
        41,
        (
            r"(?:cannot|could not|couldn't|unable to|failed to) (?:connect|reach|fetch url|"
            r"resolve .{0,30}(?:\bhost|\baddress|\bdomain|\bDNS|\w\.\w))\b|"
            r"(?:could not|unable to|failed to) (?:\w+ ){1,3}(?:TCP|socket|network) connection\b|"
            r"connection (?:error|failed|lost|closed)\b|\brpc error: code = [a-z]|"
            r"(?-i:\b(?:UNAVAILABLE|DEADLINE_EXCEEDED): )"
        ),
        "sidecar: could not reach the parameter server",
        caseless=True,
        blame=Blame.NETWORK,
        unless=rf"{REASSURING_WORDS}|unexpectedly exits with a connection error code",  # Ray: process lost
    ),
    symptom(
        "hint-checkpoint",
        "CheckpointCorrupt",
        42,
        r"\b(?:checkpoint|ckpt|weights|shard)\b.{0,80}\b(?:corrupt\w*|truncated|damaged|incomplete|checksum|bad magic)",
        "loader: shard 7 of the weights is damaged",
        caseless=True,
        blame=Blame.STORAGE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-memory",
        "HostOOMKilled",
        41,
        r"\bout[- ]of[- ]memory\b|\boom\b.{0,30}(?:kill|event)|ran out of (?:host |system )?(?:memory|RAM)",
        "srun: error: tern-3: task 4: Out Of Memory",
        caseless=True,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-device",
        "CUDAError",
        39,
        (
            r"\b(?:CUDA|cuDNN|cuBLAS|NVML|nvidia-smi|HIP|ROCm|NPU|TPU|XPU|GPU)\b(?: \w+){0,4}[ :]{1,2}"
            r"(?:error|failed|hung|halted|crashed)\b"
        ),
        "gpu-doctor: GPU 3 kernel launch failed",
        caseless=True,
        blame=Blame.GPU,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-ecc",
        "ECCError",
        40,
        (
            r"\bECC threshold .{0,40}\b(?:reached|exceeded)",
            r"\b(?:uncorrect\w+|double)\b.{0,60}\bECC\b.{0,60}\b(?:found|seen|detected)",
        ),
        "gpu-doctor: ECC threshold of GPU 3 reached",
        caseless=True,
        blame=Blame.GPU,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-arguments",
        "ArgumentError",
        39,
        (
            r"\b(?:unrecogni[sz]ed|unknown|invalid|unexpected|unsupported) (?:\w+ )?"
            r"(?:arguments?|options?|flags?|command line|subcommand)\b"
        ),
        "launcher: unsupported command line flag --fast",
        caseless=True,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-data",
        "DatasetLoadingError",
        39,
        r"\b(?:data ?set|dataloader|tfrecord|parquet|jsonl|mds|webdataset)s?\b.{0,60}"
        r"\b(?:failed to|could not be|cannot be|is (?:empty|malformed|corrupt\w*))\b",
        "prepare: dataset shard 7 is malformed",
        caseless=True,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-weights",
        "ModelLoadingError",
        39,
        r"\b(?:model|weights?|tokenizer|state[_ ]?dict|architecture)\b.{0,60}"
        r"\b(?:failed to load|could not be (?:loaded|read)|cannot be loaded)\b",
        "loader: weights of layer 9 could not be read",
        caseless=True,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-disk",
        "DiskFull",
        40,
        (
            r"\b(?:disk|storage|volume|file ?system|partition|quota)\b.{0,40}\b(?:exceeded|exhausted|out of space)\b",
            # `full` counts after a noun or at the end of a sentence, but not in `full scan`
            (
                r"\b(?:disk|storage|volume|file ?system|partition|quota)\b.{0,40}(?:"
                r"(?:\b(?:is|was|are|were|now|already|completely)|100 ?%) full\b|\bfull ?(?:$|[.,:;!()\]\"']))"
            ),
        ),
        "quota-daemon: storage of team gold is exhausted",
        caseless=True,
        blame=Blame.STORAGE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-slurm-node",
        "SlurmNodeFail",
        43,
        r"\bslurm\w*\b.{0,100}\bnodes?\b.{0,60}\b(?:fail\w*|down|unresponsive|not respond\w*|lost)\b",
        "slurm-watch: slurmctld took node tern-9 out, it is unresponsive",
        caseless=True,
        blame=Blame.NODE,
        unless=REASSURING_WORDS,
    ),
    symptom(
        "hint-collective",
        "NCCLTimeoutError",
        41,
        (
            r"\b(?:nccl|rccl|hccl|collective|all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier)\b.{0,80}"
            r"\b(?:time(?:d)? ?out|expired|did not complete)\b"
        ),
        "trainer: barrier of step 88 expired",
        caseless=True,
        blame=Blame.NODE,
        unless=rf"{REASSURING_WORDS}|timeout (?:is |was )?set|timeout[ =:]+[0-9]|detect|handl",
    ),
    teardown(  # words for a failure without a cause: a log that ends with them did not end well
        "hint-grave",
        4,
        (
            r"\bCheck failed: |\bcore dumped\b|(?:^|[\[ |:])(?:FATAL|CRITICAL)\b",
            r"^\[?F[0-9]{4} [0-9][0-9]:[0-9][0-9]:[0-9][0-9]",
        ),
        "F0301 04:00:12.000001 88 step.cc:90] Check failed: left == right (3 vs. 4)",
        unless=REASSURING_WORDS,
    ),
)
