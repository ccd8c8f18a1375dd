"""The judgement on a node from its facts: faulty, occupied, unknown or clean, and what to do.

`judgement` brings the signs together: of the GPUs' own figures (`hardware`), of the kernel log (`xid_signs`), of other
processes (`tenants`), weighed by the rules (`signs`) and by which GPUs were the job's (`job_gpus`).
"""
