"""Launch templates with the failure, the lever that applies and the text that comes out, or why there is none.

A file `cases/SYSTEM*.txt` holds cases:

    ##### title
    === file train.sbatch            the launch template; further `file` parts are the files that it names
    === failure                      `key: value` lines: kind, detail, phase, frames (outermost first, commas between),
                                     speaker, nodes, gpus (a node), pytorch, framework, tried/capacity/free/allocated/
                                     unallocated/private/process/others (GiB), host_limit/host_used (GiB a node),
                                     consent (yes),
                                     used (lever keys, one a line), reshardable (yes/no), checkpoints (none:
                                     looked for, and there is none), fragmentation (confidence),
                                     rank, tasks (of the job)
    === settings                     values in force: `parameter = value @ line`, `parameter ? words`, `parameter !`
    === plan                         `system`, `version`, `lever`, `ladder`, and `parameter: old -> new` lines (`-`: not
                                     set, or taken out); `also` lines: words that the expectation or notes must hold
    === diff                         the lines that change, with - and +, of all files together
    === refused                      `lever: words of the reason`; `no plan: words`; `question: words`

The version of a system whose form it is stands in the title. Templates are written for this project after forms that
the systems really use; none is copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runbook.model.checkpoint import Checkpoint
from runbook.model.diagnosis import Detail, Diagnosis, Hypothesis
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.log import Finding, LogStory, MemoryFields, MemorySample, Phase, ProcessUse, Progress
from runbook.model.template import SubmitContext, TemplateFile
from runbook.model.units import GIB, Bytes, JobId, UserName
from tests.case_files import read_cases
from tests.kinds import KINDS, Kind

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class LeverCase:
    title: str
    files: tuple[TemplateFile, ...]
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def system_file(self) -> str:
        return self.title.split(":")[0]

    def lines(self, part: str) -> tuple[tuple[str, str], ...]:
        """`key: value` lines."""
        found = []
        for line in self.parts.get(part, "").splitlines():
            if line.strip():
                key, separator, value = line.partition(":")
                assert separator, f"{self.title}: {line!r} has no colon"
                found.append((key.strip(), value.strip()))
        return tuple(found)

    @property
    def failure(self) -> dict[str, str]:
        known = {
            "kind", "detail", "phase", "frames", "speaker", "nodes", "gpus", "pytorch", "framework", "tried",
            "capacity", "free", "allocated", "unallocated", "private", "process", "others", "host_limit", "host_used",
            "consent", "used",
            "reshardable", "fragmentation", "checkpoints", "world", "rank", "tasks",
        }
        found: dict[str, str] = {}
        for key, value in self.lines("failure"):
            assert key in known, f"{self.title}: {key} is no part of a failure"
            found[key] = f"{found[key]}\n{value}" if key in found else value
        return found

    @property
    def story(self) -> LogStory:
        failure = self.failure
        memory = MemoryFields(
            tried_bytes=self._bytes("tried"), capacity_bytes=self._bytes("capacity"), free_bytes=self._bytes("free"),
            allocated_bytes=self._bytes("allocated"), reserved_unallocated_bytes=self._bytes("unallocated"),
            private_pool_bytes=self._bytes("private"), process_bytes=self._bytes("process"),
            other_processes=(ProcessUse(4242, self._bytes("others")),) if "others" in failure else (),
        )
        cause = Finding(
            "PT-CUDA-1", KINDS[failure.get("kind", "true_oom")], "train.log", 0, 1, "",
            rank=int(failure["rank"]) if "rank" in failure else None,
            phase=Phase(failure.get("phase", "unknown")), fields=memory, speaker=failure.get("speaker", ""),
            frames=tuple(item.strip() for item in failure.get("frames", "").split(",") if item.strip()),
        )
        host = self._bytes("host_used")
        samples = (MemorySample(0, 1, None, None, host_used_bytes=host),) if host is not None else ()
        return LogStory(
            cause, framework=failure.get("framework") or None, framework_version=failure.get("pytorch") or None,
            world_size=int(failure["world"]) if "world" in failure else None, progress=Progress(memory=samples),
        )

    @property
    def job(self) -> JobRecord:
        failure = self.failure
        return JobRecord(
            JobId("4711"), "c", "train", UserName("ada"), JobState("FAILED", JobClass.FAILED),
            num_nodes=int(failure.get("nodes", "2")), gpus_per_node=int(failure.get("gpus", "8")),
            num_tasks=int(failure["tasks"]) if "tasks" in failure else None,
            memory_limit_bytes_per_node=self._bytes("host_limit"), work_dir="/proj/ada", command=self.files[0].path,
        )

    @property
    def diagnosis(self) -> Diagnosis:
        failure = self.failure
        best = Hypothesis(KINDS[failure.get("kind", "true_oom")], 0.9, detail=Detail(failure.get("detail", "")))
        share = float(failure.get("fragmentation", "0"))
        return Diagnosis(best, (Hypothesis(Kind.FRAGMENTATION, share),) if share else ())

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...] | None:
        if self.failure.get("checkpoints") == "none":
            return ()
        if "reshardable" not in self.failure:
            return None
        return (Checkpoint("/ckpt/step_100", 100, True, reshardable=self.failure["reshardable"] == "yes"),)

    @property
    def surroundings(self) -> SubmitContext:
        environment = {"HOME": "/home/ada", "USER": "ada", "SLURM_SUBMIT_DIR": "/proj/ada"}
        sourced = {file.path: file.text for file in self.files[1:]}
        return SubmitContext(environment=environment, arguments=(), sourced=sourced)

    def _bytes(self, key: str) -> Bytes | None:
        return Bytes(int(float(self.failure[key]) * GIB)) if key in self.failure else None


def load_cases() -> list[LeverCase]:
    """Every case, in the order of the files."""
    cases = []
    for title, written in read_cases(CASES):
        parts: dict[str, str] = {}
        files = []
        for head, text in written:
            if head.startswith("file "):
                files.append(TemplateFile(head.removeprefix("file ").strip(), f"{text}\n"))
            else:
                assert head in ("failure", "settings", "plan", "diff", "refused"), f"{title}: {head}"
                parts[head] = text
        assert files, f"{title} has no template"
        cases.append(LeverCase(title, tuple(files), parts))
    return cases
