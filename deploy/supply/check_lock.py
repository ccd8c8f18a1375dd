"""Whether the lock, the bill of materials and the list of licences fit each other and pyproject.toml.

    python deploy/supply/check_lock.py                  # what does not fit, exit code 1
    python deploy/supply/check_lock.py --write SBOM     # keep a bill of materials, and write the licences from it
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = HERE.parents[1] / "pyproject.toml"
LOCK, SBOM, LICENCES = HERE / "requirements.lock", HERE / "sbom.cdx.json", HERE / "licences.txt"
EXTRAS = ("postgres", "mcp")
"""What a deployment installs beside what every installation needs."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)(?: *; *([^\\]+?))? *\\?$", re.MULTILINE)


def pins() -> dict[str, dict[str, int]]:
    """The hashes of each version, by package: a package may be locked at one version for each release of Python."""
    text = LOCK.read_text(encoding="utf-8")
    found: dict[str, dict[str, int]] = {}
    starts = list(_PIN.finditer(text))
    for match, following in zip(starts, [*starts[1:], None], strict=True):
        part = text[match.end() : following.start() if following else len(text)]
        found.setdefault(canonicalize_name(match[1]), {})[match[2]] = part.count("--hash=sha256:")
    return found


def components() -> dict[str, dict[str, Any]]:
    document = json.loads(SBOM.read_text(encoding="utf-8"))
    return {canonicalize_name(item["name"]): item for item in document["components"]}


def licence(component: dict[str, Any]) -> str:
    """What the package says of its licence, in the shortest form that it gives."""
    said = []
    for item in component.get("licenses", ()):
        one = item.get("expression") or item.get("license", {}).get("id") or item.get("license", {}).get("name") or ""
        if one and "\n" not in one:
            said.append(one.removeprefix("License :: OSI Approved :: ").removeprefix("declared license of "))
    return min(dict.fromkeys(said), key=len, default="not said")


def licences() -> str:
    return "".join(
        f"{name} {item['version']}: {licence(item)}\n" for name, item in sorted(components().items())
    )


def problems() -> list[str]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    locked, listed = pins(), components()
    found = []
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name not in locked:
            found.append(f"{name} is needed and not locked")
        elif not all(requirement.specifier.contains(version) for version in locked[name]):
            found.append(f"{name} is locked at {', '.join(locked[name])}, and {requirement.specifier} is needed")
    found += [f"{name} is locked without a hash" for name, versions in locked.items() if not all(versions.values())]
    for name, item in listed.items():
        if name not in locked:
            found.append(f"{name} is in the bill of materials and not locked")
        elif item["version"] not in locked[name]:
            found.append(f"{name} is {item['version']} in the bill of materials and not in the lock")
    if LICENCES.read_text(encoding="utf-8") != licences():
        found.append("licences.txt is not what the bill of materials says")
    return found


def main() -> int:
    if sys.argv[1:2] == ["--write"]:
        document = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
        # Where each package's pages are is no part of what is deployed.
        for item in document["components"]:
            item.pop("externalReferences", None)
        document.get("metadata", {}).pop("tools", None)
        SBOM.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        LICENCES.write_text(licences(), encoding="utf-8")
    found = problems()
    for line in found:
        print(line)
    if found:
        print("next: make lock")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
