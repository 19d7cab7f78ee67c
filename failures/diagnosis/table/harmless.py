"""Lines that look like errors but are harmless. Each hides weaker findings on its own line. Pure."""

from __future__ import annotations

from ..signatures import Signature, benign
from ..values import SignatureTrait

ROWS: tuple[Signature, ...] = (
    benign(
        "loss-scale-search",
        (
            r"OVERFLOW! Rank [0-9]+ Skipping step",
            r"Gradient overflow\.  ?Skipping step",
            r"grad overflow.{0,40}skipping",
            r"Attempted loss scale",
            r"(?i:\bskip\w*.{0,60}\b(?:inf|nan|overflow)\b.{0,80}\b(?:loss )?scale)",
        ),
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1024, reducing to 512",
        specificity=74,
    ),
    benign(
        "process-group-left",
        (
            r"process group has NOT been destroyed|main process destroyed cuda before watchdog",
            r"destroy_process_group\(\) was not called",
            r"Producer process has been terminated before all shared CUDA tensors",
        ),
        (
            "[rank4]:[W301 ProcessGroupNCCL.cpp:1200] WARNING: process group has NOT been destroyed before it is "
            "being destructed"
        ),
    ),
    benign(
        "cuda-probe",
        r"misc/cudawrap\.cc:[0-9]+ NCCL WARN Cuda failure 3 'initialization error'",
        "heron-2:81:81 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 3 'initialization error'",
    ),
    benign(
        "fabric-news",
        r"[Aa]sync event ?: ?(?:client reregistration|SM change|LID change|P_?[Kk]ey change|port active)",
        "heron-2:81:95 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration",
    ),
    benign(
        "slurm-cgroup-left",  # the scheduler cleans up after a step that has already ended
        r"\b(?:delet|destroy|remov|rmdir).{0,80}\bcgroup.{0,240}(?:[Rr]esource busy|No such file)",
        "slurmstepd: _slurm_cgroup_destroy: problem deleting step cgroup path /cgroup/step_0: Device or resource busy",
    ),
    benign(
        "slurm-own-way",  # a step uses its own limits and directory if it may not use the user's
        r"Can't propagate RLIMIT_\w+|slurmstepd: error: Unable to create TMPDIR",
        "slurmstepd: error: Can't propagate RLIMIT_MEMLOCK of 65536 from submit host: Operation not permitted",
    ),
    benign(
        "oom-unwatched",  # a kernel that does not count kills does not report one
        (
            r"OOM events(?: were not monitored|, memory\.oom_control)",
            r"(?:cannot|can't|could not|unable to|failed to) .{0,60}oom[_-]kill count(?:er|s)\b",
            r"oom[_-]kill count(?:er|s)\b.{0,60}(?:not be|cannot|could not|unavailable)",
        ),
        "slurmstepd: error: Cannot read the step's oom_kill counter",
        specificity=94,
        caseless=True,
    ),
    benign(
        "probe-early",  # a probe before the container listens; it only gets no requests until it answers
        r"\b(?:Readiness|Startup) probe failed: ",
        "Warning  Unhealthy  pod/tern-0  Readiness probe failed: dial tcp 10.0.0.7:8080: connect: connection refused",
        specificity=94,
    ),
    benign(
        "no-ipv6",
        r"errno: 97 - Address family not supported",
        (
            "[W socket.cpp:600] [c10d] The client socket cannot be initialized to connect to [tern-1]:29400 "
            "(errno: 97 - Address family not supported by protocol)."
        ),
    ),
    benign(
        "optional-library",
        (
            r"Failed to open libibverbs",
            r"NET/Plugin ?: ?(?:No|Could not find|Plugin load)",
            r"NET/IB : No device found",
            r"libnccl-net\.so",
            r"No plugin found",
            r"Failed to load image Python extension",
            r"Could not load dynamic library|from LD_PRELOAD cannot be preloaded",
            r"cuda drivers on your machine",
            r"Unable to register cu",
            r"Cannot dlopen some GPU libraries",
            r"TF-TRT Warning",
            r"dlerror",
            r"Could not initialize NNPACK",
            r"libnccl-tuner",
            r"ncclNetPlugin",
        ),
        "heron-5:20:20 [0] misc/ibvwrap.cc:70 NCCL WARN Failed to open libibverbs.so[.1]",
    ),
    benign(
        "deprecation",
        (
            r"(?:Deprecation|Future|User|Runtime|Resource|Import|Pending\w+|Syntax|Convergence|Optimize|"
            r"Undefined\w*|Lightning\w*|Experimental\w*)Warning\b"
        ),
        "lib/x.py:8: FutureWarning: `torch.load` with `weights_only=False`; a ValueError will be raised",
        specificity=89,
    ),
    benign(
        "advice",
        (
            r"CUDA_LAUNCH_BLOCKING",
            r"TORCH_USE_CUDA_DSA",
            r"CUDA kernel errors might be asynchronously",
            r"Exception raised from .{1,200} \(most recent call first\)",
            r"This typically indicates a NCCL/CUDA API hang.{0,20}$",
            r"TORCH_NCCL_ASYNC_ERROR_HANDLING",
            r"set to 1 by default",
            r"NCCL_ASYNC_ERROR_HANDLING is deprecated",
            r"For more information.{0,40}error",
            r"max_split_size_mb",
            r"expandable_segments",
            r"PYTORCH_CUDA_ALLOC_CONF",
        ),
        "For debugging pass CUDA_LAUNCH_BLOCKING=1",
        specificity=60,
        traits=(SignatureTrait.AMBIGUOUS,),
    ),
    benign(
        "ignored-exception",
        (
            r"Exception ignored (?:in|on)",
            r"Error in atexit",
            r"Error in sys\.excepthook",
            r"ignored exception",
        ),
        "Exception ignored in: <function Worker.__del__ at 0x7f00>",
    ),
    benign(
        "zero-errors",
        (
            r"\b(?:0|no|zero) (?:errors?|failures?|nan iterations)\b",
            r"\berrors?[ =:]+0\b",
            r"fault[- ]tolerance",
            r"error[_ -]handl",
            r"on_error",
            r"error_file *: *<N/A>",
            r"error_file: None",
        ),
        "link check: 0 errors, 0 NVLink error counters",
        specificity=72,
        caseless=True,
        unless=r"\bXid\b|connectFullMesh",  # a code, and an errno of nought, beside what did fail
        traits=(SignatureTrait.AMBIGUOUS,),
    ),
    benign(
        "no-failure",
        r"(?i:(?:this is|that this is) not (?:a failure|an error)|\bcan (?:be )?safely (?:be )?ignored?\b)",
        "Allocator (GPU_1_bfc) ran out of memory. The caller indicates that this is not a failure",
    ),
    benign(
        "retrying",
        (
            r"(?i:entering retry loop)",
            r"\bretry(?:ing)? (?:in|after|with|[0-9])",
            r"Retrying \(Retry\(",
            r"will (?:be )?retr(?:y|ied)",
            r"attempt [0-9]+ ?(?:/|of) ?[0-9]+.{0,40}retry",
        ),
        "WARNING urllib3: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError'",
        specificity=65,
        caseless=True,
    ),
    benign(
        "falling-back",
        r"\b(?:falling back|fallback) to\b",
        "attention: no kernel for this head size, falling back to eager",
        specificity=65,
        caseless=True,
        traits=(SignatureTrait.AMBIGUOUS,),
    ),
    benign(
        "default-config",
        (
            r"Config file not found at .{0,200}",
            r"Using default MoE config",
            r"Performance might be sub-optimal",
        ),
        "[TP1] Using default MoE config. Config file not found at tuned/E=8.json",
        traits=(SignatureTrait.AMBIGUOUS,),
    ),
    benign(
        "launcher-words",
        (
            r"(?:--|\b)max[_-]restarts",
            r"monitor_interval",
            r"--exit-",
            r"exit_duration",
            r"exit_interval",
            r"exit_on_missing",
            r"exit_signal_handler",
            r"error_injection",
        ),
        "  exit_on_missing_checkpoint ...................... False",
        traits=(SignatureTrait.AMBIGUOUS,),
    ),
)
