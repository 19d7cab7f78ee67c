"""Elastic width: policies that decide how many GPUs each job gets, jobs with a speed by width, and their replay."""
