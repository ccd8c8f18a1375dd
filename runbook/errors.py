"""The error tree: three endings, each with one home.

    RunbookError            an expected problem: what, where, what next; the exit code is the class's own
    ├── BadInput            the command line, a document, a template          exit 2
    ├── NotFound            no such job, file, incident                       exit 3
    ├── NotAllowed          not yours, or the policy forbids it               exit 3
    ├── NothingToDo         the job is healthy, or did not die of memory      exit 5
    ├── BoxStopped          what a job left behind took more than it may      exit 4
    └── Unavailable         Slurm, SSH, a file, the disk: try again, resume   exit 6
        └── Hung            a file system that does not answer
    Interrupted             a person or the system stopped us; resumable      exit 130
    anything else           a bug: saved to a file, named in one line         exit 70

An incident that ends well exits 0, one that needs a person exits 4 (see `cli/main.py`).
"""

from __future__ import annotations


class RunbookError(Exception):
    """An expected problem, told to a person as: what happened, where, and what to do next."""

    exit_code = 6

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"where: {self.where}")
        if self.next_step:
            parts.append(f"next: {self.next_step}")
        return "\n  ".join(parts)


class BadInput(RunbookError):
    exit_code = 2


class NotFound(RunbookError):
    exit_code = 3


class NotAllowed(RunbookError):
    exit_code = 3


class NothingToDo(RunbookError):
    exit_code = 5


class Unavailable(RunbookError):
    """Something outside did not answer or had no room. Nothing was half done; trying again is safe."""

    exit_code = 6


class Hung(Unavailable):
    """A file system did not answer in time, or is not asked because others wait for it. `where` is the path."""


class BoxStopped(RunbookError):
    """A box in the cage used more than it may, or asked for or answered what is not believed, and was ended. It may be
    tried once more."""

    exit_code = 4


class BoxFault(Exception):
    """A bug of a box in the cage, told where the box is kept."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace.strip().splitlines()[-1] if trace.strip() else "a fault without words")
        self.trace = trace


class Interrupted(Exception):
    """Ctrl-C or SIGTERM. The incident is stored and can be resumed."""

    exit_code = 130
