"""Network, sockets, rendezvous and collectives. Most are symptoms: the log of the lost peer has the cause. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause, symptom
from ..values import Blame, SignatureTrait

# The library warned and used an alternative
FALLBACK_WORDS = r"(?i)ignor|instead(?! of)|default|disabl|fall|retry|using|optional|real path"

ROWS: tuple[Signature, ...] = (
    cause(
        "ib-async-event",
        "NetworkError",
        87,
        (
            r"mlx5_\w+:[0-9] Got .{0,20}async event",
            r"NET/IB ?: .{0,60}(?:[Aa]sync (?:fatal )?event|port error)",
            r"IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL|QP_FATAL)",
            r"(?i:local catastrophic error|\bGID table changed)",
        ),
        "heron-2:81:95 [3] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
        blame=Blame.NETWORK,
        unless=r"(?i)GID table changed",
    ),
    cause(
        "ib-completion",
        "NetworkError",
        85,
        (
            r"Completion with error at (?:client|server)|Got CQE with error",
            r"NET/OFI .{0,60}(?:completed with error|failed)",
            r"ib_mlx5_log\.c:[0-9]+ .{0,60}(?:operation on|exceeded on|error on)",
            r"Failed status (?:[5-9]|1[0-9]): wr_id",
            r"Endpoint timeout|UCX send failed|ucp_\w+.{0,40}(?:unreachable|fail)",
            r"NET/IB ?: .{0,60}(?:Got completion|unable to|fail)",
            r"completion (?:from peer .{0,60})?with (?:status|error)[ =]?(?:[1-9]|\w+ err)",
            r"IBV_WC_(?:RETRY_EXC|RNR_RETRY|REM_|LOC_|WR_FLUSH)",
            r"\bhfi1?_userinit\b|transport retry count(?:er)? exceeded|_completion_with_err\b",
            r"\bibv_\w{2,30}.{0,30}\bfailed",
            r"\bUCC error: Network",
            r"vendor err(?:or)? [0-9]+",
            (
                r"(?:could not|failed to|unable to|cannot) (?:create|modify) "
                r"(?:a |an |loopback |extended )*(?:queue pair|QP)\b"
            ),
            r"gloo/transport/ibverbs/\w{1,40}\.cc:[0-9]+\]",
        ),
        (
            "heron-2:81:95 [3] transport/net_ib.cc:1301 NCCL WARN NET/IB : Got completion from peer 10.9.0.4 "
            "with status=12 opcode=1 len=0 vendor err 129"
        ),
        caseless=True,
        blame=Blame.NETWORK,
        # Optional features that the library tried and continued without
        unless=r"UCX +WARN|NCCL INFO (?!.*(?:[Gg]ot completion|permanently failed))",
    ),
    cause(
        "nic-down",
        "NetworkError",
        82,
        (
            r"NETDEV WATCHDOG:",
            r"Cable error|port module event.{0,60}(?:unplugged|error)",
            r"link status (?:definitely )?down",
            r"NIC Link is Down|\bhfi1_[0-9]+: Link down",
            (
                r"\b(?:mlx[45]_core|bnxt_en|ib[0-9]+|enp\w+|eth[0-9]+|bond[0-9]+|roce\w*|"
                r"irdma)\b.{0,80}(?:link (?:is )?down|port (?:is )?down|health compromised|device's health|"
                r"NETDEV WATCHDOG|tx timeout|firmware (?:fatal|internal) error|lost carrier|not ready)"
            ),
            r"port_state.{0,20}down",
            r"link_state.{0,10}down",
            r"\bphys(?:ical)?[_ ]state[ \t:]{1,8}(?:[0-9]: )?(?:disabled|polling|linkerror\w*|sleep)",
            r"^[ \t]*state:[ \t]*1: down\b",
            r"NIC .{0,30}(?:down|flap|reset)",
            r"InfiniBand.{0,60}(?:down|failed|error)",
            r"\bib[0-9]+: transmit timeout|\bRDMA_CM_EVENT_(?:UNREACHABLE|\w+_ERROR|DEVICE_REMOVAL)",
        ),
        "kernel: mlx5_core 0000:3b:00.0 ib2: Link down",
        caseless=True,
        blame=Blame.NETWORK,
    ),
    cause(
        "no-fabric",
        "NetworkError",
        76,
        (
            r"can't open UMAD port|Couldn't find any optimal provider|\bOFI NCCL failure",
            r"(?:PFC|pause) (?:storm|watchdog)",
            r"ibpanic|ibwarn: .{0,80}(?:fail|error)",
            r"SM lost|SM is down",
            r"no socket interface found",
            r"no (?:IB|RDMA|EFA|usable|InfiniBand) (?:device|interface|HCA)s? (?:found|available)",
            r"network .{0,20} not found\b",
            r"Failed to initialize any NET plugin|\bPML (?:ucx|cm|yalla) cannot be selected",
            r"Error: network \w+ not found",
            r"no usable interface",
            r"fi_(?:getinfo|endpoint|av_insert|domain|fabric)\b.{0,60}(?:fail|error)",
            r"\bOFI\b.{0,80}(?:fail|error|unable)|NCCL WARN NET/OFI .{0,40}(?:could not|couldn't|cannot)",
            r"\bEFA\b.{0,80}(?:fail|error|unable|down)",
            r"libfabric.{0,40}(?:fail|error)",
            r"UCX +(?:ERROR|FATAL)",
            r"unable to (?:find|resolve|detect) .{0,40}(?:network )?interface",
            r"Unable to find address for",
            r"Could not find a suitable (?:NIC|interface)",
            r"open_hca",
            r"openib.{0,60}(?:error|fail)",
        ),
        "heron-5:20:20 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        caseless=True,
        blame=Blame.NETWORK,
        unless=r"(?i)No plugin found|using internal|falling back|gloo/transport/tcp|relevant network interfaces|"
        r"<(?:warn|info)>",
    ),
    cause(
        "gdr-registration",
        "NetworkError",
        68,
        (
            r"Call to ibv_\w+ failed",
            r"initializing an OpenFabrics device",
            r"NET/\w+ ?: .{0,60}(?:errno|failed)",
            r"nv_peer_mem.{0,40}(?:fail|error)",
            r"GPU ?Direct RDMA.{0,40}(?:fail|error)",
            r"AF_INET6? .{0,20}no route",
            r"Network is unreachable",
            r"No route to host",
            r"Network is down",
            r"ENETUNREACH",
            r"EHOSTUNREACH",
        ),
        "heron-5:20:61 [1] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_reg_mr failed",
        caseless=True,
        blame=Blame.NETWORK,
        unless=(
            r"(?i)NCCL INFO|huggingface|https?://|NET/IB : No device found|libibverbs\.so|urllib3|"
            r"requests\.|httpx|aiohttp|"
            r"\burlopen\b|\bssh\b|\[c10d\]|gloo|\[errno (?:100|101|113)\]"  # as Python says it of its own sockets
        ),
    ),
    symptom(
        "nccl-system-error",
        "NetworkError",
        50,
        (
            r"ncclSystemError",
            r"unhandled system error",
        ),
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        blame=Blame.NETWORK,
    ),
    symptom(
        "nccl-connect",
        "NetworkError",
        66,
        (
            r"NCCL WARN .{0,60}(?:[Cc]onnect to \S+ .{0,20}failed|Call to connect|connect(?:ion)? (?:failed|"
            r"timed out|refused))"
        ),
        (
            "heron-2:81:95 [3] misc/socket.cc:510 NCCL WARN socketPollConnect: Connect to 10.9.0.4<41000> failed "
            ": No route"
        ),
        blame=Blame.NETWORK,
    ),
    symptom(
        "nccl-remote",
        "NCCLRemoteError",
        60,
        (
            r"ncclRemoteError",
            r"\bremote process exited\b",
            r"NCCL WARN .{0,80}(?:Connection closed by remote peer|Connection reset by peer|Call to recv from)",
            r"[Cc]onnection closed by remote peer",
            r"received errors while waiting for send/recv from rank",
            r"Please check rank [0-9]+ logs for faulty rank",
            r"Connection closed by peer.{0,80}rank",
            r"peer (?:rank|process) .{0,30}(?:exited|died|is gone)",
        ),
        ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting early."),
        blame=Blame.NETWORK,
    ),
    symptom(
        "nccl-socket",
        "NCCLRemoteError",
        54,
        (
            r"NCCL WARN .{0,60}[Tt]imeout waiting for connection",
            r"[Ss]ocket (?:recv|send) failed\b",
            r"NCCL WARN .{0,60}[Cc]onnect\w*(?: to \S+)? returned .{0,60}exceeded error retry",
            r"NCCL WARN .{0,60}Failed to execute operation \w+ from rank",
        ),
        "heron-5:20:61 [1] proxy.cc:1201 NCCL WARN [Service thread] Socket recv failed while polling for opId=0x7a",
        blame=Blame.NETWORK,
    ),
    # The part of the library that warned, for the hundreds of warnings without a row of their own
    symptom(
        "nccl-part-fabric",
        "NetworkError",
        34,
        (
            r"(?:socket|net_\w+|net|ibvwrap|linux|ras)\.(?:cc|h):[0-9]+ NCCL WARN .{0,120}"
            r"(?:[Ff]ail|[Ee]rror|[Ee]xceeded|[Tt]imed? ?out|[Uu]nexpected|[Nn]o (?:valid|usable|device)|[Cc]annot|"
            r"[Cc]ould not|not ready)"
        ),
        "heron-2:81:95 [3] misc/socket.cc:510 NCCL WARN Net : error encountered when getting address info : x",
        blame=Blame.NETWORK,
        unless=FALLBACK_WORDS,
    ),
    symptom(
        "nccl-part-device",
        "CUDAError",
        34,
        r"(?:cudawrap|nvmlwrap)\.(?:cc|h):[0-9]+ NCCL WARN .{0,120}(?:[Ff]ailed|Minimum requirement|not found)",
        "heron-2:81:95 [3] misc/nvmlwrap.cc:120 NCCL WARN nvmlDeviceGetHandleByIndex(3) failed: Unknown Error",
        blame=Blame.GPU,
        unless=FALLBACK_WORDS,
    ),
    symptom(
        "nccl-part-call",
        "RuntimeError",
        34,
        (
            r"\b(?:init|enqueue|argcheck|group|transport|channel|bootstrap|proxy|register|p2p|connect|search|topo|"
            r"paths|rings|xml)\.(?:cc|h):[0-9]+ NCCL WARN .{0,120}(?:[Ee]rror|[Ff]ail|[Ii]nvalid|[Mm]ismatch|"
            r"out of (?:bounds|range)|[Tt]oo (?:many|old|long)|[Cc]ould not|[Cc]ouldn't|"
            r"not (?:found|allowed|match|supported)|[Uu]nknown|"
            r"[Uu]nexpected|truncated|[Nn]o transport|already checked in)"
        ),
        "heron-2:81:95 [3] bootstrap.cc:130 NCCL WARN Message truncated : received 16 bytes instead of 8",
        unless=FALLBACK_WORDS,
    ),
    symptom(  # the stack of a failed call inside the library: file:line -> result code
        "nccl-code-cuda",
        "CUDAError",
        44,
        r"NCCL INFO \S+\.(?:cc|cu|h):[0-9]+ -> 1\b",
        "heron-5:20:61 [1] NCCL INFO init.cc:1402 -> 1",
        blame=Blame.GPU,
    ),
    symptom(
        "nccl-code-system",
        "NetworkError",
        44,
        r"NCCL INFO \S+\.(?:cc|cu|h):[0-9]+ -> 2\b",
        "heron-5:20:61 [1] NCCL INFO bootstrap.cc:211 -> 2",
        blame=Blame.NETWORK,
    ),
    symptom(
        "nccl-code-refused",
        "RuntimeError",
        44,
        r"NCCL INFO \S+\.(?:cc|cu|h):[0-9]+ -> [345]\b",
        "heron-5:20:61 [1] NCCL INFO graph/search.cc:610 -> 3",
    ),
    symptom(
        "nccl-code-remote",
        "NCCLRemoteError",
        45,
        r"NCCL INFO \S+\.(?:cc|cu|h):[0-9]+ -> 6\b",
        "heron-5:20:61 [1] NCCL INFO transport/net.cc:1150 -> 6",
        blame=Blame.NETWORK,
    ),
    symptom(
        "nccl-timeout",
        "NCCLTimeoutError",
        64,
        (
            r"Exception raised from checkTimeout",
            r"due to a collective timeout",
            r"Timeout at collective",
            r"Timed out waiting [0-9]+ms for (?:recv|send) operation",
            r"HCCL.{0,60}[Tt]ime ?out",
            r"\bHccl\w+ timeout",
            r"OpType=\w+.{0,300}ran for [0-9]+ milliseconds",
            r"RCCL.{0,60}timed? ?out",
            r"(?i:NCCL error.{0,40}timed? ?out)|[Cc]ollective operation timeout",
            r"[Tt]imed out (?:in monitoredBarrier|waiting for (?:all )?ranks)",
            r"Timeout at NCCL work",
            r"Watchdog caught collective operation timeout",
            r"collective operation timeout: WorkNCCL",
            r"(?i:NCCL (?:operation|collective|communicator).{0,60}timed? ?out)",
            r"WorkNCCL\(.{0,300}(?:ran for|timed out)",
            r"\bALLREDUCE\b.{0,60}timed out",
            r"Timeout\(ms\)=[0-9]+.{0,40}ran for",
            r"ncclTimeout",
            r"NCCL[ _]timeout",
            r"exceeded the timeout.{0,40}collective",
            r"monitoredBarrier.{0,80}(?:timed out|did not pass|failed to pass)",
            r"Ranks? [0-9, ]+ failed to pass monitoredBarrier",
        ),
        (
            "[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=1) ran for 1800345 milliseconds before timing out."
        ),
        unless=r"(?i)timeout (?:is |was )?set (?:to|as)|failed or timed out",
        blame=Blame.NODE,
        traits=(SignatureTrait.HEALTHY_RANKS_COMPLAIN,),
    ),
    symptom(  # the message itself names both possibilities
        "nccl-failed-or-late",
        "NCCLTimeoutError",
        42,
        (
            r"[Ss]ome NCCL operations have failed or timed out|failure detected by watchdog at work sequence",
            r"NCCL communicator was aborted on rank",
        ),
        "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out.",
        blame=Blame.NODE,
    ),
    symptom(
        "nccl-watchdog-exception",
        "",
        20,
        (
            r"watchdog thread terminated with exception",
            r"NCCL watchdog thread terminated with",
            r"taking the entire process down",
        ),
        ("[rank2]:[E ProcessGroupNCCL.cpp:916] To avoid data inconsistency, we are taking the entire process down."),
    ),
    symptom(
        "hang-heartbeat",
        "Hang",
        56,
        (
            r"(?i:\b(?:training|job|rank|collective|NCCL) (?:hang|stall)\b)",
            r"(?i:has been (?:stuck|hanging|hung|stalled) for)",
            r"(?i:\b(?:is|are|was|were) hanged\b)",
            r"(?i:\ball (?:the )?(?:workers|ranks|nodes) (?:hang(?:ed)?|hung|are stuck)\b)",
            r"(?i:\bstep [0-9]+ .{0,40}(?:stalled|stuck|has not finished))",
            (
                r"(?i:no (?:training |log |forward )?(?:progress|output|"
                r"activity)\b.{0,40}(?:in|for|within) [0-9]+ ?(?:s|sec|min|hour|h)[a-z]*\b)"
            ),
            r"(?i:considered (?:hung|stuck|dead))",
            r"(?i:hang(?:ing)? (?:job|task|rank|process)e?s? (?:detected|found|killed))",
            r"(?i:watchdog.{0,60}(?:no heartbeat|did not respond|stalled))",
            r"(?i:(?:job|run|training|process) (?:is |looks |seems |appears )(?:to be )?(?:stuck|hung|hanging))",
            r"[Nn]o (?:iteration|step|progress)\b.{0,60}(?:in|for) the last",
            r"[Hh]eartbeat monitor timed out",
            r"watchdog got stuck for",
            r"NCCL/CUDA API hang",
            r"^Timeout \([0-9]+:[0-9]{2}:[0-9]{2}",
            r"workMetaList_\.size",
            r"due to \w{0,40} ?watchdog hang",
            r"no progress for [0-9]+",
            r"\bhang detected\b",
            r"detected (?:a )?hang",
            r"stuck for more than [0-9]+",
            r"blocked for more than [0-9]+ seconds",
            r"\bsoft lockup\b",
            r"deadlock detected",
            r"appears to be (?:hung|stuck)",
            r"may hang in polling",
            r"Stalled ops|waiting for remainder of ranks|submitted to be reduced, gathered or broadcasted by subset",
        ),
        (
            "[rank5]:[F ProcessGroupNCCL.cpp:1301] [PG 0 Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 "
            "seconds without making progress"
        ),
        blame=Blame.NODE,
        unless=(
            r"(?i)avoid (?:a )?(?:hang|deadlock)|may cause|could lead|"
            r"\bno (?:hang|deadlock|stall)|\bcan cause|potentially"
        ),
    ),
    symptom(
        "store-barrier",
        "Hang",
        46,
        (
            r"Waiting in store based barrier",
            r"Timed out initializing process group in store based barrier",
        ),
        (
            "Waiting in store based barrier to initialize process group for rank: 3, key: "
            "store_based_barrier_key:1 (world_size=16, worker_count=15)"
        ),
        blame=Blame.NODE,
    ),
    symptom(  # the last line of a rank whose peers did not arrive; their arrival counts as progress in `classify`
        "peers-awaited",
        "Hang",
        30,
        r"(?i:initializing (?:ddp|distributed): GLOBAL_RANK: [0-9]+, MEMBER: [0-9]+/(?:[2-9]|[1-9][0-9])[0-9]*)",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16",
        blame=Blame.NODE,
    ),
    symptom(
        "interrupted-by-hand",
        "Hang",
        12,
        (
            r"^(?:.{0,60}\b)?KeyboardInterrupt\b",
            r"got signal: 2\b",
            r"\^CWARNING",
        ),
        "^CTraceback of worker 3: KeyboardInterrupt",
    ),
    symptom(
        "store-gone",
        "ConnectionError",
        48,
        (
            r"DistStoreError|Stop_waiting response is expected|\betcd\.Etcd\w+",
            r"DistNetworkError",
            r"TCPStore.{0,80}(?:fail|timed out|timeout|closed|reset|Broken pipe|unexpected)",
            r"client socket has (?:failed to connect|timed out)",
            r"server socket has failed to (?:listen|bind)",
            r"RendezvousConnectionError",
            r"RendezvousTimeoutError",
            r"Rendezvous(?:Closed|State)Error",
            r"\bwait timeout after [0-9]+ ?ms, keys: |\bgetsockname failed for fd",
            r"Rendezvous timeout",
            r"rendezvous.{0,60}(?:timed out|failed|not joined)",
            r"\bstore->get\b",
            r"failed to recv, got 0 bytes",
            r"EADDRINUSE",
            r"connect\(\) timed out|Timed out after [0-9]+ seconds waiting for clients",
            r"[Ff]ailed to meet rendezvous|\bUNAVAILABLE: Socket closed|\bSocket closed \(14\)",
            r"Failed to check the \"should dump\" flag on TCPStore",
            r"Socket Timeout",
        ),
        (
            "[E socket.cpp:1024] [c10d] The client socket has timed out after 300s while trying to connect to "
            "(10.9.0.1, 29400)."
        ),
        blame=Blame.NETWORK,
        unless=r"errno: 97|Address family not supported",
    ),
    symptom(
        "gloo-peer",
        "ConnectionError",
        46,
        (
            (
                r"gloo/transport/tcp.{0,160}(?:Connection closed by peer|Connection reset|Connection refused|"
                r"timed out|Timed out)"
            ),
            r"Gloo connectFullMesh failed",
            (
                r"gloo/transport/(?:tcp|uv)/[\w/]{1,40}\.cc:[0-9]+\] .{0,60}\b(?:poll|socket|bind|listen|accept|"
                r"get\w+name|read|write|interface|hostname|address|handshake|SSL)\b"
            ),
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            "[10.9.0.7]:18023"
        ),
        blame=Blame.NETWORK,
    ),
    cause(
        "http-client",
        "ConnectionError",
        58,
        (
            r"RateLimitError|APIConnectionError|APITimeoutError|InternalServerError: Error code: 5",
            r"ServerSelectionTimeoutError|Tunnel connection failed: ",
            r"wandb\.sdk\.service\.\S{0,60}Error",
            r"[Ee]rror while calling W&B API|wandb: ERROR Run initialization has timed out",
            r"\bsocket\.timeout\b|\breturned error code: [45][0-9][0-9]\b",
            r"\bssl\.SSL\w*Error|SSLZeroReturnError|SSLWantReadError",
            r"GcsUnavailable|RpcError: RPC error",
            r"Unable to connect to (?:GCS|the Ray|head)",
            r"HTTPS?ConnectionPool\(.{0,120}Max retries exceeded",
            r"Failed to connect to \S{3,80} port [0-9]+",
            r"gnutls_handshake\(\) failed|TLS handshake timeout|SSL_connect: ",
            r"i/o timeout\b|net/http: (?:request canceled|TLS)",
            r"ErrImagePull|ImagePullBackOff|[Ff]ailed to pull (?:and unpack )?image|Back-off pulling image",
            r"RegistryUnavailable|\betcdserver: |unable to upgrade connection",
            r"Early EOF|RPC failed; (?:curl|HTTP)|the remote end hung up unexpectedly",
            r"dial tcp .{0,80}(?:refused|timeout|no such host)",
            (
                r"requests\.exceptions\.(?:\w*Connect\w*|\w*Timeout|SSLError|ProxyError|HTTPError|"
                r"ChunkedEncodingError)"
            ),
            r"urllib3\.exceptions\.\w+",
            r"MaxRetryError",
            r"NewConnectionError",
            r"NameResolutionError",
            r"ReadTimeoutError",
            r"(?:Connect|Read)Timeout(?:Error)?\b",
            r"httpx\.\w*(?:Error|Timeout)",
            r"httpcore\.\w+",
            r"aiohttp\.[\w.]*(?:Error|Disconnected)",
            r"HfHubHTTPError",
            r"[45][0-9]{2} (?:Server|Client) Error",
            r"HTTP Error (?:408|429|5[0-9]{2})",
            r"(?:returned error: (?:HTTP/[0-9.]+ )?|\bERROR )[45][0-9]{2}\b",
            r"Temporary failure in name resolution",
            r"Name or service not known",
            r"nodename nor servname",
            r"Could not resolve host",
            r"SSL: CERTIFICATE_VERIFY_FAILED",
            r"SSLCertVerificationError",
            r"SSLEOFError",
            r"""couldn't connect to ['\"]?https?://""",
            r"Max retries exceeded with url",
            r"RemoteDisconnected",
            r"IncompleteRead",
            r"LocalEntryNotFoundError",
            r"wandb\.(?:sdk\.lib\.mailbox|errors)\.\S*(?:Comm|Timeout)\w*",
            r"Network error \((?:Connect|Read|Proxy|HTTP|SSL)\w*\)",
            r"grpc.{0,40}UNAVAILABLE",
            r"StatusCode\.UNAVAILABLE",
            r"failed to connect to all addresses",
            r"OfflineModeIsEnabled",
        ),
        (
            "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='models.invalid', port=443): Max "
            "retries exceeded with url: /api"
        ),
        blame=Blame.NETWORK,
        unless=(
            r"(?i)\bs3[.:/]|amazonaws|storage\.googleapis|blob\.core\.windows|404 Client Error|"
            r"401 Client Error|403 Client Error|\bretry(?:ing)? (?:in|[0-9]+/)|Retrying \(Retry"
        ),
    ),
    cause(
        "ssh-connect",
        "ConnectionError",
        58,
        (
            r"ssh: connect to host",
            r"ssh_exchange_identification|Permission denied \(publickey",
            r"Host key verification failed|\bssh exited with exit code 255",
            r"kex_exchange_identification",
            r"Connection (?:to \S+ )?closed by remote host",
            r"ssh: Could not resolve hostname",
            r"(?:not |un)reachable (?:via|over|by) ssh",
            r"Command '(?:\[')?ssh\b.{0,200}returned non-zero exit status 255",
        ),
        "kite-7: ssh: connect to host kite-7 port 22: Connection refused",
        blame=Blame.NETWORK,
    ),
    symptom(
        "connection-word",
        "ConnectionError",
        44,
        (
            r"\bConnection (?:refused|reset by peer|timed out|aborted|closed by (?:peer|remote))",
            r"ECONNREFUSED",
            r"ECONNRESET",
            r"ETIMEDOUT",
            r"Broken pipe",
            r"Failed to (?:connect|register|announce).{0,60}(?:GCS|raylet|redis|master|server)",
            r"timeout in .{0,60}\bGCS server",
            r"address already in use|Cannot assign requested address|Software caused connection abort",
        ),
        "ray: Failed to connect to GCS at address 10.9.0.1:6379",
        caseless=True,
        blame=Blame.NETWORK,
        unless=r"MESSAGE_TASK_EXIT|Failed to send MESSAGE_|(?i:retrying|shepherd)",
    ),
)
