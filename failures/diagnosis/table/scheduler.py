"""Messages of Slurm, Kubernetes, PBS, LSF and Ray about jobs that they end. Pure."""

from __future__ import annotations

from ..signatures import Signature, cause, symptom, teardown
from ..values import Blame, SignatureTrait

ROWS: tuple[Signature, ...] = (
    cause(
        "slurm-time-limit",
        "Preempted/TimeLimit",
        97,
        (
            r"State=(?:TIMEOUT|DEADLINE)\b|\bReason=TimeLimit\b|\b(?:TIMEOUT|DEADLINE)\+? +[0-9]+:[0-9]+",
            r"\|(?:TIMEOUT|DEADLINE)\||\b[Ss]tate *:? (?:TIMEOUT|DEADLINE)\b|timed-out and not checkpointable",
            r"MaxRuntimeExceeded|MaxWaitTimeExceeded",
            r"(?i:maximum wall ?clock time exceeded|killed by walltime|walltime .{0,30}exceeded)",
            r"(?i:exiting program after [0-9.]+ minutes)",
            r"(?i:job killed after reaching .{0,20}run ?time limit|reached (?:its )?(?:wall|time|duration) ?limit)",
            r"DUE TO TIME LIMIT",
            (
                r"(?i:job reached (?:the )?time limit|time limit exhausted|TIMEOUT signal|exceeded (?:its |"
                r"the )?(?:wall ?time|time limit|walltime limit|run ?limit)|TERM_RUNLIMIT|DeadlineExceeded|"
                r"was active on the node longer than the specified deadline|=>> PBS: job killed: walltime)"
            ),
        ),
        "slurmstepd: error: *** JOB 7001 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 DUE TO TIME LIMIT ***",
        blame=Blame.SCHEDULER,
        unless=r"DeadlineExceededError|\bcode = DeadlineExceeded",  # of one call, not of the job
        traits=(SignatureTrait.SCHEDULER_STOP,),
    ),
    cause(
        "slurm-preempted",
        "Preempted/TimeLimit",
        97,
        (
            r"State=PREEMPTED|\bPREEMPTED\+? +[0-9]+:[0-9]+|requeued to reclaim resources",
            r"\|PREEMPTED\||\bstate:? PREEMPTED\b|\b[Rr]eason\W{1,12}Preempted\b|Warning +Preempted\b",
            r"(?i:\bpreempted (?:job|jobid|workload|pod)\b|node is being preempted|imminent node shutdown)",
            (
                r"(?i:preempted (?:to|in order to) (?:accommodate|admit|make room)|"
                r"InClusterQueue preemption|reclamation within the cohort)"
            ),
            r"(?i:reclaim(?:ed|ing) (?:by|for) (?:a )?higher[- ]priority)",
            r"(?i:higher[- ]priority (?:job|pod|workload).{0,60}preempt)",
            r"(?i:spot (?:instance|vm|node) .{0,40}(?:reclaim|terminat|interrupt|preempt))",
            r"(?i:(?:termination|preemption|shutdown) is imminent)",
            r"DUE TO PREEMPTION",
            r"(?i:died by preemption|due to (?:node|spot|host) preemption)",
            r"DUE TO JOB REQUEUE",
            (
                r"(?i:this job is preempted|job .{0,40}\bpreempted\b|was preempted|Preempted by|preemption notice|"
                r"Preempting|spot (?:instance )?(?:interruption|termination|reclaim)|"
                r"instance-action.{0,30}terminate|TERM_PREEMPT|TERM_OWNER|got preempted)"
            ),
        ),
        "slurmstepd: error: *** JOB 7002 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 DUE TO PREEMPTION ***",
        blame=Blame.SCHEDULER,
        unless=(
            r"(?i)\(node failure\)|got preempted, or|preempted/|preemption (?:handler|callback|check|enabled)|"
            r"preempted (?:by|because).{0,60}(?:PreemptionMode|KV cache|RECOMPUTE)|Sequence group"
        ),
        traits=(SignatureTrait.SCHEDULER_STOP, SignatureTrait.EXPLAINS_NODE_FAILURE),
    ),
    cause(  # why the node is gone: a cause, even if it is logged after the node was lost
        "node-preempted",
        "Preempted/TimeLimit",
        98,
        r"\b(?:actor|task|worker)'s node was preempted\b",
        "\tthe task's node was preempted: spot capacity was taken back",
        blame=Blame.SCHEDULER,
    ),
    cause(
        "pod-evicted",
        "Preempted/TimeLimit",
        95,
        (
            r"\bEvicted\b|TaintManagerEviction|Node is shutting down|\bNodeShutdown\b",
            (
                r"(?i:pod .{0,60}\bevict(?:ed|ion)|The node was low on resource|"
                r"evicting pod|"
                r"\bpod/\S+ evicted|\bnode/\S+ (?:drained|cordoned)|"
                r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|"
                r"DisruptionTarget|TerminationByKubelet|PreemptionByScheduler|Stopping container.{0,40}preempt)"
            ),
        ),
        "Warning  Evicted  pod/llm-7b-worker-3  The node had condition: [DiskPressure]",
        blame=Blame.SCHEDULER,
        unless=r"Cancelling deletion|\bLustre: |\bEvicted \d+ ",
        traits=(SignatureTrait.SCHEDULER_STOP,),
    ),
    symptom(
        "slurm-prolog",
        "SlurmNodeFail",
        47,
        (
            r"(?i:\bprolog (?:launch )?(?:failed|failure|error)\b)",
            r"launch failed requeued held|JobLaunchFailure",
            r"drain_nodes: node \S+",
        ),
        "slurmctld: error: Prolog launch failure, JobId=7009",
        blame=Blame.NODE,
    ),
    symptom(
        "slurm-cancelled",
        "Preempted/TimeLimit",
        30,
        (
            r"CANCELLED AT [0-9T:-]+ (?:DUE to SIGNAL|by )",
            r"\*\*\* (?:JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT [0-9T:-]+ \*\*\*",
            r"(?i:job (?:deleted|cancelled|canceled) (?:at request|by))",
            r"[Jj]ob allocation [0-9]+ has been revoked|srun: Job has been cancelled",
            r"State=CANCELLED\b|\|CANCELLED(?: by [0-9]+)?\||\bCANCELLED(?: by [0-9]+)? +[0-9]+:[0-9]+",
        ),
        "slurmstepd: error: *** STEP 7003.0 ON tern-1 CANCELLED AT 2025-03-01T04:00:12 ***",
        blame=Blame.SCHEDULER,
        traits=(SignatureTrait.STEP_KILL,),
    ),
    cause(
        "slurm-node-fail",
        "SlurmNodeFail",
        96,
        (
            r"(?:marked|set|going) DOWN[:,] .{0,20}[Nn]ot responding",
            r"slurmctld: (?:error: )?[Nn]odes? \S+ not resp",
            r"\b[Nn]ode \S+ (?:now|is) (?:down|DOWN): not responding|not resp\w*[;,] setting (?:state to )?DOWN",
            r"slurmd: (?:error: )?.{0,20}health_check failed|[Ss]etting failing health check nodes to",
            r"Killing (?:Job|Step)Id=\S+ (?:on|due to) (?:failed|DOWN) node|JobId=\S+ cancelled by node failure",
            r"requeue job \S+ due to failure of node",
            r"Node \S+ (?:unexpectedly rebooted|has low real_memory)",
            r"Reason=(?:NodeDown|NodeFail\w*)",
            r"\b(?:down|drain\w*|fail)\* .{0,120}\b[Nn]ot responding",
            r"slurmd (?:is )?(?:dead|stopped) on",
            r"\bslurmd(?:\[[0-9]+\])?: (?:slurmd: )?fatal:",
            r"(?i:update_node: node \S+ (?:reason set to|state set to (?:DOWN|DRAIN|FAIL)))",
            r"(?i:\bnodes? \S+ (?:marked|setting|set|is now)(?: to| state)? (?:DOWN|DRAIN\w*|FAIL\w*)\b)",
            r"due to failure of node",
            r"error: .{0,80}: Node down\b",
            r"DUE TO (?:A )?NODE FAILURE",
            r"(?:srun|salloc|sbatch): error: Node failure on",
            r"\bNODE_FAIL\b",
            (
                r"(?i:DUE TO NODE FAIL|error: Nodes? \S+ not responding|Killing job_id .{0,40} on failed node|"
                r"slurm.{0,60}node_fail|not responding, setting DOWN|_slurm_rpc_\w+.{0,60}node fail)"
            ),
        ),
        "srun: error: Node failure on tern-9",
        blame=Blame.NODE,
        unless=r"\bray\.|ObjectLost|All copies of",  # another scheduler's nodes
    ),
    symptom(
        "slurm-node-lost",
        "SlurmNodeFail",
        60,
        (
            r"slurm_receive_msgs?:.{0,80}(?:Zero Bytes|timed out|timeout)",
            r"Unable to contact slurm controller|Could not establish a configuration source",
            r"srun: error: .{0,60}(?:Communication connection failure|launch failed)",
            r"Prolog error",
            r"Batch JobId=\S+ missing from (?:batch )?node",
            r"slurmd.{0,40}(?:not responding|unresponsive)",
            r"error: Job credential|Task launch for \S+ failed on node",
            r"slurmd error running JobId|timeout waiting for task launch|resolve_ctls_from_dns_srv",
            r"BOOT_FAIL",
            r"requeued due to failure of node",
            r"srun: error: .{0,40}(?:Cannot communicate with node|Aborting, .{0,40}(?:missing|connection to node))",
            r"wrong with the boot of the nodes|\bnodes \S+ are still not ready|nodes to respond, abort launch",
            r"(?:prolog|epilog)\b.{0,24} (?:failure|error) on (?:host|node)|epilog error on \S{1,60}, draining",
            # the reasons in sinfo for unavailable nodes
            r"\bKill task failed\b|batch job complete failure|\bgres/\w+ count (?:too low|reported lower)",
            r"\bLow (?:RealMemory|TmpDisk|CPUs|socket\*core)|\bNHC: ",
        ),
        "srun: error: Task launch for StepId=7004.0 failed on node tern-9: Communication connection failure",
        caseless=True,
        blame=Blame.NODE,
    ),
    symptom(  # waiting jobs get this as a notice, too
        "slurm-node-taken",
        "SlurmNodeFail",
        40,
        r"Required node not available \(",
        "srun: Required node not available (down, drained or reserved)",
        blame=Blame.NODE,
    ),
    symptom(
        "slurm-unreachable",
        "ConnectionError",
        47,
        (
            r"Socket timed out on send/recv|Message (?:send|receive) failure",
            r"Communication (?:connection|shutdown) failure",
            r"backup controller in standby|Protocol authentication error|Rate limit exceeded, please retry",
        ),
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        blame=Blame.SCHEDULER,
    ),
    cause(  # the scheduler rejected a request; `unless` excludes failures of the scheduler itself
        "request-refused",
        "ArgumentError",
        56,
        (
            (
                r"(?:sbatch|srun|salloc): (?:error|fatal): (?:Batch job submission failed|Unable to allocate resources|"
                r"Job submit/allocate failed|Unable to create step for job [0-9.]+): [A-Z]"
            ),
            (
                r"(?:sbatch|srun|salloc): (?:error|fatal): (?:--[a-z]|[Cc]an ?not specify|[Dd]on't specify|"
                r"Incompatible |Only allocated|You asked for|Requested node|QOS[A-Z]|Assoc[A-Z]|No command given|"
                r"This does not look like a batch|Batch script (?:is|contains))"
            ),
            r"(?:sbatch|srun|salloc): error: .{0,60}\bcan ?not be satisfied",
            r"not enough slots available in the system",
        ),
        "sbatch: error: Batch job submission failed: Task count specification invalid",
        unless=(
            r"(?i)timed out|contact slurm|connect|message \w+ failure|communication|standby|zero bytes|authenti|"
            r"(?:node|partition|controller) not available|prolog|node fail|internal error|unspecified|"
            r"credential|rate limit|denied|no such file|permission|plugin|slurmd|maintenance|\bboot|"
            r"busy|down\b|memory allocation|i/o error"
        ),
    ),
    symptom(
        "pod-sandbox",
        "ConnectionError",
        46,
        r"(?i:failed to set ?up (?:pod )?network|NetworkReady=false|cni plugin not initialized)",
        "Warning  FailedCreatePodSandBox  pod/tern-7b-0  failed to setup network for sandbox: plugin failed",
        blame=Blame.NETWORK,
    ),
    teardown(  # the container had ended before; its own log has the reason
        "pod-given-up",
        8,
        (
            r"Back-off restarting failed container|\bCrashLoopBackOff\b|\bBackoffLimitExceeded\b",
            r"\w*Job \S{1,80} is failed because [0-9]+ \w+ replica|reached the specified backoff limit",
        ),
        "Warning  BackOff  pod/tern-7b-0  Back-off restarting failed container trainer",
    ),
    symptom(
        "sigterm-outside",
        "Preempted/TimeLimit",
        14,
        (
            r"Received (?:1 )?(?:death signal|SIGTERM|signal 15)",
            r"Received [0-9]+ death signal",
            r"got signal: (?:15|1)\b",
            r"SIGTERM received",
            r"[Cc]aught SIGTERM",
            r"Caught signal SIG(?:TERM|USR[12])",
            r"Terminated by signal 15",
            r"(?i:received shutdown signal|exiting on SIGTERM)",
            r"Signals\.SIG(?:TERM|HUP)",
        ),
        "torch.distributed.elastic.agent.server.api: Received 15 death signal, shutting down workers",
        blame=Blame.SCHEDULER,
    ),
    teardown(
        "srun-aborted",
        10,
        (
            (
                r"srun: (?:Job step aborted|Force Terminated|forcing job termination|Terminating|"
                r"error: .{0,60}: task)"
            ),
            r"slurmstepd: error: Failed to send",
            (
                r"\*\*\* (?:JOB|STEP) .{0,80} (?:FAILED \(non-zero|CANCELLED AT \S+ DUE TO TASK FAILURE|"
                r"STEPD TERMINATED ON )"
            ),
        ),
        "srun: Job step aborted: Waiting up to 17 seconds for job step to finish.",
    ),
)
