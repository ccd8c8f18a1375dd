"""Checkpoint folders as listed, pure: which are complete, at which step, and whether they can be resharded.

`completeness` asks the formats, one module each in `formats`, which look at listed `folders`.
"""

from runbook.checkpoints.completeness import choose_checkpoint, judge_checkpoints, wanted_small_files
from runbook.checkpoints.folders import SMALL_FILE_BYTES

__all__ = ["SMALL_FILE_BYTES", "choose_checkpoint", "judge_checkpoints", "wanted_small_files"]
