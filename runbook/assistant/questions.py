"""The questions: what each takes, which commands it runs. Its name, its docstring and its fields are what an assistant
is shown of it.

Every value is one word of a command line, after `--name=` or after `--`, so that none can be an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from runbook.assistant import Answer, Ask, Place, from_files, from_store
from runbook.assistant.shaping import failed

_PRINTED = r"^[^\x00-\x1f\x7f-\x9f]+$"
Word = Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTED)]
FilePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=_PRINTED)]
State = Literal["running", "awaiting_approval", "interrupted", "recovered", "planned", "escalated", "closed"]
_SHOWN_OF_A_NODE = 3
"""The newest incidents that are asked for a node's facts."""


class Question(BaseModel):
    """Nothing but what the fields name is taken: an unknown field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: ClassVar[str]
    title: ClassVar[str]
    reads_paths: ClassVar[bool] = False
    """It reads files that whoever asks names."""

    def answer(self, ask: Ask, place: Place) -> Answer:
        raise NotImplementedError


class ListIncidents(Question):
    """Stored incidents, newest first: state, what died of what, what was done, what is asked of a person. Only jobs of
    which an incident was opened are there: an empty list does not say that all jobs are well."""

    tool: ClassVar[str] = "incidents"
    title: ClassVar[str] = "List incidents"

    state: State | None = Field(None, description="Only incidents in this state.")
    job: Word | None = Field(None, description="Only the incident of this Slurm job: the first one or a relaunch.")
    node: Word | None = Field(None, description="Only incidents whose first job ran on this node.")
    user: Word | None = Field(None, description="Only incidents of this user's jobs.")
    limit: int = Field(20, ge=1, le=100, description="The newest so many.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        told = ask(("incidents", "--json", *_options(state=self.state)))
        wanted = from_store.Wanted(job=self.job or "", node=self.node or "", user=self.user or "")
        return from_store.incidents(told, wanted, self.limit, place)


class ShowIncident(Question):
    """One incident with its evidence: the diagnosis with its reasons, the log's lines, what nodes said, the path taken,
    each relaunch, what is asked of a person."""

    tool: ClassVar[str] = "incident"
    title: ClassVar[str] = "Show one incident"

    incident: Word = Field(description="Its id, as `incidents` lists it.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        return from_store.incident(ask(("show", "--json", "--", self.incident)), self.incident, place)


class Diagnose(Question):
    """Read launcher logs: which rank failed first, what it died of, and what is not known. Several files of one job are
    one story. The answer is of these files alone."""

    tool: ClassVar[str] = "diagnose"
    title: ClassVar[str] = "Diagnose logs"
    reads_paths: ClassVar[bool] = True

    paths: list[FilePath] = Field(
        min_length=1, max_length=32, description="Logs, or folders of logs; relative ones from where the server runs."
    )
    nodes: Word | None = Field(None, description="The job's nodes in Slurm's form, gpu-[21-24]: places ranks on nodes.")
    tasks: int | None = Field(None, ge=1, le=1_000_000, description="The job's number of tasks (ranks).")
    template: FilePath | None = Field(None, description="The launch script: what it sets is evidence.")
    full: bool = Field(False, description="Read every byte also of many large files, which may take long.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        words = (*_options(nodes=self.nodes, tasks=self.tasks, template=self.template),
                 *(("--full",) if self.full else ()), "--", *_files(self.paths))
        return from_files.diagnosis(ask(("diagnose", "--json", "--why", *words)), words)


class Explain(Question):
    """What a word means, from this program's documents, with its source: a signature, a kind of failure, a lever or
    parameter, an Xid, an exit code, a Slurm state or reason, a CUDA or NCCL error, an alert, a box."""

    tool: ClassVar[str] = "explain"
    title: ClassVar[str] = "Explain a word"

    topic: Word = Field(description="For example: xid 79, 0:53, OUT_OF_MEMORY, fragmentation, ncclSystemError.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        return from_files.explanation(ask(("explain", "--json", "--", self.topic)), self.topic, place)


class Levers(Question):
    """What can be changed to free memory, by system and kind of failure, least to most invasive, with what it costs. No
    launch script is looked at."""

    tool: ClassVar[str] = "levers"
    title: ClassVar[str] = "List levers"

    system: Word | None = Field(None, description="One system: megatron, verl, … Without it: the ladders of each.")
    kind: Word | None = Field(None, description="Only ladders for one kind of failure: true_oom, shm, …")
    phase: Word | None = Field(None, description="Only ladders that a failure in this phase takes: rollout, …")

    def answer(self, ask: Ask, place: Place) -> Answer:
        words = (*_options(kind=self.kind, phase=self.phase), *(("--", self.system) if self.system else ()))
        return from_files.levers(ask(("levers", "--json", *words)), words, place, in_full=self.system is not None)


class Predict(Question):
    """Will a run fit into the GPUs' memory: by term, with bounds, from its launch script and, better, its log. Nothing
    is run or changed; a change to be judged is only reckoned with."""

    tool: ClassVar[str] = "predict"
    title: ClassVar[str] = "Predict memory"
    reads_paths: ClassVar[bool] = True

    template: FilePath = Field(description="The launch script.")
    logs: list[FilePath] = Field(default=[], max_length=32, description="Logs of the job: they correct the sum.")
    model: FilePath | None = Field(None, description="The model's config.json, where it is not found.")
    suppose: list[Word] = Field(
        default=[], max_length=32, description="Changes to reckon with: micro_batch=2, sequence=4096, world=64, …"
    )
    search: Word | None = Field(None, description="Find the largest that fits: micro_batch or sequence.")
    gpus: Word | None = Field(None, description="The card: h100-80g, or its size, 80GiB.")
    system: Word | None = Field(None, description="The system, where the script does not show it.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        words = (
            *_options(template=self.template, model=self.model, search=self.search, gpus=self.gpus, system=self.system),
            *(f"--log={path}" for path in _files(self.logs)), *(f"--set={change}" for change in self.suppose),
        )
        told = ask(("predict", "--json", *words))
        if told.data is None:
            return failed(told, ("predict", *words))
        shown = ask(("template", "show", "--json", *_options(system=self.system), "--", self.template))
        return from_files.forecast(told, shown, words, self.template)


class History(Question):
    """What died of what before, and which lever worked; or which nodes see more of it than their peers. Only stored
    incidents count."""

    tool: ClassVar[str] = "history"
    title: ClassVar[str] = "What happened before"

    user: Word | None = Field(None, description="Only jobs of this user.")
    node: Word | None = Field(None, description="Only jobs that ran on this node.")
    system: Word | None = Field(None, description="Only this framework.")
    model: Word | None = Field(None, description="Only models with this in their name.")
    kind: Word | None = Field(None, description="Only what died of this kind.")
    since: Word | None = Field(None, description="Only the last 30d, 12w, 6m, 1y.")
    compare_nodes: bool = Field(False, description="Nodes beside their peers; with node and since alone.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        words = (
            *_options(user=self.user, node=self.node, system=self.system, model=self.model, kind=self.kind,
                      since=self.since),
            *(("--nodes",) if self.compare_nodes else ()),
        )
        return from_store.history(ask(("history", "--json", *words)), words, place)


class NodeFacts(Question):
    """What a node said of its GPUs, processes and kernel log when incidents asked it: facts already taken. The node is
    not asked now."""

    tool: ClassVar[str] = "node"
    title: ClassVar[str] = "A node's facts, as taken before"

    node: Word = Field(description="Its name, as Slurm has it.")

    def answer(self, ask: Ask, place: Place) -> Answer:
        listed = ask(("incidents", "--json"))
        if listed.data is None:
            return failed(listed, ("node", "--", self.node))
        names = from_store.incidents_of_node(listed.data, self.node)
        shown = [(name, ask(("show", "--json", "--", name))) for name in names[:_SHOWN_OF_A_NODE]]
        return from_store.node_facts(self.node, listed, len(names), shown, place)


QUESTIONS: tuple[type[Question], ...] = (
    ListIncidents, ShowIncident, Diagnose, Explain, Levers, Predict, History, NodeFacts,
)


def _options(**given: str | int | None) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in given.items() if value is not None)


def _files(paths: Sequence[str]) -> tuple[str, ...]:
    """`-` is standard input for the command, which is the assistant's here: a file of that name is meant."""
    return tuple("./-" if path == "-" else path for path in paths)
