"""What `runbook patch` is told of the failure: by logs, by the command line, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.cli.job_files import job_of
from runbook.errors import BadInput
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis, Kind
from runbook.model.job import JobRecord
from runbook.model.log import LogStory
from runbook.model.template import Setting


@dataclass(frozen=True, slots=True)
class Evidence:
    """`kind` None: the command line names none. `from_log`: there were logs, so that the story says something.
    `refused`: a sentence on logs that could not be read."""

    story: LogStory
    job: JobRecord
    kind: Kind | None
    from_log: bool
    refused: str = ""

    def diagnosis(self, settings: Sequence[Setting]) -> Diagnosis | None:
        """By the logs, with what the template sets as evidence; the command line's kind wins. None: nothing is known
        of a failure."""
        found = None
        if self.from_log:
            from runbook.diagnosis import diagnose

            known = {item.parameter: item.value for item in settings if item.value is not None}
            found = diagnose(self.story, job=self.job, settings=known)
        if self.kind is None or (found is not None and found.best.kind is self.kind):
            return found
        return Diagnosis(Hypothesis(self.kind, 1.0, detail=Detail.NONE))


def evidence_of(
    logs: tuple[str, ...], kind: str | None, template: Path, *, nodes: int | None, gpus: int | None,
    playbook: Path | None,
) -> Evidence:
    """Read the logs, if there are any. Raises `BadInput` for a kind that does not exist, or where the command line
    and the logs contradict each other on the number of ranks."""
    said = _kind(kind)
    job = job_of(template, nodes=nodes, gpus_per_node=gpus)
    story, refused = LogStory(root_cause=None), ""
    if logs:
        from runbook.adapters.log_files import find_logs
        from runbook.cli.read_logs import read_logs, refused_note

        files = find_logs(logs)
        story, refused = read_logs(files, playbook, job=job), refused_note(files)
    if nodes and gpus and story.world_size and story.world_size != nodes * gpus:
        raise BadInput(
            f"--nodes {nodes} --gpus {gpus} make {nodes * gpus} ranks, and the log says {story.world_size}",
            next_step="leave them out, or name the log of this job",
        )
    return Evidence(story, job, said, bool(logs), refused)


def _kind(name: str | None) -> Kind | None:
    if name is None:
        return None
    try:
        return Kind(name.strip().lower().replace("-", "_").replace(" ", "_"))
    except ValueError:
        raise BadInput(f"--kind: there is no {name!r}", next_step=f"there are {', '.join(Kind)}") from None
