"""The Grafana dashboard as code: `python deploy/grafana/dashboard.py > deploy/grafana/runbook.json`.

Counters are taken through increase(), figures that may fall through delta(). Several daemons over one store say the
same, so the greatest of them counts and not their sum.
"""

from __future__ import annotations

import json
import sys
from typing import Any

CLUSTER = 'cluster=~"$cluster"'
SOURCE = {"type": "prometheus", "uid": "$datasource"}
HOUR = 3600
TOOL = 'by="tool"'
CHECKS = 'box="check_node"'


def rise(metric: str, labels: str = "", window: str = "$__range") -> str:
    """How much a counter rose in the window, on each label set."""
    return f"max without (instance, job) (increase({metric}{{{_selector(labels)}}}[{window}]))"


def now(metric: str, labels: str = "") -> str:
    """The figure as it stands, on each label set."""
    return f"max without (instance, job) ({metric}{{{_selector(labels)}}})"


def _selector(labels: str) -> str:
    return ", ".join(filter(None, (CLUSTER, labels)))


def quantile(share: float, metric: str, by: str = "", window: str = "$__range") -> str:
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, sum by ({labels}) ({rise(f'{metric}_bucket', window=window)}))"


class Board:
    """Panels from left to right, 24 columns wide."""

    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self._x, self._y, self._row_height = 0, 0, 0

    def row(self, title: str) -> None:
        self._break()
        self._add("row", title, 24, 1, {"collapsed": False, "panels": []})

    def panel(
        self, kind: str, title: str, words: str, queries: list[tuple[str, str]], *, width: int, height: int = 4,
        unit: str = "short", instant: bool = True, options: dict[str, Any] | None = None,
        custom: dict[str, Any] | None = None, more: dict[str, Any] | None = None,
    ) -> None:
        """`queries`: expression and legend."""
        targets = [
            {
                "refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expression, "legendFormat": legend,
                "instant": instant, "range": not instant, "format": "table" if kind == "table" else "time_series",
            }
            for place, (expression, legend) in enumerate(queries)
        ]
        defaults: dict[str, Any] = {"unit": unit, "custom": custom or {}}
        defaults.update((more or {}).pop("defaults", {}))
        self._add(kind, title, width, height, {
            "description": words, "datasource": SOURCE, "targets": targets, "options": options or {},
            "fieldConfig": {"defaults": defaults, "overrides": []}, **(more or {}),
        })

    def stat(self, title: str, words: str, expression: str, unit: str = "short", **rest: Any) -> None:
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
            "graphMode": "none",
        }
        self.panel("stat", title, words, [(expression, "")], width=4, unit=unit, options=options, **rest)

    def bars(self, title: str, words: str, expression: str, legend: str, unit: str = "short", width: int = 8) -> None:
        options = {
            "orientation": "horizontal", "displayMode": "basic",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
        self.panel("bargauge", title, words, [(expression, legend)], width=width, height=8, unit=unit, options=options)

    def lines(self, title: str, words: str, queries: list[tuple[str, str]], unit: str = "short", **rest: Any) -> None:
        self.panel("timeseries", title, words, queries, width=8, height=8, unit=unit, instant=False, **rest)

    def _add(self, kind: str, title: str, width: int, height: int, more: dict[str, Any]) -> None:
        if self._x + width > 24:
            self._break()
        place = {"x": self._x, "y": self._y, "w": width, "h": height}
        self.panels.append({"id": len(self.panels) + 1, "type": kind, "title": title, "gridPos": place, **more})
        self._x += width
        self._row_height = max(self._row_height, height)

    def _break(self) -> None:
        self._y += self._row_height
        self._x, self._row_height = 0, 0


def panels() -> list[dict[str, Any]]:
    board = Board()
    alive = {
        "defaults": {
            "mappings": [
                {"type": "value", "options": {"1": {"text": "alive", "color": "green"}}},
                {"type": "value", "options": {"0": {"text": "NOT WORKING", "color": "red"}}},
            ],
            "noValue": "NOT SEEN",
        }
    }
    board.row("At a glance")
    board.stat(
        "The tool", "Whether a daemon works on incidents.", f"max by (cluster) (runbook_driver_up{{{CLUSTER}}})",
        more=alive,
    )
    board.stat(
        "Waits for a person", "Incidents that wait for a yes, were interrupted, or escalated within 72 hours.",
        f'count(max by (incident) (runbook_incident_info{{{CLUSTER}, '
        'state=~"awaiting_approval|interrupted|escalated"})) or vector(0)',
        more={"defaults": {"thresholds": {"mode": "absolute", "steps": [
            {"color": "green", "value": None}, {"color": "red", "value": 1},
        ]}}},
    )
    board.stat("At work", "Incidents that have not ended.", f"sum({now('runbook_open_incidents')})")
    board.stat(
        "Opened", "Incidents opened in the time shown.", f"round(sum({rise('runbook_incidents_opened_total')}))"
    )
    board.stat(
        "Came back by themselves", "Jobs proven to run past their failure, with no person's yes, in the time shown.",
        f"round(sum({rise('runbook_recoveries_total', TOOL)}))",
    )
    board.stat(
        "Drained nodes", "Drained by this tool and not given back by it.", f"sum({now('runbook_drained_nodes')})"
    )
    board.stat(
        "Failure to relaunch, median", "Of the relaunches in the time shown.",
        quantile(0.5, "runbook_failure_to_relaunch_seconds"), "s",
    )
    board.stat(
        "Failure to proof, median", "Until the relaunched job ran past the failing step and wrote a checkpoint.",
        quantile(0.5, "runbook_failure_to_proof_seconds"), "s",
    )
    board.stat(
        "Failure to proof, 9 of 10", "Nine of ten proofs came within this time.",
        quantile(0.9, "runbook_failure_to_proof_seconds"), "s",
    )
    board.stat(
        "GPU hours lost", "Jobs stood still, or trained again what they had trained before.",
        f"sum({rise('runbook_gpu_lost_seconds_total')}) / {HOUR}", "h",
    )
    board.stat(
        "GPU hours saved, at least",
        "Training that relaunched jobs had done by their proof where no person had said yes; nothing after it counts.",
        f"sum({rise('runbook_gpu_saved_seconds_total')}) / {HOUR}", "h",
    )
    board.stat(
        "… had a person come after $person_minutes min",
        "GPUs of the jobs that came back by themselves, times the minutes chosen, less the time they stood still.",
        f"(sum({rise('runbook_recovered_gpus_total', TOOL)}) * $person_minutes * 60"
        f" - sum({rise('runbook_recovered_gpu_stopped_seconds_total', TOOL)})) / {HOUR}", "h",
    )
    board.row("What jobs died of, and what became of them")
    board.bars(
        "Died of", "Incidents by diagnosis of their first failure, in the time shown.",
        "clamp_min(round(sum by (diagnosis) (max without (instance, job) "
        f"(delta(runbook_incidents{{{CLUSTER}}}[$__range])))), 0) > 0",
        "{{diagnosis}}",
    )
    stacked = {"drawStyle": "bars", "stacking": {"mode": "normal"}, "fillOpacity": 60}
    board.lines(
        "Endings", "How work on incidents ended. One that is taken up again ends again.",
        [(f"sum by (outcome) ({rise('runbook_incident_endings_total', window='$__interval')})", "{{outcome}}")],
        custom=stacked,
        # Shorter than a few scrapes, and increase() would see nothing.
        more={"interval": "5m"},
    )
    board.bars(
        "Stored, by diagnosis", "All stored incidents, whenever they were opened.",
        f"sum by (diagnosis) ({now('runbook_incidents')}) > 0", "{{diagnosis}}",
    )
    board.panel(
        "table", "Open, and ended within 72 hours", "The link opens the report.",
        [(
            "max by (cluster, incident, job_id, user, node, diagnosis, state, report_url) "
            f"(runbook_incident_info{{{CLUSTER}}})", "",
        )],
        width=24, height=9,
        more={
            "transformations": [{
                "id": "organize", "options": {"excludeByName": {"Time": True, "Value": True, "cluster": True}},
            }],
            "defaults": {"links": [{"title": "Report", "url": "${__data.fields.report_url}", "targetBlank": True}]},
        },
    )
    board.row("Levers and nodes")
    board.panel(
        "table", "Levers", "Relaunched jobs by lever: tried, proven, failed again.",
        [
            (f"sum by (lever) ({now('runbook_levers_tried_total')})", "tried"),
            (f"sum by (lever) ({now('runbook_levers_worked_total')})", "worked"),
            (f"sum by (lever) ({now('runbook_levers_failed_total')})", "failed"),
        ],
        width=8, height=8,
        more={"transformations": [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {
                "Value #A": "tried", "Value #B": "worked", "Value #C": "failed again",
            }}},
        ]},
    )
    board.bars(
        "Share of tries that worked", "Of the tries that are judged.",
        f"sum by (lever) ({now('runbook_levers_worked_total')}) / (sum by (lever) "
        f"({now('runbook_levers_worked_total')}) + sum by (lever) ({now('runbook_levers_failed_total')}))",
        "{{lever}}", "percentunit",
    )
    board.bars(
        "Node checks", "How checks of nodes ended, in all stored incidents.",
        f"sum by (outcome) ({now('runbook_box_outcomes_total', CHECKS)})", "{{outcome}}",
    )
    board.bars(
        "Nodes that did not answer", "In stored incidents, by reason.",
        f"sum by (reason) ({now('runbook_unreached_nodes')})", "{{reason}}",
    )
    board.lines(
        "Nodes drained", "By this tool, and not given back by it.",
        [(f"sum by (cluster) ({now('runbook_drained_nodes')})", "{{cluster}}")],
    )
    board.bars(
        "Time in a box, 9 of 10", "Nine of ten visits took no longer, in the time shown.",
        f"{quantile(0.9, 'runbook_box_duration_seconds', 'box')} > 0", "{{box}}", "s",
    )
    board.row("The tool itself")
    board.lines(
        "Heartbeat", "How long ago the daemon's loop came round.",
        [(f"time() - runbook_heartbeat_timestamp_seconds{{{CLUSTER}}}", "{{instance}}")], "s",
    )
    board.lines(
        "Spool", "Events that wait, and files that were none.",
        [(now("runbook_spool_depth"), "waiting"), (now("runbook_spool_bad"), "set aside")],
    )
    board.lines(
        "Oldest event in the spool", "How long it has waited.", [(now("runbook_spool_oldest_age_seconds"), "age")], "s"
    )
    board.lines(
        "Longest wait for a yes", "Since the oldest unanswered question was asked.",
        [("time() - min(runbook_oldest_approval_timestamp_seconds)", "waits")], "s",
    )
    board.panel(
        "table", "Alerts", "Of runbook, pending and firing.",
        [('ALERTS{alertname=~"Runbook.*"}', "")], width=8, height=8,
        more={"transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]},
    )
    board.panel(
        "table", "Version", "What runs where.", [(f"runbook_build_info{{{CLUSTER}}}", "")], width=8, height=8,
        more={"transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]},
    )
    return board.panels


def variable(name: str, kind: str, label: str, **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "label": label, "hide": 0, **rest}


def dashboard() -> dict[str, Any]:
    every = {"selected": True, "text": "All", "value": "$__all"}
    return {
        "uid": "runbook", "title": "runbook: training jobs that died of memory", "tags": ["runbook", "slurm", "gpu"],
        "description": "Which jobs died of what, how many came back by themselves, and whether the tool is alive.",
        "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1, "refresh": "1m",
        "time": {"from": "now-7d", "to": "now"}, "timezone": "", "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            variable("datasource", "datasource", "Prometheus", query="prometheus"),
            variable(
                "cluster", "query", "Cluster", datasource=SOURCE, includeAll=True, multi=True, allValue=".*",
                query={"query": "label_values(runbook_incidents_opened_total, cluster)", "refId": "cluster"},
                refresh=2, current=every,
            ),
            variable(
                "person_minutes", "textbox", "A person would have come after (minutes)", query="60",
                current={"text": "60", "value": "60"},
            ),
        ]},
        "panels": panels(),
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    sys.stdout.write("\n")
