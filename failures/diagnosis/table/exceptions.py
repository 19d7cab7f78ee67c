"""Python exceptions by name. One signature finds all of them; the name decides the label. Pure.

Other signatures are more specific, so the name is used only if none of them matches.
"""

from __future__ import annotations

import re

from ..signatures import PYTHON_EXCEPTION, Signature, cause
from ..values import SignatureTrait

ROWS: tuple[Signature, ...] = (
    # Each alternative needs some fixed letters: without them the whole scan takes a third longer
    cause(PYTHON_EXCEPTION, "", 50, (
        r"[a-zA-Z](?:Error|Exception|Interrupted|Failure|Fault)\b",
        r"\bStopIteration\b|\bArrowInvalid\b|\bDistributionNotFound\b|\bException: ",
        r"(?:rrors?|xceptions?|exc)\.[A-Z]\w{2,60}(?::|$)",
        r"\b(?:TimeoutExpired|BackendCompilerFailed|MissingMandatoryValue|VersionConflict|queue\.(?:Empty|Full))\b",
    ),
          "AssertionError: heads must be divisible by tensor parallel size",
          traits=(SignatureTrait.EXCEPTION, SignatureTrait.VARIED)),
)  # fmt: skip

# Class name (last part) → label. `label_by_name` handles names that are not listed here.
LABELS_BY_NAME: dict[str, str] = {
    "AttributeError": "AttributeError", "ConfigAttributeError": "AttributeError",
    "AssertionError": "AssertionError",
    "ValueError": "ValueError", "ValidationError": "ValueError", "JSONDecodeError": "ValueError", "ConfigValueError": "ValueError",
    "UnicodeDecodeError": "ValueError", "UnicodeEncodeError": "ValueError", "ArrowInvalid": "ValueError",
    "MisconfigurationException": "ValueError", "DeepSpeedConfigError": "ValueError", "LinAlgError": "RuntimeError",
    "ZeroDivisionError": "ZeroDivisionError",
    "FileNotFoundError": "FileNotFoundError", "NotADirectoryError": "OSError", "IsADirectoryError": "OSError",
    "FileExistsError": "OSError", "OSError": "OSError", "IOError": "OSError", "EnvironmentError": "OSError",
    "BlockingIOError": "OSError", "InterruptedError": "OSError", "UnidentifiedImageError": "DatasetLoadingError",
    "SameFileError": "OSError", "Error": "RuntimeError", "LockException": "OSError",
    "TypeError": "TypeError", "ConfigTypeError": "TypeError",
    "NameError": "NameError", "UnboundLocalError": "NameError",
    "PermissionError": "PermissionError",
    "ImportError": "ImportError", "ModuleNotFoundError": "ImportError", "DistributionNotFound": "ImportError",
    "PackageNotFoundError": "ImportError", "VersionConflict": "ImportError",
    "KeyError": "KeyError", "ConfigKeyError": "KeyError", "MissingMandatoryValue": "ArgumentError",
    "SyntaxError": "SyntaxError", "IndentationError": "SyntaxError", "TabError": "SyntaxError",
    "ParserError": "SyntaxError", "ScannerError": "SyntaxError",
    "ArgumentError": "ArgumentError", "ArgumentTypeError": "ArgumentError", "UsageError": "ArgumentError",
    "ConfigCompositionException": "ArgumentError", "OverrideParseException": "ArgumentError",
    "CalledProcessError": "CalledProcessError",
    "IndexError": "IndexError",
    "MemoryError": "HostOOMKilled", "OutOfMemoryError": "OutOfMemoryError",
    "ConnectionError": "ConnectionError", "ConnectionRefusedError": "ConnectionError", "TimeoutError": "ConnectionError",
    "ConnectionResetError": "ConnectionError", "ConnectionAbortedError": "ConnectionError",
    "BrokenPipeError": "ConnectionError", "TimeoutExpired": "ConnectionError", "gaierror": "ConnectionError",
    "RendezvousConnectionError": "ConnectionError", "RendezvousTimeoutError": "ConnectionError", "HTTPError": "ConnectionError",
    "URLError": "ConnectionError", "CommError": "ConnectionError", "ServerDisconnectedError": "ConnectionError",
    "AcceleratorError": "CUDAError", "CudaError": "CUDAError", "CUDARuntimeError": "CUDAError", "CUDADriverError": "CUDAError",
    "CudaAPIError": "CUDAError", "CudaSupportError": "CUDAError", "NVMLError": "CUDAError",
    "Exception": "RuntimeError", "RuntimeError": "RuntimeError", "NotImplementedError": "RuntimeError", "RecursionError": "RuntimeError",
    "StopIteration": "RuntimeError", "CompilationError": "RuntimeError", "BackendCompilerFailed": "RuntimeError",
    "InternalTorchDynamoError": "RuntimeError", "TorchRuntimeError": "RuntimeError", "InductorError": "RuntimeError",
    "Unsupported": "RuntimeError", "OverflowError": "ValueError", "FloatingPointError": "LossNaNOrSpike", "LookupError": "KeyError", "ProcessLookupError": "OSError", "EOFError": "RuntimeError",
    "UnpicklingError": "CheckpointCorrupt", "ScopeParamShapeError": "ModelLoadingError", "PicklingError": "RuntimeError", "SafetensorError": "CheckpointCorrupt",
    "NodeDiedError": "NodeFailure", "ProxyError": "ConnectionError", "DataLossError": "CheckpointCorrupt", "DistNetworkError": "ConnectionError", "Again": "ConnectionError", "DistStoreError": "ConnectionError",
}  # fmt: skip

