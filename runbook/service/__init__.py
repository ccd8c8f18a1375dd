"""The daemon: reads what Slurm's epilog noted, opens incidents, shows their pages, metrics and health."""
