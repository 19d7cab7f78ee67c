"""Errors of training frameworks, tokenizers and data libraries: model, data or numbers do not fit. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause, symptom
from ..values import SignatureTrait

ROWS: tuple[Signature, ...] = (
    cause(
        "state-dict",
        "ModelLoadingError",
        86,
        (
            r"Cannot find any of \[.{0,80}adapter|Can't find 'adapter_config\.json'",
            r"Incorrect path_or_model_id|Repo id must be in the form",
            r"size mismatch for \S*(?:weight|bias)|[Ss]ize mismatch between saved\b",
            r"could not parse ModelProto",
            r"sentencepiece_processor\.cc",
            r"loaded state dict (?:contains|has) a",
            r"(?:parameter|different number of parameter) groups?.{0,40}(?:state dict|doesn't match)",
            r"data did not match any variant of untagged enum",
            r"[Uu]nsupported model architecture",
            r"no module or parameter named",
            r"(?:[Mm]issing|[Uu]nexpected) keys? in (?:the )?(?:checkpoint|state_dict)",
            r"(?i:tree structures? do(?:es)? not match|(?:param|checkpoint) tree mismatch)",
            r"class you are passing has a `config_class`",
            r"config\.json.{0,40}(?:not found|missing)",
            r"Error loading the tokenizer|Unable to load tokenizer",
            r"does not recognize this architecture",
            r"tokenizer\.model.{0,40}(?:not found|missing)",
            r"Failed to load (?:the )?(?:model|checkpoint|weights)|failed to load (?:model|checkpoint|weights)",
            r"were not found in the (?:checkpoint|state dict)",
            r"vocab(?:ulary)? size (?:mismatch|of .{0,40}does not match)",
            r"[Nn]o checkpoint (?:found|files found|shards)",
            r"Error\(s\) in loading state_dict",
            r"size mismatch for \S+: copying a param",
            r"(?:Missing|Unexpected) key\(s\) in state_dict",
            r"does not appear to have a file named",
            r"Error no file named",
            r"is not a local folder and is not a valid model identifier",
            r"is not the path to a directory containing",
            (
                r"Can't load (?:tokenizer|the configuration|the model|config|weights|feature extractor|"
                r"image processor|processor) (?:for|of)"
            ),
            r"Unable to load weights from|Could not load model \S+ with any of the following classes",
            r"is not a valid model identifier",
            r"Cannot load .{0,80}checkpoint",
            (
                r"(?i:fail(?:ed|ure)? (?:to|in|while) load(?:ing)? .{0,40}(?:model|weights|checkpoint|"
                r"tokenizer)\b|error (?:in )?loading (?:the )?(?:model|weights|tokenizer)\b|"
                r"unable to load (?:the )?(?:model|weights|tokenizer|vocabulary)\b)"
            ),
            r"Model architectures .{0,80}(?:are not supported|failed to be inspected)",
            r"Unrecognized (?:model|configuration class)",
            r"The checkpoint you are trying to load has model type",
            r"RepositoryNotFoundError",
            r"GatedRepoError",
            r"You are trying to access a gated repo",
            r"EntryNotFoundError",
            r"RevisionNotFoundError",
            r"CheckpointingException",
            r"checkpoint.{0,60}(?:shape|size|key)s? mismatch",
            r"Global shape mismatch",
            r"Keys? .{0,80}not found in (?:the )?(?:checkpoint|state|weight)",
            r"Trying to set a tensor of shape",
            r"weights of .{0,40}not initialized from.{0,60}mismatched",
            r"is not a supported wrapped model",
            r"unable to load.{0,40}safetensors",
            r"Tokenizer class \S+ does not exist",
            r"Couldn't instantiate the backend tokenizer",
            r"Unable to load vocabulary",
        ),
        "RuntimeError: Error(s) in loading state_dict for TernForCausalLM:",
        unless=r"(?i)Some weights of|this is expected|LocalEntryNotFound|\bWARNING\b|couldn't connect to|from scratch|"
        r"\bwill start\b",
    ),
    cause(
        "dataset",
        "DatasetLoadingError",
        82,
        (
            r"with any supported extension",
            r"(?i:bad header|cannot read|corrupt|invalid|missing).{0,80}\.(?:idx|parquet|arrow|mds|jsonl)\b",
            r"num_samples should be a positive integer",
            r"tarfile\.ReadError|unexpected end of data",
            r"cannot identify image file|UnidentifiedImageError",
            r"dataset (?:is|was) empty|empty dataset",
            r"[Nn]o (?:samples|examples|data files?|documents) (?:found|left|available) (?:in|for|under)",
            r"StreamingDataset.{0,60}(?:error|fail)|MDS.{0,40}(?:corrupt|hash)",
            r"Shard .{0,60}(?:failed|missing|corrupt)",
            r"DatasetNotFound|load_dataset\(.{0,80}failed",
            r"Couldn't infer the same data file format",
            r"Loading a dataset cached in|corresponds to no data!|image file is truncated",
            r"is neither a .Dataset. directory nor a",
            r"Couldn't cast (?:array of type )?\S|\bNot an Arrow file\b|Checksum failed: .{0,200}\.mds\b",
            (
                r"\b(?:DatasetGenerationError|DatasetNotFoundError|DataFilesNotFoundError|SchemaInferenceError|"
                r"DatasetBuildError|ManualDownloadError|NonMatchingSplitsSizesError|NonMatchingChecksumError|"
                r"ExpectedMoreSplits|UnexpectedSplits\w*|DatasetGenerationCastError|"
                r"DatasetWithScriptNotSupportedError|CastError|DatasetInfosLoadError|EmptyDatasetError)\b"
            ),
            r"An error occurred while generating the dataset",
            r"Couldn't find (?:a )?dataset",
            r"Couldn't find file at .{0,80}/datasets/",
            r"Couldn't reach .{0,120}\bdataset",
            r"doesn't exist on the Hub or cannot be accessed",
            r"Dataset scripts are no longer supported",
            (
                r"(?i:(?:fail(?:ed|ure)?|error|unable|cannot|could not) (?:to |in |while |when )?(?:load|build|"
                r"generat|prepar|pars)\w* (?:the )?(?:[\w./'-]+ )?data ?set\b)"
            ),
            r"Parquet magic bytes not found|Invalid flatbuffers message|ArrowInvalid: JSON parse error",
            r"Unknown split|Error tokenizing data",
            r"Found (?:0|no) (?:valid )?(?:files?|images?|samples?) (?:in|for)\b",
            r"BuilderConfig .{0,60} not found",
            r"No \(supported\) data files",
            r"Unable to find .{0,80} in dataset",
            r"Column .{0,40} not in the dataset",
            r"index file .{0,60}doesn't match",
            r"IndexedDataset",
            r"index map.{0,40}fail",
        ),
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        unless=r"\bWARNING\b|Found (?:0|no) .{0,120}\b(?:skip\w*|instead|will|continu\w*|download\w*)\b",
    ),
    symptom(
        "grad-norm-nan",
        "LossNaNOrSpike",
        45,
        r"(?i:grad(?:ient)?[_ ]norm['\"]? *[:=] *(?:nan|inf)\b)",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}",
    ),
    cause(
        "loss-nan",
        "LossNaNOrSpike",
        76,
        (
            r"gradients .{0,80}is non-finite, so it cannot be clipped",
            r"found (?:nan|inf)\w* in (?:local |the )?(?:forward|backward)",
            r"\bloss .{0,40}is (?:nan|inf)\b",
            r"(?:nan|inf) (?:loss|grad\w*)\b.{0,30}(?:abort|stop|exit|terminat)",
            r"loss (?:is|was) (?:exploding|not decreasing and exceeds)",
            r"(?:nan|inf)(?:s)? in (?:the )?(?:loss|gradients?|parameters?|weights|logits|activations)",
            r"non-?finite (?:values?|params?|weights|logits)",
            r"\bloss (?:is|was|became|becomes|turned|=|:) ?(?:tensor\()?(?:nan|-?inf(?:inity|inite)?)\b",
            r"\bloss (?:at|on|in|of|for) \w+ [0-9]+ ?[:=] ?(?:nan|inf)\b",
            r"found (?:nan|inf)\w* in (?:local )?(?:grad|loss|the loss|gradient)",
            r"\b(?:nan|inf)\b (?:grad(?:ient)?s?|(?:lm )?loss)(?:[ _]norm)?\b.{0,20}\b(?:occur|found|detect|seen)",
            r"\bloss tensor\((?:nan|-?inf)\b|\b(?:cost|perplexity|ppl) ?[=:] ?nan\b|\bdetected inf/nan\b",
            r"nan (?:or inf )?(?:loss|detected|encountered|found)",
            r"(?:nan|inf)(?:/nan|/inf)? (?:loss|values?) (?:detected|encountered|found)",
            r"non-?finite (?:loss|grad)",
            r"loss is (?:not finite|non-?finite|infinite|diverg)",
            r"Loss scale already at minimum",
            r"(?:minimum|lowest) loss scale",
            r"loss scale (?:has )?reached.{0,20}(?:minimum|min)",
            r"loss (?:diverged|exploded|spike (?:detected|did not))",
            r"loss spike",
            r"unexpected result .{0,40}(?:nan|inf|spiky)",
            r"""['\"]?(?:lm[ _])?(?:train[_ ]|total[_ ])?loss(?:_\w+)?['\"]?[ =:]{1,8}['\"]?(?:nan|-?inf)\b""",
            r"number of nan iterations: +[1-9]",
            r"got nan",
            r"contains? (?:nan|inf)\b",
            r"gradient overflow.{0,60}(?:abort|stop|exit)",
            r"FloatingPointError: (?:Minimum loss|Loss)",
            r"returned (?:nan|inf)\b.{0,30}(?:output|values|in its)",
            r"probability tensor contains",
            r"AnomalyMode.{0,60}nan",
            r"training (?:has )?diverged",
        ),
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
        caseless=True,
        unless=(
            r"(?i)loss[_ ]scal\w*[ =:]+(?:nan|inf)|check[_ ]for[_ ]nan|\bskip(?:s|ping|ped)?\b.{0,60}(?:nan|inf)\b|"
            r"--check|check_nan|nan[_ ]check|\bnan: false|reducing to|dropping|found in input tensor|"
            r"\b(?:eval\w*|valid\w*|test)\b.{0,40}\b(?:perplexity|ppl)\b|"
            r"(?:score|f1|metric|pitch)\w* (?:contains?|is)\b|\bin (?:f1|pitch|metric|\w*score)\b|sanitized"
        ),
    ),
    cause(
        "loss-scale-floor",
        "LossNaNOrSpike",
        77,
        (
            r"Attempted loss scale: (?:0?\.[0-9]+|1(?:\.0+)?|0|[0-9.]+e-[0-9]+), reducing to",
            r"loss scale .{0,40}below .{0,20}threshold",
        ),
        "[deepspeed] OVERFLOW! Rank 3 Skipping step. Attempted loss scale: 1.0, reducing to 1.0",
        traits=(SignatureTrait.NO_TRAINING,),
    ),
    cause(
        "device-assert",
        "RuntimeError",
        81,
        (
            r"device-side assert",
            r"Assertion `.{1,200}` failed\.?",
            r"cudaErrorAssert",
            r"index out of bounds: 0 <= ",
            r"IndexKernel\.cu.{0,120}Assert",
            r"Loss\.cu.{0,120}[Aa]ssert",
        ),
        "[rank0]: torch.AcceleratorError: CUDA error: device-side assert triggered",
        unless=r"Compile with|TORCH_USE_CUDA_DSA",
    ),
    cause(
        "nccl-usage",
        "RuntimeError",
        79,
        (
            r"Duplicate GPU detected",
            r"mismatch(?:ed)? collective",
            r"Detected mismatch between collectives",
            r"NCCL WARN .{0,80}(?:Invalid config|invalid argument)",
            r"Tensors must be (?:CUDA|contiguous)",
            r"Expected all tensors to be on the same device",
        ),
        "[rank0]: Duplicate GPU detected : rank 2 and rank 3 both on CUDA device 3b000",
        unless=r"(?i)cuda failure",
    ),
    cause(
        "nccl-refused",
        "RuntimeError",
        68,
        (
            r"ncclInvalidUsage",
            r"ncclInvalidArgument",
            r"NCCL .{0,60}invalid (?:usage|argument)|NCCL error in: \S{1,200} invalid (?:usage|argument)",
        ),
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:77, invalid usage, NCCL version 2.21.5",
    ),
    cause(
        "shared-library",
        "ImportError",
        60,
        (
            r"error while loading shared libraries",
            r"No matching distribution found for|Could not find a version that satisfies the requirement",
            r"ResolutionImpossible|PackagesNotFoundError|Error while finding module specification for",
            r"(?:version `?(?:GLIBC|GLIBCXX|CXXABI)_[0-9.]+'? not found)",
        ),
        "python: error while loading shared libraries: libfoo.so.2: cannot open shared object file: No such file",
    ),
    cause(
        "shared-object",
        "ImportError",
        48,
        r"\.so(?:\.[0-9]+)*: cannot open shared object file",
        "tern-cli: cannot load plugin: libtern_fast.so.4: cannot open shared object file: No such file or directory",
        unless=r"(?i)mca_base|\bwarn|\binfo\b|\bdebug\b|optional|plugin load|dlerror|(?:NET|TUNER|PROFILER)/",
    ),
    symptom(
        "nccl-internal",
        "RuntimeError",
        42,
        (
            r"ncclInternalError",
            r"NCCL (?:.{0,60}|error in: \S{1,200} )internal error - please report",
            r"Test NCCL failure .{0,60}'internal error",
        ),
        "ncclInternalError: Internal check failed.",
    ),
    cause(
        "internal-assert",
        "RuntimeError",
        46,
        r"\bINTERNAL ASSERT FAILED at\b",
        'watchdog thread ended: seq == 3 INTERNAL ASSERT FAILED at "TraceUtils.h":99, please report it',
    ),
    cause(  # modules whose exception is just called `error`
        "library-error",
        "RuntimeError",
        41,
        (
            r"\b(?:struct|re|copy|locale|select|getopt|binascii|audioop|cv2|dbm|curses|termios)\.error: ",
            r"^panic: |\bpanicked at ",
        ),
        "struct.error: unpack requires a buffer of 8 bytes",
    ),
    symptom(
        "segfault",
        "RuntimeError",
        26,
        (
            r"Segmentation fault",
            r"\bSIGSEGV\b",
            r"(?i:segfault at|\bexitcode *: *-(?:4|6|8|11)\b|\(signal: (?:4|6|8|11)\))",
            r"(?:return|exit) code[ =:]{1,4}(?:-11|-4|-6|-8|132|134|136|139)\b",
            r"(?i:\bexit(?:ed)?(?: with)?(?: exit)? ?(?:code|status)?(?: code)?:? *(?:132|134|136|139)\b)",
            r"(?i:\b(?:killed|terminated|died|ended|exited)(?: by| with| on| from| due to)? signal:? ?(?:4|8|11)\b)",
            r"^=? *EXIT CODE: (?:4|8|11)\b|EXIT STRING: (?:Segm|Floating|Illegal)",
            r"Aborted +\(core dumped\)",
            r"(?:Floating point exception|Illegal instruction)(?: +\(core dumped\)|[ \t\r]*$| \([48]\)$)",
            r"SIGABRT|\bSIGFPE\b|\bSIGILL\b",
            r"terminate called after throwing an instance of",
            r"Fatal Python error",
        ),
        "Fatal Python error: Segmentation fault",
        unless=r"Fatal Python error: (?:Aborted|Init)",
    ),
    cause(
        "bad-arguments",
        "ArgumentError",
        84,
        (
            (
                r"(?:sbatch|srun|salloc): (?:error|fatal): (?:Invalid|"
                r"invalid|unrecognized|(?:Batch job submission failed|Unable to allocate resources|"
                r"Unable to create step for job [0-9.]+): "
                r"(?:Invalid|Requested|"
                r"More processors|Node count|User.s group|Access|Job violates))"
            ),
            r"Got unexpected extra arguments?",
            r"error: Missing argument|error: No such option",
            r"Missing key .{0,40}in config override",
            r"Key '\S+' is not in struct.{0,60}override",
            (
                r"error: (?:unrecognized arguments|the following arguments are required|argument \S+: |"
                r"ambiguous option|invalid choice|one of the arguments|too few arguments|unrecognized option)"
            ),
            r"argparse\.ArgumentError|error: Parser key \"|Could not consume arg: ",
            r"The function received no value for the required argument|\bCannot find key: |invalid reference format",
            r"\bIn '[^']{1,80}': Could not find '",
            (  # the wording of click; a ValueError may begin with the same words
                r"(?:^|^Error: |\WError: |\w(?:Parameter|Option|Usage|Argument): |\.py: |\]: )(?:No such option|"
                r"Missing option\b|Missing argument|Invalid value for|Got unexpected extra argument)"
            ),
            r"Could not override",
            r"unrecognized option '",
            r"unknown option:? ['-]",
            r"invalid option -- ",
            r"Some specified arguments are not used by the HfArgumentParser",
            r"Unused \w+ arguments",
            (
                r"(?i:flags parsing error|unknown command line flag|unknown (?:argument|flag|"
                r"""parameter)s?:? ['\"-])"""
            ),
            r"UsageError",
            r"UnrecognizedFlagError",
            r"IllegalFlagValueError",
        ),
        "pretrain.py: error: unrecognized arguments: --lr-warmup-stepz 100",
        unless=r"Requested nodes are busy",  # srun asks again
    ),
    cause(
        "import-told",
        "ImportError",
        57,
        (
            r"Failed to import \S+ because of the following error",
            r"Tried to instantiate class '\S+', but it does not exist",  # the extension that has it was not loaded
            r"No module named '?[\w.]+'?[ \t\r]*$",
            r"undefined symbol: _Z",
            r"ContextualVersionConflict|DistributionNotFound|PackageNotFoundError",
            r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\w.]+' not found",
        ),
        "RuntimeError: Failed to import tern.models because of the following error (look up to see its traceback):",
    ),
    cause(
        "build-failed",
        "CalledProcessError",
        62,
        (
            r"CalledProcessError: Command '\['(?:ninja|nvcc|gcc|g\+\+|make|cmake|which|git|where|pip|apt)",
            (
                r"CalledProcessError: Command '(?:\[)?'?(?:/\S+/)?(?:ninja|nvcc|gcc|cc|g\+\+|make|cmake|which|git|"
                r"pip)\b"
            ),
            r"CalledProcessError: Command '\['/\S+/(?:gcc|cc|nvcc|ninja)'",
        ),
        "subprocess.CalledProcessError: Command '['make', '-j8', 'helpers']' returned non-zero exit status 2.",
    ),
    cause(
        "compiler",
        "CalledProcessError",
        55,
        (
            r"\b(?:nvcc|ptxas|cicc|fatbinary|nvlink|hipcc)\b.{0,200}\b(?:fatal|error) *: ",
            r"(?:^|[ /])(?:cc1plus|collect2|clang(?:\+\+)?|gcc|g\+\+|cc|c\+\+|rustc|x86_64-\S+-g(?:cc|\+\+))"
            r"(?:-[0-9.]+)?: (?:fatal )?error: ",
            r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp)(?::[0-9]+|\([0-9]+\))(?::[0-9]+)?: (?:fatal |catastrophic )?error:? ",
            r"(?:^|/)ld(?:\.\w+)?: (?:cannot find|.{0,200}undefined reference|fatal)",
            r"error: command '\S+' failed with exit|\bCMake Error\b",
            r"Failed building wheel for|Could not build wheels for|Failed to build installable wheels|"
            r"subprocess-exited-with-error",
        ),
        'tern_ops.cu(88): error: identifier "half8" is undefined',
        unless=r"(?i)\bwarn|Killed signal|OpenCV\(",
    ),
    symptom(  # the last line of a failed build; the reason is above it, if it was stored
        "build-stopped",
        "CalledProcessError",
        30,
        r"\bninja: build stopped",
        "ninja: build stopped: subcommand failed.",
    ),
    symptom(
        "engine-dead",
        "",
        22,
        (
            r"EngineDeadError",
            r"EngineCore (?:encountered|failed|died)",
            r"Engine core (?:initialization failed|proc.{0,20}died)",
            r"RayActorError",
            r"ActorDiedError",
            r"RayTaskError",
            r"WorkerCrashedError",
            r"ActorUnavailableError",
            r"BrokenProcessPool",
            r"ProcessExitedException",
            r"ProcessRaisedException",
            r"worker .{0,30}died unexpectedly",
            r"AsyncEngineDeadError",
            r"[Ww]orker (?:unexpectedly )?exits with a connection error code",
            r"WorkerProc initialization failed",
            r"Horovod has been shut down",
            r"[Ss]ee (?:the )?(?:root cause|stack trace) (?:above|for (?:the )?root cause)",
        ),
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    ),
    cause(
        "attribute-module",
        "AttributeError",
        58,
        r"AttributeError: (?:module|partially initialized module|type object|'\w+' object) ",
        "AttributeError: 'TernConfig' object has no attribute 'rope_theta'",
        unless=r"Can't get attribute.*Exception ignored",
    ),
    cause(
        "shell-syntax",
        "SyntaxError",
        72,
        (
            r"syntax error near unexpected token",
            r"syntax error: unexpected end of file",
            r"unexpected EOF while looking for matching",
            r"Syntax error: .{0,40}unexpected",
            r"\[: (?:missing `\]'|too many arguments)",
        ),
        "start.sh: line 4: syntax error near unexpected token `done'",
    ),
    cause(
        "shell-name",
        "NameError",
        72,
        r": (?:unbound variable|parameter not set)$",
        "start.sh: line 5: MASTER_ADDR: unbound variable",
    ),
)
