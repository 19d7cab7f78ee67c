"""Failures of object stores and file systems, full disks and damaged checkpoints. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause
from ..values import Blame, SignatureTrait

ROWS: tuple[Signature, ...] = (
    cause(
        "object-store",
        "S3StorageError",
        80,
        (
            (
                r"HdfsError|HDFS .{0,60}(?:fail|error)|Could not obtain block|"
                r"BlockMissingException|org\.apache\.hadoop\.\S*(?:Exception|Error)"
            ),
            r"hdfsOpenFile|hdfsExists|hdfsConnect|Could not append to the internal temporary file",
            r"(?:resuming|starting|finishing|during) (?:up|down)load \w{2,6}://",
            r"NoCredentialProviders",
            r"SignatureDoesNotMatch|InvalidAccessKeyId|RequestTimeTooSkewed|ExpiredToken\b",
            r"BlobNotFound|ContainerNotFound|ServerBusy",
            r"juicefs.{0,80}(?:error|fail|timeout)",
            r"alluxio.{0,80}(?:error|exception|fail)",
            r"rclone: .{0,40}ERROR|s5cmd.{0,60}ERROR|ERROR .cp s3:",
            r"\bbotocore\.(?:exceptions|errorfactory)\b",
            r"\bboto3\.exceptions\b",
            r"An error occurred \([\w.]+\) when calling the \w+ operation",
            r"EndpointConnectionError",
            r"NoCredentialsError",
            r"S3UploadFailedError",
            r"\b(?:S3|Minio|Oss|OSS|COS|GCS|Gcs|Blob)(?:[A-Za-z_]\w*)?(?:Error|Exception)\b",
            r"AWS Error",
            r"aws-c-s3",
            r"AWS_ERROR_",
            r"S3FileSystem",
            r"platform/s3/\w+\.cc|Error executing an HTTP request: HTTP response",
            (
                r"(?i:\bs3\b.{0,60}(?:fail(?:ed|ure)?\b|error\b|timed? ?out|refused|denied|unavailable|"
                r"slow ?down)|\b(?:fail(?:ed|ure)?|error|unable|timed? ?out|denied|cannot|could not).{0,80}\bs3://|"
                r"\b(?:fail(?:ed|ure)?|error|unable|timed? ?out|cannot|could not).{0,80}(?:\bgs://|\boss://|"
                r"\bcos://)|(?:gs|oss|cos|s3)://\S{1,200} .{0,40}(?:fail(?:ed)?|error|timed? ?out)\b)"
            ),
            r"google\.api_core\.exceptions",
            r"google\.cloud\.storage",
            r"google\.resumable_media",
            r"gcsfs\.\S{0,30}(?:Error|Exception)",
            r"azure\.core\.exceptions",
            r"azure\.storage",
            r"(?:oss2|tos)\.exceptions|\bstorage\.objects\.\w+ access|CommandException: .{0,40}\b(?:object|bucket)",
            r"qcloud_cos",
            r"petrel_client",
            r"<Code>(?:SlowDown|NoSuchKey|AccessDenied|InternalError|NoSuchBucket|RequestTimeout)",
            r"s3\.[\w.-]*amazonaws\.com.{0,120}(?:fail|error|timed? ?out|refused|exceeded)",
            r"storage\.googleapis\.com.{0,120}(?:fail|error|timed? ?out|refused|exceeded)",
            r"blob\.core\.windows\.net.{0,120}(?:fail|error|timed? ?out|refused|exceeded)",
            (
                r"(?i:fail(?:ed|ure)? (?:to|in) (?:up|down)load(?:ing)? .{0,300}(?:bucket|object stor|blob\b|"
                r"\bs3\b)|\baws s3 (?:cp|sync|mv|ls|rm)\b.{0,300}(?:exit (?:code |status )?[1-9]|fail|error|"
                r"timed out)|(?:exit|error|fail).{0,80}\baws s3 (?:cp|sync|mv)\b|upload failed: .{0,200} to s3|"
                r"download failed: s3)"
            ),
            r"ceph.{0,40}rados.{0,40}error",
            r"s3fs\.\w*(?:Error|errors)",
            r"NoSuchBucket",
            r"NoSuchKey",
            r"SlowDown\b|\b503:? Slow Down",
            r"Please reduce your request rate",
            r"Unable to locate credentials",
            r"x-(?:oss|amz|goog|ms|cos)-request-id|x-amz-content-sha256|XAmz\w+",
            (
                r"\b(?:gsutil|gcloud[ .]storage|ossutil\w*|s3cmd|s5cmd|azcopy|obsutil|coscli)\b.{0,300}"
                r"(?:exit (?:code |status )?[1-9]|[Ff]ail|[Ee]rror|timed out)"
            ),
            r"google\.auth\.exceptions",
            r"FSTimeoutError",
        ),
        (
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation "
            "(reached max retries: 4)"
        ),
        blame=Blame.STORAGE,
    ),
    cause(
        "disk-full",
        "DiskFull",
        92,
        (
            r"No space left on device",
            r"\bENOSPC\b",
            r"Disk quota exceeded",
            r"\bEDQUOT\b",
            r"Errno 28\b",
            r"Errno 122\b",
            r"disk (?:is )?full\b",
            r"not enough (?:free )?(?:disk )?space (?:left|on|in|for|to)\b|not enough (?:free )?disk space",
            r"insufficient disk space",
            r"out of disk space",
            r"DiskPressure",
            r"There is not enough space on the disk",
            r"file system full",
        ),
        "OSError: [Errno 28] No space left on device: '/scratch/run9/step_400.pt'",
        caseless=True,
        blame=Blame.STORAGE,
        unless=r"\bEvicted\b",
    ),
    cause(
        "write-failed",
        "DiskFull",
        70,
        (
            r"PytorchStreamWriter failed writing",
            r"\bwrite error: wrote [0-9]+ blocks instead of [0-9]+",
            r"unexpected pos [0-9]+ vs [0-9]+",
            r"enforce fail at inline_container\.cc.{0,80}(?:unexpected pos|fwrite|write)",
            r"write\(\): fd [0-9]+ failed",
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file "
            "data/12: file write failed"
        ),
        blame=Blame.STORAGE,
    ),
    cause(
        "shm-short",
        "DiskFull",
        84,
        (
            r"/dev/shm\b.{0,100}(?:No space|full|too small|insufficient|not enough)",
            r"insufficient shared memory",
            r"out of shared memory",
            r"unable to write to file </torch_",
            r"Error while creating shared memory segment",
            r"failed to extend /dev/shm",
            r"shared memory segment.{0,60}(?:fail|exceed|error)",
        ),
        ("heron-1:40:66 [2] misc/shmutils.cc:140 NCCL WARN Error: failed to extend /dev/shm/nccl-q1 to 33030528 bytes"),
        caseless=True,
        blame=Blame.NODE,
        unless=r"DataLoader worker|bus error encountered in worker|Permission denied",
    ),
    cause(
        "checkpoint-torn",
        "CheckpointCorrupt",
        87,
        (
            r"file not found: archive/data\.pkl",
            r"file in archive|filename 'storages' not found",
            r"BadGzipFile|CRC check failed|CRC32? mismatch|\bzlib\.error: ",
            r"Invalid magic number; corrupt file",
            r"[Uu]nable to load weights from pytorch checkpoint file",
            r"zarr\.errors\.\w+|missing chunk",
            r"not an sstable|bad magic number",
            r"shard .{0,60}(?:size|checksum) (?:mismatch|does not match)",
            r"Invalid (?:HDF5|safetensors) (?:file|header)",
            r"PytorchStreamReader failed",
            r"failed finding central directory",
            r"invalid header or archive is corrupted",
            r"SafetensorError",
            r"HeaderTooLarge",
            r"InvalidHeaderDeserialization",
            r"MetadataIncompleteBuffer",
            r"Error while deserializing header",
            r"incomplete metadata, file not fully covered",
            r"UnpicklingError",
            r"pickle data was truncated",
            r"BadZipFile",
            r"Bad CRC-32",
            r"unexpected EOF, expected [0-9]+ more bytes",
            r"unexpected EOF",
            r"storage has wrong (?:byte )?size",
            r"invalid magic number; corrupt file",
            (
                r"(?i:(?:corrupt(?:ed)?|truncated|damaged|incomplete) (?:checkpoint|safetensors|weights|"
                r"model file|archive)|\binvalid (?:checkpoint (?:file|data|header)|safetensors|model file|archive)|"
                r"checkpoint.{0,60}(?:is|are|was|appears|seems|may be|to be|looks) (?:corrupt|"
                r"truncated|incomplete|damaged|broken)|unable to load checkpoint.{0,80}corrupt|checksum mismatch|"
                r"not a ZIP archive|file in archive is not in a subdirectory)"
            ),
            r"EOFError: Ran out of input",
            r"Unable to (?:synchronously )?open file \(?(?:truncated|file signature|bad)",
        ),
        "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header or archive is corrupted",
        blame=Blame.STORAGE,
        unless=r"EOF while (?:looking|parsing|scanning)",
        traits=(SignatureTrait.TRUNCATED_DATA,),
    ),
    cause(
        "no-such-file",
        "FileNotFoundError",
        47,
        (
            r"(?:^|: |bin/)(?:sh|bash|dash|zsh|\S{1,200}\.sh): (?:line )?[0-9]+: \S+: (?:command )?not found",
            r"Could not find conda environment|could not open image\b",
            r"executable file not found in \$PATH",
            (
                r"(?:[Cc]ould not|[Cc]annot|[Ff]ailed to|[Uu]nable to) (?:find|open|"
                r"locate|stat) (?:the )?(?:[\w-]+ ){0,2}(?:file|path|directory|folder)\b"
            ),
            r"\bENOENT\b",
            r"[Nn]o such file or directory",  # Go and Rust print it in lower case
            (
                r"(?i:: command not found|(?:path|file|directory) .{0,120}(?:does not exist|doesn't exist|"
                r"not found)\b)"
            ),
            r"can't open file '",
            r"""\b(?:secret|configmap)s? \\?['"][\w./-]+\\?['"] not found""",  # objects that a pod mounts
        ),
        "python: can't open file '/home/run9/pretrian.py': [Errno 2] No such file or directory",
        unless=(
            r"(?i)\bwarn(?!ing {2,}\w+ {2,})|\binfo\b|\bdebug\b|"
            r"config file not found|optional|going to /tmp|\(ignored\)|mca_base|creating|will be created|"
            r"using default"
        ),
    ),
    cause(
        "pod-mount",
        "OSError",
        56,
        (
            r"(?:Mount|Attach|Unmount)Volume\.\w+ failed for volume",
            r"Unable to attach or mount volumes",
        ),
        'Warning  FailedMount  pod/tern-7b-0  MountVolume.SetUp failed for volume "scratch" : mount failed',
        blame=Blame.STORAGE,
        unless=r"(?:secret|configmap)s? \S+ not found",
    ),
    cause(
        "no-permission",
        "PermissionError",
        48,
        (
            r"(?i:\bPermission denied\b|Operation not permitted|Access (?:is )?denied|403 Forbidden)",
            r"\bErrno 13\b|\b(?:PERMISSION_DENIED|UNAUTHENTICATED)\b|\bcode = (?:PermissionDenied|Unauthenticated)\b",
            r"\bEACCES\b",
        ),
        "bash: /opt/run9/start.sh: Permission denied",
        unless=r"(?i)\bwarn|\binfo\b|\bdebug\b|publickey",
    ),
    cause(
        "mount-sick",
        "OSError",
        78,
        (
            r"cannot execute binary file|Exec format error",
            r"Device or resource busy|Resource (?:busy|deadlock)",
            r"\bI/O error, dev \w+",
            (
                r"nvme\w*: (?:I/O|Abort|controller is down|Device not ready)|"
                r"nvme nvme[0-9]+: .{0,60}(?:timeout|down|failed)"
            ),
            r"Buffer I/O error|ptlrpc_\w+\(\)\) @@@",
            r"beegfs.{0,60}(?:error|unreachable|timeout)",
            r"mmfs.{0,40}(?:error|unmount|stale)|GPFS.{0,60}(?:unmount|stale|error)",
            r"Remounting filesystem read-only",
            r"lustre.{0,60}(?:evicted|connection (?:to .{0,60})?was lost)",
            r"\brc = -(?:5|30|107|108|110|116)\b",
            r"wekafs.{0,60}(?:error|unreachable)",
            r"ceph: .{0,60}(?:hung|lost|blocklisted|reconnect denied)|libceph: .{0,60}(?:closed|failed)",
            r"Stale file handle",
            r"Transport endpoint is not connected",
            r"Cannot send after transport endpoint shutdown",
            r"Remote I/O error",
            r"nfs: server \S+ not responding",
            r"LustreError|LNetError|\bLustre: Evicted from|\bmount\.(?:nfs4?|lustre|ceph|beegfs): ",
            r"Read-only file system",
            r"\bErrno (?:5|30|107|108|116|121)\b",
            r"Input/output error",
            r"EXT4-fs error",
            r"XFS .{0,40}(?:corrupt|shutdown)",
            r"Structure needs cleaning",
            r"\bmd/raid.{0,20}: Disk failure on|no available path - failing I/O|Disabling device after reset failure",
            r"attempt to access beyond end of device|I/O error while writing superblock",
            r"file-max limit [0-9]+ reached|FilesystemIsReadOnly|Lock reclaim failed",
            r"\bmmfsd?(?:64)?: \[[EX]\]",
        ),
        "cp: cannot stat: Stale file handle: '/home/run9/tokens_3.bin'",
        caseless=True,
        blame=Blame.STORAGE,
        unless=r"write\(\): fd",
    ),
)
