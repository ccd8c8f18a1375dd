"""Slurm, pure: a query beside the reading of its answer, and what Slurm's words mean.

`controller` (squeue, sinfo, scontrol), `accounting` (sacct), `job_record` (one record of both), `fields` (figures and
columns), `states`, `complaints`, `sbatch_options` (submit lines and headers), `submit` (the command of sbatch).
"""
