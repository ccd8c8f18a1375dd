"""The one refusal of this room."""

from __future__ import annotations

from runbook.errors import BadInput


class CannotEdit(BadInput):
    """A template cannot be changed as wanted without the risk of changing something else.

    `what` says what stands in the way, `where` is "file:line", `next_step` is what a person can do.
    """
