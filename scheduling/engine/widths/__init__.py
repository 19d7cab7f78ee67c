"""Elastic width: how fast jobs are at each number of GPUs, and policies that decide how many GPUs each job gets."""
