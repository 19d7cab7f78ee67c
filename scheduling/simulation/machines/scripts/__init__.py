"""The course and the output of simulated jobs: durations, ends, job logs, stacks and kernel logs."""
