"""Checkpoint folders as listed, pure: which are complete, at which step, and whether they can be resharded.

`judgement` asks the formats in `formats`, which read a `listing`.
"""
