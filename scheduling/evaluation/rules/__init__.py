"""Rules of evaluations, without Django: requests, cost estimates, planning, job instructions and output."""
