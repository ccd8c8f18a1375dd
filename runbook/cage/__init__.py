"""The cage: boxes that read what a job left behind run apart from the service.

What is defended against: a user of the cluster who chooses every byte of his scripts, configurations, logs, packed
files and checkpoints' metadata, and of what his processes show on a node. He wants the service to fall, to hang, to
eat its machine, to read or write a file that is not his, to act on another's job, or to run his code with its rights.

What holds him: a box runs in a process of its own, without network, files or privileges (`walls`), forked from a warm
process that has read nothing of any user's (`server`). Its ports are a line (`wire`, `calls`) to the service, which
opens files as their owner and hands them over opened, and answers nothing that the incident has no business with
(`leave`). What comes back is typed JSON of bounded size, and is held against what the scheduler itself said. Memory,
CPU time, time and file sizes are bounded; a box that goes beyond is ended and tried once more, and after that the
incident goes to a person.

What is left: a box that was taken over can lie about what a log says and choose among what its incident may do; it
does so to the job's owner alone. Where the kernel has neither namespaces nor landlock, and the service is not root,
such a box has the service's own rights on files; `runbook doctor` says what there is."""

from runbook.cage.apart import read_apart
from runbook.cage.at_work import AtWork, marked_at_work
from runbook.cage.keeper import Cage

__all__ = ["AtWork", "Cage", "marked_at_work", "read_apart"]
