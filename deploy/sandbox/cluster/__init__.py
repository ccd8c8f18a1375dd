"""The sandbox: a real Slurm cluster on one Debian machine, with simulated GPUs."""
