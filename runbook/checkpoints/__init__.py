"""Checkpoint folders as listed, pure: which are complete, at which step, and whether they can be resharded.

`judgement` asks the formats, one module each in `formats`, which read a `listing`.
"""

from runbook.checkpoints.judgement import choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.checkpoints.listing import SMALL_FILE_BYTES

__all__ = ["SMALL_FILE_BYTES", "choose_checkpoint", "judge_checkpoints", "wanted_small_files"]