# Splits a name into words: `GradientBucketError` → "gradient bucket error", `NVMLError_GpuIsLost` → "nvml error gpu
# is lost". The patterns below match whole words, so `Important` is not an import and `POSError` not an OS error.
NAME_WORD_BOUNDARY = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

# Labels for unlisted names by the words in them. The first match decides: rare words before common ones.
# The look-behinds exclude machine learning terms: neural networks, skip connections, learning rate limits.
LABELS_BY_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple((re.compile(rf"\b(?:{words})\b"), to) for words, to in (
    (r"import|(?:module|package|distribution) not found", "ImportError"),
    (r"(?:api|access|secret|private|public|ssh) key", "PermissionError"),
    (r"key (?:error|not found)", "KeyError"),
    (r"index error|axis error|out of bounds", "IndexError"),
    (r"attribute error", "AttributeError"),
    (r"assertion error", "AssertionError"),
    (r"type (?:error|mismatch)", "TypeError"),
    (r"syntax error", "SyntaxError"),
    (r"dead ?lock(?:ed)?|hang(?:s|ing)?|hung", "Hang"),
    (r"(?:collective|barrier|all ?reduce|all ?gather) (?:\w+ )?time ?out", "NCCLTimeoutError"),
    (r"out of disk|disk full|no space(?: left| on device)?(?= (?:error|exception)|$)", "DiskFull"),
    (r"(?:node|host|raylet) (?:died|lost|down)", "NodeFailure"),
    # A bucket alone may be one of gradients or lengths, a blob alone part of an image
    (r"object (?:store(?! full)|storage)|s3(?:fs)?|gcsfs|gcs(?! (?:client|server|rpc))|oss|min ?io|azure blob|"
     r"blob (?:store|storage|service|client|(?:not|already) \w+|upload|download)|no such bucket|"
     r"^bucket (?:not found|already \w+)", "S3StorageError"),
    (r"(?:cuda|gpu|hip|hbm|vram)(?: \w+)* memory (?:error|limit)|out of (?:cuda|gpu|hip|device) memory",
     "OutOfMemoryError"),
    (r"memory (?:error|limit)|out of memory", "HostOOMKilled"),
    (r"nccl (?:\w+ )?time ?out", "NCCLTimeoutError"),
    (r"nccl remote", "NCCLRemoteError"),
    (r"cuda|nvml|nccl|hip (?!hop)\w+", "CUDAError"),
    (r"corrupt\w*|check ?sum|crc\d*|lzma|truncated(?! (?:normal|gaussian|distribution|svd|bptt|backprop))",
     "CheckpointCorrupt"),
    (r"data ?sets?|empty data", "DatasetLoadingError"),
    (r"permissions?|access denied|forbidden|unauthori[sz]ed|auth|authentication|authori[sz]ation|credentials?",
     "PermissionError"),
    (r"not connected|connect(?:ing)?|(?<!skip )(?<!residual )connections?|time ?outs?|timed out|"
     r"(?<!neural )(?<!policy )(?<!target )network(?! (?:x|architecture|layer|definition))|(?:web)?sockets?|m?tls|"
     r"ssh|ssl\w*|http\w*|[gb]?rpc|(?<!kernel )(?<!feature )(?<!device )unavailable|"
     r"unreachable(?! (?:code|branch|state))|incomplete read|chunked encoding|handshake|"
     r"(?<!pickle )(?<!buffer )protocol(?! buffers?)|(?<!learning )rate limit(?:ed)?|(?<!thermal )throttl\w+|"
     r"bad status|deadline exceeded|disconnect(?:ed|ion)?(?! (?:graph|component))",
     "ConnectionError"),
    (r"(?:file|path|config|directory|^) ?not found|missing (?:file|path|config)", "FileNotFoundError"),
    (r"bad parameter|(?<!memory )(?<!disk )(?<!gpu )(?<!cpu )usage|inconsistent argument|unknown option|"
     r"missing argument", "ArgumentError"),
    (r"(?<!key )values?(?! (?:network|function|head|store|model))|unicode|"
     r"(?<!cross )validation(?! (?:set|loss|step|epoch|loop))|config(?:uration|ured)?|schema|"
     r"(?<!speculative )(?<!beam )decod(?:e|ing)|decoder (?:error|exception)|"
     r"(?<!positional )(?<!rotary )encod(?:e|ing)|encoder (?:error|exception)|pars(?:e|ed|er|ing)|invalid url|"
     r"misconfig\w*", "ValueError"),
    (r"os error|a?io error|file ?system|lock(?:ed)? (?:error|exception)", "OSError"),
))  # fmt: skip

