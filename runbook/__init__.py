"""Bring back GPU training jobs that died of out-of-memory on Slurm."""
