"""What Slurm's commands mean by their complaints."""

from __future__ import annotations

import re
from enum import Enum, auto


class Complaint(Enum):
    NO_SUCH = auto()
    """Job or node that Slurm does not know."""
    DENIED = auto()
    UNREACHED = auto()
    """The controller or the database did not get the request: asking again is safe for any command."""
    LOST = auto()
    """No answer came; the request may have been carried out."""
    NO_ACCOUNTING = auto()
    ENDED = auto()
    """The job is over already."""
    REFUSED = auto()
    """Slurm understood and said no."""


#: Messages of `src/common/slurm_errno.c` (22.05 to 26.05) and of pyslurm, first match wins.
_PATTERNS: tuple[tuple[Complaint, re.Pattern[str]], ...] = tuple(
    (complaint, re.compile(pattern, re.IGNORECASE))
    for complaint, pattern in (
        (Complaint.NO_ACCOUNTING, r"accounting storage is disabled|not running a supported accounting_storage"),
        (Complaint.ENDED, r"job/step already completing or completed|already (been )?(cancelled|complete)"),
        (
            Complaint.NO_SUCH,
            r"invalid job id|invalid node name|node \S+ (not found|does not exist)|unable to find (job|node)"
            r"|unknown node name",
        ),
        (Complaint.DENIED, r"access/permission denied|invalid user id|not authorized|must be .*(admin|operator)"),
        (
            Complaint.UNREACHED,
            r"could not establish a configuration source|dns srv lookup failed|failed to fetch config"
            r"|unable to contact slurm controller|connection refused|problem talking to the database"
            r"|unable to establish control|unable to resolve|no route to host|network is unreachable"
            r"|temporarily unable to (accept|handle)"
            r"|backup controller|slurm backup|unable to connect|munge\S* .*(failed|error)|socket: (connection|no such)",
        ),
        (
            Complaint.LOST,
            r"socket timed out|zero bytes were transmitted|unexpected message received|timed out|connection reset"
            r"|message (receive|send) failure|message receive",
        ),
    )
)


def complaint(words: str) -> Complaint:
    """The class of a command's standard error; what is not known is a refusal, to be shown as it is."""
    for kind, pattern in _PATTERNS:
        if pattern.search(words):
            return kind
    return Complaint.REFUSED
