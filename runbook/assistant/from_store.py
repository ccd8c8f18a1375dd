"""What is stored of incidents → what an assistant is told of it: `incidents`, `incident`, `history`, `node`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.assistant import Answer, Evidence, Outside, Place, Told
from runbook.assistant.shaping import chosen, commands, failed, line_of, said, times, unread
from runbook.model.incident import IncidentState
from runbook.model.node import NodeVerdict

_OTHERS_SHOWN = 10
_ROW = (
    "id", "state", "headline", "kind", "job_name", "owner", "node", "rank", "jobs", "nodes", "num_nodes", "relaunches",
    "levers", "drained", "simulated", "done", "again", "asked", "awaiting",
)
_OPEN_TO_RESUME = frozenset({IncidentState.ESCALATED, IncidentState.INTERRUPTED})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which incidents are asked for; "": any."""

    job: str = ""
    node: str = ""
    user: str = ""

    def fits(self, row: Mapping[str, Any]) -> bool:
        return (
            (not self.job or self.job in (row["root_job"], *row["jobs"]))
            and (not self.node or self.node in _nodes_of(row))
            and (not self.user or self.user == row["owner"])
        )


def incidents(told: Told, wanted: Wanted, limit: int, place: Place) -> Answer:
    """Of `runbook incidents --json`."""
    if told.data is None:
        return failed(told, ("incidents",))
    found = [row for row in told.data if wanted.fits(row)]
    shown = found[:limit]
    not_seen = [
        "Jobs of which no incident was opened are not stored here, and neither Slurm nor any node was asked.",
        *said(told),
    ]
    if wanted.node and (partly := sum(row["num_nodes"] > len(row["nodes"]) for row in told.data)):
        not_seen.append(f"Of {partly} stored incidents the list keeps not all nodes: they may have been on this one.")
    if not found:
        not_seen.append("No stored incident fits. That does not say that the jobs are well.")
    if len(found) > limit:
        not_seen.append(f"incidents: cut at {limit} of {len(found)}")
    return Answer(
        {"found": len(found), "incidents": [
            {**{name: row[name] for name in _ROW}, **times(row, "opened_s", "updated_s")} for row in shown
        ]},
        tuple(Evidence(place.incident(row["id"]), 1, row["headline"]) for row in shown),
        tuple(not_seen),
        commands(*(("show", row["id"]) for row in shown if row["awaiting"] or row["state"] in _OPEN_TO_RESUME))
        or commands(("incidents",)),
    )


def incidents_of_node(rows: Sequence[Mapping[str, Any]], node: str) -> list[str]:
    """Ids, newest first."""
    return [row["id"] for row in rows if node in _nodes_of(row)]


def incident(told: Told, name: str, place: Place) -> Answer:
    """Of `runbook show --json`."""
    found = told.data
    if found is None:
        return failed(told, ("show", name))
    path, failure = place.incident(name), found["failure"] or {}
    story, judged = failure.get("story") or {}, failure.get("judgements") or ()
    best = (failure.get("diagnosis") or {}).get("best")
    answer = {
        **chosen(found, ("id", "state", "policy", "awaiting", "conclusion", "to_do", "promoted", "notes")),
        **times(found, "opened_s", "updated_s", "closed_s"),
        "job": chosen(failure.get("job") or {}, (
            "id", "name", "owner", "state", "reason", "exit_code", "nodes", "num_nodes", "num_tasks", "gpus_per_node",
            "partition", "account", "stdout_path",
        )),
        "diagnosis": best,
        "runners_up": (failure.get("diagnosis") or {}).get("runners_up") or [],
        "first_failure": _finding(story.get("root_cause")),
        "collateral": (story.get("collateral") or [])[:_OTHERS_SHOWN],
        "nodes": [chosen(one, ("node", "verdict", "reasons", "warnings", "missing", "faulty_gpus")) for one in judged],
        "plan": [chosen(use, ("lever", "title", "why", "effect", "cost", "key", "expectation", "seen_before"))
                 for use in (found["plan"] or {}).get("uses") or ()],
        "no_plan": found["no_plan"],
        "attempts": [
            {**chosen(one, ("number", "job", "receipts")),
             "levers": [use["key"] for use in (one["plan"] or {}).get("uses") or ()],
             "verdict": chosen(one["verdict"] or {}, ("passed", "why", "headroom"))}
            for one in found["attempts"]
        ],
        "acts": [chosen(act, ("what", "target", "result", "planned_only", "approved_by")) for act in found["acts"]],
        "path": [f"{visit['box']} {visit['outcome']}".strip() for visit in found["visits"]],
        "kept_logs": found["evidence_files"],
    }
    failures = (story.get("root_cause"), *(story.get("candidates") or ())[:_OTHERS_SHOWN])
    lines = [Evidence(one["file"], one["line"] or None, one["excerpt"]) for one in failures if one]
    whole = Evidence(path, 1, found["conclusion"] or found["awaiting"] or found["state"])
    at = line_of('"judgements"', told.text)
    nodes = [Evidence(path, at, f"{one['node']}: {one['verdict']}") for one in judged]
    return Answer(answer, (*lines, *nodes, whole), tuple(_unseen_of(found, told)), _next_of(found, name))


