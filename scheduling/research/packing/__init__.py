"""Packing: several jobs on the same whole GPUs, each slower than alone. Only in replays, and only with profiles."""