# Wrappers: they report the failure of another process or task.
WRAPPER_EXCEPTIONS = frozenset(
    [
        "ChildFailedError",
        "CheckpointException",
        "SignalException",
        "ProcessExitedException",
        "ProcessRaisedException",
        "RayTaskError",
        "RayActorError",
        "ActorDiedError",
        "WorkerCrashedError",
        "EngineDeadError",
        "AsyncEngineDeadError",
        "DistBackendError",
        "BrokenProcessPool",
        "TaskError",
        "TrainingFailedError",
        "TuneError",
        "ActorUnavailableError",
        "KeyboardInterrupt",
        "RemoteError",
        "FailedJobError",
        "UncompletedJobError",
        "ClosedResourceError",
        "HTTPException",
        "MultiprocessingError",
        "MultiprocessException",
        "RetryError",
        "ExecutionError",
        "EndOfStream",
        "CancelledError",
        "GeneratorExit",
        "Failure",
        "ExceptionGroup",
        "BaseExceptionGroup",
        "StopAsyncIteration",
    ]
)
WEAK_EXCEPTIONS = {"Exception": 30, "RuntimeError": 40, "NotImplementedError": 46, "StopIteration": 30, "CalledProcessError": 36, "BrokenPipeError": 26, "TimeoutError": 44,
        "EOFError": 34, "ConnectionResetError": 36, "ConnectionRefusedError": 44, "Error": 20,
        "RendezvousConnectionError": 44, "RendezvousTimeoutError": 44}  # fmt: skip

