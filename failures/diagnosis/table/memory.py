"""Exhausted GPU memory, host memory and shared memory, and the signals that follow. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause, symptom
from ..values import Blame, SignatureTrait

ROWS: tuple[Signature, ...] = (
    cause(
        "cuda-oom",
        "OutOfMemoryError",
        88,
        (
            r"Not enough memory\. Please try to increase --mem-fraction",
            r"KV cache pool is full|\b(?:Prefill|Decode) out of memory\b|\bOOM during optimization\b",
            r"insufficient (?:GPU|device) memory|[Cc]annot allocate GPU memory",
            r"Failed to CUDA (?:host )?(?:c|m)alloc",
            r"exceeds .{0,40}GPU memory (?:limit|capacity)",
            r"Memory limit exceeded on (?:GPU|device)",
            r"larger than the available KV cache memory",
            r"OutOfResources: out of resource",
            r"CUDA out of memory",
            r"HIP out of memory",
            r"torch(?:\.cuda)?\.OutOfMemoryError",
            r"(?i:CUDA error:? (?:\(?2\)?:? )?out of memory|CUDA(?: runtime| driver)? error.{0,40}out of memory)",
            r"MPS backend out of memory|Allocator \(GPU_[0-9]+_bfc\) ran out of memory|c10::OutOfMemoryError",
            r"cudaErrorMemoryAllocation",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"_STATUS_ALLOC_FAILED",
            (
                r"(?i:\b(?:HIP error|Triton Error|GPUassert|CUDA (?:runtime API|driver) error)\b.{0,40}"
                r"\bout of memory\b)"
            ),
            r"(?i:resource[_ ]exhausted).{0,60}(?:[Oo]ut of memory|OOM|[Aa]llocat|[Rr]eserve)",
            r"OOM when allocating tensor",
            (
                r"(?i:cuda failure.{0,20}out of memory|failed to allocate.{0,40}GPU memory|"
                r"No available memory for the cache blocks|not enough GPU memory)"
            ),
            r"Free memory on device .{0,80}is less than",
            r"larger than the maximum number of tokens that can be stored in KV cache",
            r"XPU out of memory",
            r"NPU out of memory",
        ),
        (
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 1 has a total "
            "capacity of 31.7 GiB"
        ),
        unless=r"(?i)if reserved.*only|WARNING.{0,80}(?:retry|retrying|fallback|falling back)|retrying with",
    ),
    cause(
        "kernel-oom",
        "HostOOMKilled",
        93,
        (
            r"job killed: (?:mem|vmem|pmem) [0-9]+\w* exceeded limit",
            r"earlyoom: sending SIG",
            r"\bOUT_OF_ME\w*\+? +[0-9]+:[0-9]+|\b(?:Job)?State[:=] ?OUT_OF_MEMORY",
            r"systemd-oomd.{0,20}[Kk]illed",
            r"killed by (?:the )?(?:cgroup|memory|host).{0,20}(?:limit|oom|killer)",
            r"memory limit.{0,30}(?:exceeded|reached).{0,40}kill",
            r"cgroup.{0,40}memory limit (?:exceeded|reached)",
            r"task_memory.{0,40}exceed",
            r"\boom[-_]kill\b|\bOOMController\b",
            r"Out of memory: Kill(?:ed)? process|\bKilled process [0-9]+ \(",
            r"OOM encountered, victim process|killed as a result of limit of /",
            r"Memory cgroup out of memory",
            r"invoked oom-killer",
            r"oom_reaper",
            r"Detected [0-9]+ oom[-_]kill",
            r"\bOOMKilled\b",
            r"OOM Killed",
            r"out-of-memory handler",
            r"Exceeded (?:job )?memory limit",
            r"exceeded memory limit",
            r"TERM_MEMLIMIT",
            r"killed .{0,40}out of memory",
            r"ray\.exceptions\.OutOfMemoryError",
            r"killed due to the node running low on memory|how to address the out of memory issue",
            r"Some of the step tasks have been OOM Killed",
            r"memory pressure.{0,40}kill|killed due to memory pressure|\|OUT_OF_MEMORY\||\bstate:? OUT_OF_MEMORY\b",
            r"using [0-9.]+ ?[kMG]i?B.{0,60}of its memory limit",
            r"oom_kill event",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7005.0. Some of the step tasks have been OOM Killed."),
        caseless=True,
    ),
    cause(
        "host-alloc",
        "HostOOMKilled",
        74,
        (
            r"DefaultCPUAllocator: (?:can't|not enough)",
            (
                r"(?i:Cannot allocate memory|std::bad_alloc|(?:\b|Array|Host)MemoryError\b|"
                r"Unable to allocate [0-9.]+ [KMGT]iB|"
                r"cannot pin memory|cudaHostAlloc.{0,40}fail)"
            ),
            r"ENOMEM",
            r"java\.lang\.OutOfMemoryError",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 8589934592 bytes."
        ),
    ),
    cause(
        "data-worker-killed",
        "DataloaderKilled",
        90,
        (
            r"unable to open shared memory object </torch_",
            r"Pin memory thread exited unexpectedly",
            r"subprocess(?:es)? has abruptly died during map",
            r"process in the process pool was terminated abruptly",
            r"received 0 items of ancdata",
            r"Too many open files.{0,60}(?:DataLoader|worker)",
            r"Unexpected (?:segmentation fault|floating-point exception) encountered in worker",
            r"DataLoader worker \(pid.{0,60}(?:is killed by signal|exited unexpectedly)",
            r"DataLoader timed out after",
            r"Unexpected bus error encountered in worker",
            r"worker .{0,30}killed by signal: (?:Bus|Killed|Segm|Abort|Terminated|Float)",
            r"data ?loader worker.{0,60}(?:killed|died)",
            r"(?i:dataloader.{0,40}workers? .{0,40}(?:was|were|got|is) killed)",
        ),
        "RuntimeError: DataLoader worker (pid 5150) is killed by signal: Killed.",
    ),
    cause(
        "bus-error",
        "DataloaderKilled",
        50,
        (
            r"Bus error(?: \(core dumped\))?",
            r"\bSIGBUS\b",
            r"Signals\.SIGBUS",
            r"\(signal: 7\)",
            r"exitcode *: *-7\b",
            r"(?:return|exit) code[ =:]{1,4}(?:-7|135)\b",
            r"(?i:\b(?:killed|terminated|died|ended|exited)(?: by| with| on| from| due to)? signal:? ?7\b)",
            r"(?i:\bexit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)?(?: code)?:? *135\b)",
        ),
        "run.sh: line 12: 88 Bus error               (core dumped) python pretrain.py",
    ),
    symptom(
        "sigkill",
        "HostOOMKilled",
        40,
        (
            r"\b[0-9]+ Killed +\S",
            r"exitcode *: *-9\b",
            r"\(signal: 9\)",
            r"(?i:signal 9 \(SIGKILL\)|terminated with signal SIGKILL)",
            r"Signals\.SIGKILL",
            (
                r"(?i:killed by signal 9|exit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)?:? *(?:137|-9)\b|"
                r"signal 9 \(Killed\)|return ?code[ =:]+-9\b|exits with return code = -9|received SIGKILL|"
                r"Terminated by signal 9|exited on signal 9\b|exit code.{0,6}137)"
            ),
            r"\bcode[ =:]+137\b",
            r"(?i:\b(?:killed|terminated|died|ended|exited)(?: by| with| on| from| due to)? signal:? ?9\b)",
            r"was sent SIGKILL|^=? *EXIT CODE: 9\b|EXIT STRING: Killed",
            r": Killed +\S",
            r"\bKilled[ \t\r]*$",
            r"已杀死|WTERMSIG 9\b",
            r"killed by SIGKILL by OOM killer due to high memory usage",
            r"may have exceeded (?:\w+ ){0,3}memory limits?\b",
            r"task [0-9,-]+: Killed",
        ),
        "torch.distributed.elastic.multiprocessing.errors: exitcode  : -9 (pid: 4242)",
        blame=Blame.NODE,
        unless=r"Sending|escalat|Unable to shutdown",
        traits=(SignatureTrait.PROCESS_KILLED, SignatureTrait.STEP_KILL),
    ),
)
