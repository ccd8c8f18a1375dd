"""The documentation site in build/site, of docs/ and README.md: `make docs`. Nothing is asked of the network.

    python deploy/docs/build.py

Beside each page lies its Markdown; llms.txt names all of them. The picture of the flow is drawn from its document.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from runbook.flow import END, load_flow
from runbook.locations import playbook_folder
from runbook.report.charts.flow_chart import FlowArrow, FlowBox, FlowPicture, flow_chart

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build"
NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "Begin": ("install", "first-hour", "sandbox"),
    "Concepts": ("flow", "trust", "incident", "report-site"),
    "How to": (
        "diagnose", "predict", "snapshots", "node-check", "probe", "templates", "checkpoints", "submitting", "watch",
        "history", "notifications", "traces", "site", "webhook", "mcp", "two-daemons", "keep",
    ),
    "Reference": (
        "commands", "json", "exit-codes", "inventory", "metrics", "alerts", "lever-list", "signature-list", "xids",
    ),
    "Developers": ("levers", "signatures", "kinds", "contributing"),
}
_STYLE = (
    "<style>.flow-picture{overflow-x:auto;direction:rtl}.flow-picture svg{direction:ltr;min-width:32rem;"
    "max-width:100%;height:auto;background:#fff}"
    ".flow-picture svg rect{fill:#eef3f8;stroke:#456}.flow-picture svg path{fill:none;stroke:#789}"
    ".flow-picture svg marker path{fill:#789}.flow-picture svg text{fill:#223;font-size:12px}</style>"
)


def sources() -> dict[str, str]:
    """The Markdown of each page of the site by its file name."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md"))}
    texts["index.md"] = (REPOSITORY / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    texts["contributing.md"] = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return texts


def build(into: Path) -> None:
    """Write the site into a folder. Raises `CalledProcessError` where Zensical fails."""
    texts = sources()
    pages, site = into / "site-source", into / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    for name, text in texts.items():
        shown = text.replace("\n## ", f"\n{_picture()}\n\n## ", 1) if name == "flow.md" else text
        # What lies outside docs/ is in a checkout, not on the site.
        shown = re.sub(r"\[([^\]\n]+)\]\(\.\./([^)\s]+)\)", r"\1 (`\2`)", shown)
        (pages / name).write_text(shown, encoding="utf-8")
    navigation = [{"runbook": "index.md"}, *(
        {part: [f"{name}.md" for name in names]} for part, names in NAVIGATION.items()
    )]
    # A list of tables with one key each is written alike in JSON and TOML, but for the sign between key and value.
    nav = ", ".join(_table(entry) for entry in navigation)
    (into / "zensical.toml").write_text(
        '[project]\nsite_name = "runbook"\nsite_description = "Brings back GPU training jobs that ran out of memory"\n'
        f'docs_dir = "site-source"\nsite_dir = "site"\nuse_directory_urls = false\nnav = [{nav}]\n'
        "[project.theme]\nfont = false\n[project.markdown_extensions.tables]\n[project.markdown_extensions.toc]\n",
        encoding="utf-8",
    )
    program = Path(sys.executable).parent / "zensical"
    subprocess.run([str(program), "build", "--clean"], cwd=into, check=True)
    for name, text in texts.items():
        (site / name).write_text(text, encoding="utf-8")
    for schema in (REPOSITORY / "docs").rglob("*.json"):
        there = site / schema.relative_to(REPOSITORY / "docs")
        there.parent.mkdir(exist_ok=True)
        shutil.copy(schema, there)
    (site / "llms.txt").write_text("\n".join(_llms(texts)) + "\n", encoding="utf-8")


def _table(entry: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entry.items()) + "}"


def _llms(texts: Mapping[str, str]) -> Iterator[str]:
    yield "# runbook\n\n> Brings back GPU training jobs on Slurm that ran out of memory.\n\n## Pages\n"
    for name, text in texts.items():
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        yield f"- [{title[1] if title else name}]({name})"


def _picture() -> str:
    flow = load_flow(playbook_folder() / "flow.yaml")
    boxes = tuple(FlowBox(box.name, box.title, bool(box.acts)) for box in flow.boxes.values())
    arrows = tuple(
        FlowArrow(box.name, target, outcome)
        for box in flow.boxes.values() for outcome, target in box.next.items() if target != END
    )
    drawn, _ = flow_chart(FlowPicture(flow.title, boxes, arrows), ())
    named = re.sub("<title>.*?</title>", f"<title>{flow.title}</title>", "".join(str(drawn).splitlines()), count=1)
    return f'{_STYLE}<div class="flow-picture">{named}</div>'


if __name__ == "__main__":
    build(BUILD)
    print(f"{BUILD / 'site' / 'index.html'}")