EXCEPTION_NAME = re.compile(
    r"(?:^|[\s\"'(\[:>|=])((?:[A-Za-z_]\w*\.)*_{0,2}([A-Z]\w*(?:Error|Exception|Interrupted|Failure|Fault)|Exception|gaierror|StopIteration|ArrowInvalid|DistributionNotFound|"
    r"VersionConflict|BackendCompilerFailed))"
    r"(?=$|[:\s('\"\\,.\])])"
)
# `package.Name: words` without a typical ending, as in zmq.error.Again: an exception only below a traceback
QUALIFIED_NAME = re.compile(r"^(?:[a-z_]\w*\.)+([A-Z]\w+)(?:: |:?\s*$)")
# `See root cause above`: the message itself states that this is not the cause
REFERENCE_TO_CAUSE = re.compile(
    r"(?i)\b(?:see|check) (?:the )?(?:root cause|stack ?trace|traceback)s? (?:above|for (?:the )?root cause)|"
    r"due to an exception in a background process|"
    r"^exception raised from \S+ at "  # the header of the stack below the message
)
EXCEPTION_MODULE = re.compile(r"(?:[a-z_]\w*\.)*(?:errors?|exceptions?|exc)\.[A-Z]\w+: \S")
INNER_EXCEPTION = re.compile(r"(?:RayTaskError|RemoteError)\((\w+)\)|Caught (\w+) in ")
ERRNO_NUMBER = re.compile(r"\[?\bErrno (\d+)\]?")
LABELS_BY_ERRNO = {
    "2": "FileNotFoundError", "12": "HostOOMKilled", "13": "PermissionError", "1": "PermissionError", "28": "DiskFull",
    "122": "DiskFull", "32": "ConnectionError", "104": "ConnectionError", "110": "ConnectionError", "111": "ConnectionError",
    "100": "ConnectionError", "101": "ConnectionError", "103": "ConnectionError", "112": "ConnectionError",
    "113": "ConnectionError", "-2": "ConnectionError", "-3": "ConnectionError",
}  # fmt: skip


# Texts of system errors, for exceptions without an errno (`RuntimeError: Too many open files`)
STRERROR_TEXT = re.compile(
    r"(?:Error|Exception): (?:Resource temporarily unavailable|Bad file descriptor|Bad address|Exec format error|"
    r"Argument list too long|No such device(?: or address)?|No such process|No child processes|File exists|"
    r"Invalid cross-device link|Not a directory|Is a directory|Too many open files(?: in system)?|Text file busy|"
    r"File too large|Illegal seek|Too many links|File name too long|No locks available|Directory not empty|"
    r"Too many levels of symbolic links|Value too large for defined data type|Protocol error)"
    r"(?=$|[:.(,]| \()"
)


def match_exception(message: str) -> tuple[str, int, int] | None:
    """(label, specificity, column) of the exception in a message; None if there is none."""
    inside = INNER_EXCEPTION.search(message)
    match = EXCEPTION_NAME.search(message)
    if match is None or REFERENCE_TO_CAUSE.search(message):
        return None
    name = match[2]
    if inside and (inner := (inside[1] or inside[2])) and inner not in WRAPPER_EXCEPTIONS:
        return label_by_name(inner), WEAK_EXCEPTIONS.get(inner, 50), match.start(1)
    if name in WRAPPER_EXCEPTIONS:
        return None
    label = label_by_name(name)
    if label == "OSError" and (errno := ERRNO_NUMBER.search(message)):
        label = LABELS_BY_ERRNO.get(errno[1], label)
    if label == "RuntimeError" and STRERROR_TEXT.search(message):
        return "OSError", WEAK_EXCEPTIONS["RuntimeError"], match.start(1)
    unknown = name not in LABELS_BY_NAME and label == "RuntimeError"
    return label, WEAK_EXCEPTIONS.get("RuntimeError" if unknown else name, 50), match.start(1)


def unknown_exception_name(message: str) -> str | None:
    """The name of a possible exception without a typical ending; None if there is none."""
    match = QUALIFIED_NAME.match(message)
    return match[1] if match and match[1] not in WRAPPER_EXCEPTIONS else None


def is_in_exception_module(message: str) -> bool:
    """Whether the class is from a module named `errors` or `exceptions`, so that it is certainly an exception."""
    return EXCEPTION_MODULE.match(message) is not None


def label_by_name(name: str) -> str:
    """The label of an exception. Unlisted names are labelled by their words, because libraries name errors by cause."""
    if name in LABELS_BY_NAME:
        return LABELS_BY_NAME[name]
    spaced = NAME_WORD_BOUNDARY.sub(" ", name).strip().lower()
    return next((label for words, label in LABELS_BY_WORDS if words.search(spaced)), "RuntimeError")
