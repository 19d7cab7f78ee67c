"""The terms of Acme, one line each: shown at /glossary/, and written to docs/glossary.md by `make map`."""

from __future__ import annotations

from dataclasses import dataclass

# A definition continues on lines that begin with spaces
TEXT = """
Account: A Slurm account. Each team submits under its own.
Allocation: GPUs, CPUs and memory of a node that one attempt holds.
Anomaly: A finding of a detector about a running job or a node, such as slow steps. Not a failure.
Asleep: A node that is powered down because it is not needed. A job that starts on it waits for its boot.
Attempt: One start of a job on a cluster. A job that is requeued gets another attempt.
Attempt record: Files beside a job's log in which the batch script notes that the command started and how it
    ended.
Backfill: Starting a job out of order because it ends before a reservation needs its nodes.
Burn-in: The time in which a repaired node runs only tests before it accepts jobs again.
Campaign: An evaluation of checkpoints with the datasets of a suite.
Checkpoint: A saved state of a training from which it can resume.
Circuit breaker: Calls a cluster less often while it does not answer in time.
Cluster: A set of nodes under one Slurm controller or Kubernetes API server, real or simulated.
Cluster command: A submit, cancel, signal, drain or resume that Acme has decided and sends to a cluster.
    Stored until it has an effect.
Control mode: How much Acme does on a cluster. Observe: it only reads. Advise: it also shows what it would do.
    Drive: it schedules the jobs.
Deadline: When a job should have ended. Not a limit: the job continues afterwards, unless it asks to be cancelled.
Decision: What recovery does, proposes or records about one failure, with its reasons.
Diagnosis: The cause of a failed attempt, with evidence and confidence.
Drain: Keep new jobs off a node. Running jobs finish, or are requeued after a checkpoint or at once.
Energy: What GPUs used, by their counters, their power or an estimate, and the rest of their nodes where it is
    measured.
ETTR: Effective training time ratio: productive time of a job divided by the time since its submission.
Event: An entry in the history of a job, node or incident. Events cannot be changed.
Evidence: Log lines and facts on which a diagnosis rests.
Fair share: Ordering jobs by how much of its share an account has used.
Foreign job: A job on the cluster that was not submitted through this Acme. Acme shows it and never changes
    it.
Gang: All nodes of a job. They start together or not at all.
Goodput: The share of GPU-hours that produced progress that was kept.
GPU utilization: The share of time in which a GPU executed a kernel, as its exporter measures it. A busy GPU
    need not be an efficient one.
Hang: A running job that has stopped completing steps.
Heartbeat: A report of a running job: step, loss, throughput.
Hold: Keep a waiting job from starting until it is released.
Incident: One cause that made one or more attempts fail.
Installation: One Acme with its database. Its identity is part of every key it gives to a cluster.
Lease: The right of one worker to run a loop for a limited time.
Ledger: The account of all GPU-hours: each GPU-second is in exactly one bucket.
Lemon node: A node on which jobs fail more often than elsewhere.
Maintenance: A planned window in which nodes must be empty.
Manual override: A user's instruction that recovery must not act on a job or node. An undo creates one.
MFU: Model FLOPs utilization: the share of the GPU's peak arithmetic that the model uses.
Mount: A volume that a cluster offers to the containers of jobs by name.
MTTF: Mean time to failure. Reports give it in GPU-hours held per failure.
MTTR: Mean time to restart: from the end of a failed attempt to the next start of its job.
Node: One machine of a cluster.
Outcome unknown: The flag of a job whose last attempt the cluster has forgotten without a trace of how it
    ended. A user decides.
Packing: Several jobs on the same GPUs, each slower than alone. In replays only.
Placement: The rule by which a job gets its nodes.
Pod template: What operators of a Kubernetes cluster decide about the pods of jobs: images, volumes, resources.
Policy: The rule by which waiting jobs are ordered and started.
Power budget: What the nodes of a cluster, rack, leaf or pod may draw together. Jobs predicted to exceed it wait.
Power cap: A lower clock of GPUs that keeps measured power within its budget. Jobs there are slower meanwhile.
Preempt: Stop a running job so that another job can start. The preempted job is requeued.
Preemption contract: What a preemptible job is promised: a protected time after each start, preemption only right
    after a checkpoint, a daily maximum.
Quota: GPUs that a team owns, of all models or of one. Idle GPUs may be borrowed by preemptible jobs.
Queue wait: The time from a job's submission to its start. The median is that of the jobs that started within
    the last hour.
Reason: Why a job waits or a node is closed, as a short code in Slurm's words. Fields named `why` hold a sentence.
Remedy: What helps against a cause: restart, restart elsewhere, roll back, change the request, or nothing.
Regression: A score that fell since the step before by more than the sampling error of its benchmark.
Replay: A simulation of past or synthetic jobs under a policy (What if).
Requeue: Put a job back into the queue. It keeps its place.
Reservation: Nodes and a time that the scheduler keeps for the next job that does not fit yet.
Rollback: Resume from an earlier checkpoint, before the loss went wrong.
Run time prediction: The mean run time of similar ended jobs: of the same user, job name and size, else of
    wider groups. Trees (LightGBM) make a second one. It orders the queue; reservations rely on time limits.
Shard: The part of a dataset that one evaluation job works on.
Slowdown: How many times as long a job runs on a GPU model as on the first one that it requested.
Snapshot: The state of a cluster from which one turn decides.
Start estimate: When a waiting job is expected to start (P50 and P90), from a replay of the current state.
Suite: A named list of datasets with the commands that evaluate them.
Time limit: The longest time a job may run. The cluster stops it then.
Trial: One job of a campaign.
Turn: One pass of the scheduling loop over a cluster.
Wait reason: Why a job has not started.
Xid: An error code that the NVIDIA driver writes to the kernel log.
"""


@dataclass(frozen=True)
class GlossaryTerm:
    name: str
    definition: str

    @property
    def anchor(self) -> str:
        return self.name.lower().replace(" ", "-")


TERMS = tuple(GlossaryTerm(*line.split(": ", maxsplit=1)) for line in TEXT.strip().replace("\n    ", " ").splitlines())
