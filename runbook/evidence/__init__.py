"""Pure reading of evidence: launcher logs, Slurm answers, node facts, checkpoints."""
