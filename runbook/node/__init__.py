"""A node's answer, pure: the check's script, and the reading of what it prints into `NodeFacts`.

`check_script` asks, `sections` cuts the answer, `facts` brings its parts together: `gpus` (nvidia-smi), `processes`,
`kernel_log` with `xid`, `gres` (Slurm's numbers of GPUs), `probe_document` (what the node probe answers instead).
"""
