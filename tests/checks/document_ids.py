"""No id of a document stands in Python: signatures, systems, levers, parameters, kinds, node rules, XIDs, boxes.

    python -m tests.checks.document_ids             # fails with each place; `make check` runs it
    python -m tests.checks.document_ids --write     # writes what is found to the list of what is still allowed

Documents carry attributes and traits, and the code asks for those. Ids that no other word could be (`PT-CUDA-13`,
`verl`, `smaller_micro_batch`) are found wherever they are quoted; an id that is a common word too (`nodes`, `report`)
where it is compared with something that holds an id.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

from tests.checks.literals import PRODUCT, REPOSITORY, Finding, literals, modules, verdict

ALLOWED = Path(__file__).with_name("document_ids.allowed")
OWN_WORDS = frozenset({
    "log_level",  # an argument of uvicorn
    "expandable_segments",  # an option of PyTorch's allocator
    "kv_heads",  # a name that lever documents give an argument, as they give `heads`
    # Figures of nvidia-smi's report and of the node probe's document, after which rules of the node check are called:
    "recovery_action", "row_remap_failed", "row_remap_pending", "unrepairable_memory",
    "cgroup", "program",  # of /proc, and of a launcher's command line; details of kinds are called so, too
    "accelerate", "trl",  # programs of a command line, as torchrun is one
    "config_file", "config_name", "config_path",  # arguments of Hydra, ml_collections and draccus
    "lightning",  # a package of Python
    "log_probs", "optimizer_step", "weight_sync", "data_loading",  # phases of a training step (`model/log.py`)
})
"""Words of the code's own vocabulary that are ids of a document by chance."""
_HOLDS_AN_ID = re.compile(
    r"^(?:id|ids|signature|signatures|system|framework|lever|levers|parameter|ladder|box|box_id|rule|kind|detail|xid)$"
)
_SIGNATURE = re.compile(r"^[A-Z][A-Z0-9]*(?:-[A-Za-z0-9]+)+$")
_SIGNATURE_PREFIX = re.compile(r"^[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)*-$")


def main() -> int:
    ids, systems, xids = _ids(REPOSITORY / "playbooks")
    found = [item for file, tree in modules(PRODUCT) for item in _found(file, tree, ids, systems, xids)]
    return verdict(found, ALLOWED, "Give the document an attribute or a trait, and ask for that.")


def _ids(folder: Path) -> tuple[frozenset[str], frozenset[str], frozenset[int]]:
    """All ids of all documents, those of systems with the names that logs give them, and XIDs."""
    ids: set[str] = set()
    systems: set[str] = set()
    xids: set[int] = set()

    def collect(value: object) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("id"), str):
                ids.add(value["id"])
            if isinstance(value.get("xid"), int):
                xids.add(value["xid"])
            systems.update(value[key] for key in ("framework", "engine") if isinstance(value.get(key), str))
            if isinstance(value.get("frameworks"), list):
                systems.update(item["id"] for item in value["frameworks"])
            if isinstance(value.get("boxes"), dict):
                ids.update(value["boxes"])
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    for path in sorted(folder.rglob("*.yaml")):
        document = YAML(typ="safe").load(path)
        collect(document)
        if path.parent.name == "levers":
            systems.add(document["id"])
    return frozenset(ids), frozenset(systems), frozenset(xids)


def _found(
    file: str, tree: ast.Module, ids: frozenset[str], systems: frozenset[str], xids: frozenset[int]
) -> Iterator[Finding]:
    compared = {id(node): node for node in _compared_with_ids(tree)}
    for node in literals(tree):
        text = str(node.value)
        begins = _SIGNATURE_PREFIX.match(text) and any(item.startswith(text) for item in ids)
        if _own(text, ids, systems) or begins or (id(node) in compared and text in ids - OWN_WORDS):
            yield Finding(file, node.lineno, text)
    for node in compared.values():
        if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value in xids:
            yield Finding(file, node.lineno, f"XID {node.value}")


def _own(text: str, ids: frozenset[str], systems: frozenset[str]) -> bool:
    """Whether the text can be nothing else than an id."""
    if text in OWN_WORDS:
        return False
    return text in systems or (text in ids and ("_" in text or _SIGNATURE.match(text) is not None))


def _compared_with_ids(tree: ast.Module) -> Iterator[ast.Constant]:
    """Literals in comparisons with, and matches on, something whose name says that it holds an id."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]  # type: ignore[list-item]
        else:
            continue
        if any(_HOLDS_AN_ID.match(_last_name(side)) for side in sides):
            yield from (part for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant))


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    sys.exit(main())
