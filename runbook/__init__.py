"""Bring back GPU training jobs that died of out-of-memory on Slurm."""

__version__ = "0.2.0"
