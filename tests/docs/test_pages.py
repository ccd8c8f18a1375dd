"""README, CONTRIBUTING and docs/: links lead somewhere, commands exist with their options, generated pages are current,
every page stands in the site's navigation, and the site builds."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runbook.cli.command_line import cli

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "SECURITY.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
)


def _anchors(page: Path) -> set[str]:
    """As the daemon makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9]+", "-", head.lower()).strip("-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_shown_command_exists_with_its_options(page: Path) -> None:
    for line in re.findall(r"^    (?:\$ )?(?:sudo )?runbook (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        for part in re.split(r" \| | > | && ", re.split(r"\s#|\s{2,}", line)[0]):
            command: click.Command = cli
            words = shlex.split(part, posix=False)
            words = words[1:] if words[:1] == ["runbook"] else words
            while words and isinstance(command, click.Group):
                name = words.pop(0)
                if name.startswith("-"):
                    break
                assert name in command.commands or part != re.split(r" \| ", line)[0], f"{page.name}: {line}"
                if name not in command.commands:
                    words = []
                    break
                command = command.commands[name]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            for word in words:
                if word == "--":
                    break
                if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word) and word not in ("--help", "--version"):
                    assert word.partition("=")[0] in known or command.name == "explain", f"{page.name}: {line}: {word}"


def test_generated_pages_are_current() -> None:
    made = subprocess.run(
        [sys.executable, "deploy/docs/reference.py", "--check"], cwd=REPOSITORY, capture_output=True, text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.packaging
def test_the_site_builds_with_every_page_its_markdown_and_the_flow_drawn(tmp_path: Path) -> None:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: pip install '.[docs]'")
    made = subprocess.run(
        [sys.executable, "-c", "import sys, pathlib; sys.path.insert(0, 'deploy/docs'); import build; "
         "build.build(pathlib.Path(sys.argv[1]))", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )
    assert made.returncode == 0, made.stderr
    site = tmp_path / "site"
    index = (site / "index.html").read_text(encoding="utf-8")
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file()
        assert (site / page.name).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
        assert f"({page.name})" in listed
        assert f'{page.stem}.html"' in index, f"{page.name} stands in no navigation"
    assert "<svg" in (site / "flow.html").read_text(encoding="utf-8")