def _unseen_of(found: Mapping[str, Any], told: Told) -> Iterator[str]:
    failure = found["failure"] or {}
    story, asked = failure.get("story"), {one["node"] for one in failure.get("nodes") or ()}
    yield "Texts of scripts and configurations are left out here. Slurm and the nodes were not asked again."
    if story is None:
        yield "No log of the failed job has been read."
    if not failure.get("diagnosis"):
        yield "There is no diagnosis yet."
    yield from map(Outside, ((failure.get("diagnosis") or {}).get("best") or {}).get("missing") or ())
    yield from unread((story or {}).get("sources") or ())
    yield from map(Outside, ((story or {}).get("notes") or ()))
    yield from map(Outside, found["unread"])
    others = [node for node in (failure.get("job") or {}).get("nodes") or () if node not in asked]
    if others or not asked:
        yield f"{len(others) or 'All'} of the job's nodes were not checked: they are unknown, not clean."
    for one in failure.get("judgements") or ():
        if one["verdict"] == NodeVerdict.UNKNOWN:
            yield Outside(f"{one['node']} could not be judged: it is unknown, not clean.")
        yield from (Outside(f"{one['node']}: {what}") for what in one["missing"])
    yield from said(told)


def _next_of(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if found["awaiting"]:
        return commands(("show", name), ("approve", name), ("approve", "--no", name))
    resume = (("resume", name),) if found["state"] in _OPEN_TO_RESUME else ()
    return commands(("show", name), *resume, ("report", name))


def history(told: Told, words: Sequence[str], place: Place) -> Answer:
    """Of `runbook history --json`."""
    if told.data is None:
        return failed(told, ("history", *words))
    ids = dict.fromkeys(name for one in told.data for name in one.get("newest", ()))
    not_seen = [
        "Only stored incidents count: jobs that died without one, and incidents that were pruned, are not known.",
        *said(told),
    ]
    if not told.data:
        not_seen.append("Nothing that is stored fits. That does not say that nothing happened.")
    return Answer(
        [one | times(one, "newest_s") for one in told.data],
        tuple(Evidence(place.incident(name), 1, name) for name in ids)
        or (Evidence(str(place.state), None, "read as a whole"),),
        tuple(not_seen), commands(("history", *words)),
    )


def node_facts(node: str, listed: Told, known: int, shown: Sequence[tuple[str, Told]], place: Place) -> Answer:
    """Of the incidents that name a node (`known` so many; of the newest what `runbook show --json` told)."""
    taken, evidence, not_seen = [], [], [
        "The node was not asked now: these are facts of the moments that are told, and may have changed since.",
        "What nodes leave in the spool at a job's end is not read here.", *said(listed),
    ]
    for name, told in shown:
        failure = (told.data or {}).get("failure") or {}
        facts = [one for one in failure.get("nodes") or () if one["node"] == node]
        judged = [one for one in failure.get("judgements") or () if one["node"] == node]
        if told.data is None:
            not_seen += [f"{name} could not be read.", *said(told)]
        elif not facts:
            not_seen.append(f"{name}: nothing is kept of what the node said. It was unknown then, not clean.")
        for one in facts:
            taken.append({"incident": name, **times(one, "checked_at_s"), "said": one, "judged": judged})
            at = line_of('"judgements"', told.text)
            evidence.append(Evidence(place.incident(name), at, f"{one['node']}: {one['reach']}"))
            not_seen += [Outside(f"{name}: {what}") for each in judged for what in each["missing"]]
    if known > len(shown):
        not_seen.append(f"incidents of this node: cut at {len(shown)} of {known}")
    if not taken:
        not_seen.append("No facts of this node are stored. That does not say that it is healthy.")
    return Answer(taken or None, tuple(evidence), tuple(not_seen), commands(("node", "--", node)))


def _nodes_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (*row["nodes"], *row["drained"], *([row["node"]] if row["node"] else []))


def _finding(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    fields = {name: value for name, value in found["fields"].items() if value not in (None, [])}
    names = ("signature", "means", "rank", "node", "pid", "device", "phase", "step", "file", "line")
    return {**chosen(found, names), **times(found, "time_s"), "fields": fields}
