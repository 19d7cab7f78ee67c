"""Engine that reads a job's log and names the root cause. Pure Python without Django; the client carries a copy."""
