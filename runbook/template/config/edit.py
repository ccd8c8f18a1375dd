"""Find and edit keys of a configuration file; every change is read again and must differ in nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from runbook.model.template import Edit, ParameterNames, Setting, SettingKind, TemplateFile, Unresolved
from runbook.template.budget import TooMuch
from runbook.template.config import write
from runbook.template.config.config_tree import (
    Config,
    Form,
    Leaf,
    ParseProblem,
    bare_key,
    has_value,
    holds_in,
    is_wanted_key,
    key_paths,
    last_of_mapping,
    leaves_of,
    with_index,
)
from runbook.template.config.json_toml import read_json, read_toml
from runbook.template.config.yaml_file import read_yaml
from runbook.template.text_files import CannotEdit, Change, Language, line_of, not_in_force, not_safely, to_bytes


@lru_cache(maxsize=8)
def read_config(file: TemplateFile, language: Language) -> Config:
    """Read a configuration file. One that is not understood has `broken`. The last ones are remembered: a file is asked
    for what it names, for its settings and for its changes in turn."""
    read = {Language.YAML: read_yaml, Language.JSON: read_json, Language.TOML: read_toml}.get(language)
    if read is None:
        from runbook.template.config.python_file import read_python

        read = read_python
    try:
        return with_index(read(file))
    except TooMuch as cut:
        why = cut.what
    except RecursionError:
        why = "the file is nested deeper than is read"
    return Config(file, to_bytes(file.text), language, broken=ParseProblem(1, why), loose=language is Language.PYTHON)


def deciding_leaf(config: Config, name: ParameterNames) -> tuple[Leaf | None, str]:
    """The leaf that decides, or why nothing can be said; None and "" for a key that is absent for certain."""
    wanted = key_paths(name, config) if name.kind is SettingKind.KEY else ()
    if not wanted:
        return None, ""
    if config.broken is not None:
        return None, f"{config.broken.what} (line {config.broken.line})"
    found = list({id(leaf): leaf for path in wanted for leaf in leaves_of(config, path)}.values())
    last = last_of_mapping(config, found) if len(found) > 1 else None
    if last is not None:
        return last, last.unresolved
    if len(found) > 1:
        shown = ", ".join(f"line {leaf.line}" for leaf in found)
        return found[0], f"ambiguous: it is set at several places ({shown})"
    if found:
        return found[0], found[0].unresolved
    for path in wanted:
        problem = _above(config, path)
        if problem[1]:
            return problem
    if config.open_ended is not None:
        return None, f"it is not set here, but {config.open_ended.what}"
    return None, _mentioned(config, wanted)


def _above(config: Config, path: tuple[str, ...]) -> tuple[Leaf | None, str]:
    """A mapping where a value was wanted, or a value where the path goes on."""
    mapping = config.mappings.get(".".join(path))
    if mapping is not None and not config.loose:
        return None, f"it is a mapping and no value (line {mapping.line})"
    if config.loose:
        # In code the end of the path is enough: `args.size = compute()` makes something, and which is not known.
        made = next(
            (item for item in config.mapping_nodes if item.call and item.path[:-1][-len(path):] == path), None
        )
        if made is not None:
            return None, f"what a call makes decides (line {made.line})"
    for size in range(len(path)):
        ends: list[Leaf] = []
        if config.loose:
            ends = [leaf for leaf in leaves_of(config, path[:size]) if not _names_no_section(leaf)] if size else []
        else:
            ends = [leaf for leaf in config.by_key.get(".".join(path[:size]), []) if leaf.form is not Form.NULL]
            for strange in ("<<", "?"):
                ends += config.by_key.get(".".join((*path[:size], strange)), [])
        for leaf in ends:
            shown = ".".join(leaf.path)
            return leaf, f"the trail ends at {shown} (line {leaf.line}): {leaf.unresolved or 'it is a value'}"
    return None, ""


def _mentioned(config: Config, wanted: Sequence[tuple[str, ...]]) -> str:
    """In code, a name that stands where no plain value was found."""
    for path in wanted if config.mentions else ():
        match = re.search(rb"(?<!\w)" + re.escape(path[-1].encode()) + rb"(?!\w)", config.mentions)
        if match:
            return f"{path[-1]} stands at line {line_of(config.data, match.start())}, where no plain value was found"
    return ""


def only_hands_on(config: Config, name: ParameterNames) -> bool:
    """Whether a program has no word of its own beside a configuration file that sets the key: it only hands on what it
    was given, as in `max_turns=config.max_turns` and `train_dataset=train_dataset`, or reads it: `cfg.get("size")`."""
    if not config.loose:
        return False
    leaf, problem = deciding_leaf(config, name)
    if leaf is None and problem and config.broken is None:
        return all(_only_reads(config, path) for path in key_paths(name, config))
    if leaf is None or not problem:
        return False
    found = [
        (item, size < len(path)) for path in key_paths(name, config) for size in range(1, len(path) + 1)
        for item in leaves_of(config, path[:size])
    ]
    own = [_handed_on(item) or (section and _is_a_name(item)) for item, section in found]
    return any(own) and all(mine or _another_of_the_kind(item) for mine, (item, _) in zip(own, found))


def _is_a_name(leaf: Leaf) -> bool:
    """A section that takes what was read under another name: `{"training": TRAIN_CFG}`, for a tracker or a log."""
    return leaf.value is None and re.fullmatch(r"[A-Za-z_][\w.]*", leaf.raw) is not None


def _only_reads(config: Config, path: tuple[str, ...]) -> bool:
    """Whether code without a value for the key asks a configuration for it by its name, or has the name in a text."""
    key = re.escape(path[-1].encode())
    quoted = re.compile(rb"""["']""" + key + rb"""["']""")
    made = [item for item in config.mapping_nodes if item.call and item.path[:-1][-len(path):] == path]
    if any(not quoted.search(config.data, item.start, item.end) for item in made):
        return False
    set_later = rb"""setattr\([^()\n]{0,200}["']""" + key + rb"""["']|\.update\([^()\n]{0,400}\b""" + key
    return re.search(set_later, config.data) is None


def _names_no_section(leaf: Leaf) -> bool:
    """Whether code that computes a value only has the name of a section: a variable of a function (`model = build()`,
    where the key is `model.size`; an attribute of an object that is made: `self.data = dataset`), or what is handed on
    under its own name."""
    local = len(leaf.path) > 1 and (leaf.function == leaf.path[-2] or leaf.path[-2] == "self")
    return leaf.value is None and (local or _handed_on(leaf))


def _handed_on(leaf: Leaf) -> bool:
    """`gconfig=config.gconfig.new(…)`, `size=cfg["a"]["size"]`, `size=int(cfg.get("size", 8))`: a keyword, or an entry
    of a dict, that takes its own name's value."""
    if leaf.value is not None:
        return False
    key = re.escape(leaf.path[-1])
    of = r"""(?:int\(|float\()?[A-Za-z_][\w.]*(?:\[["'][\w.-]+["']\])*"""
    if re.fullmatch(rf"""{of}(?:\[["']{key}["']\]|\.get\(["']{key}["'](?:,[^()\n]*)?\))\)?""", leaf.raw):
        return True
    own = rf"(?:[A-Za-z_]\w*\.)*{key}"
    whole = re.match(own, leaf.raw)
    return whole is not None and (whole.end() == len(leaf.raw) or leaf.raw.startswith(".new(", whole.end()))


def _another_of_the_kind(leaf: Leaf) -> bool:
    """`batch_size=val_batch_size` in another call: what has a longer name of its own is no value of this one."""
    own = rf"(?:[A-Za-z_]\w*\.)*\w+_{re.escape(leaf.path[-1])}"
    return leaf.value is None and re.fullmatch(own, leaf.raw) is not None


def config_settings(config: Config, names: Sequence[ParameterNames]) -> tuple[Setting, ...]:
    """A setting for each key that is there, or of which it is not known whether it is."""
    found = []
    for name in names:
        leaf, problem = deciding_leaf(config, name)
        if leaf is None and not problem:
            continue
        spelling = next(item for item in name.spellings if not item.startswith("-")).lstrip("+~")
        if leaf is not None and not problem:
            spelling = _spelling(config, leaf, name)
        found.append(
            Setting(
                name.parameter, name.kind, spelling, leaf.value if leaf is not None and not problem else None,
                config.file.path, leaf.line if leaf is not None else None, leaf.trail if leaf is not None else (),
                Unresolved(problem, leaf.raw if leaf is not None else "") if problem else None,
                leaf.references if leaf is not None and not config.loose else (),
            )
        )
    return tuple(found)


def _spelling(config: Config, leaf: Leaf, name: ParameterNames) -> str:
    keys = [item.lstrip("+~") for item in name.spellings if not item.startswith("-") and holds_in(item, config)]
    return next((key for key in keys if is_wanted_key(config, leaf.path, tuple(bare_key(key).split(".")))), keys[0])


def plan_changes(config: Config, edits: Sequence[Edit]) -> tuple[Change, ...]:
    """Every edit as changes of this file. Raises `CannotEdit`."""
    changes: list[Change] = []
    for edit in edits:
        if not _follows(config, edit, edits):
            changes += _changes_of_edit(config, edit)
    return tuple(dict.fromkeys(changes))


def _follows(config: Config, edit: Edit, edits: Sequence[Edit]) -> bool:
    """Whether the key refers to one that another of the edits gives the same value: then it changes by itself."""
    if edit.kind is not SettingKind.KEY:
        return False
    leaf, problem = deciding_leaf(config, ParameterNames(edit.parameter, edit.kind, edit.spellings, edit.flag))
    if leaf is None or problem or (edit.old is not None and not has_value(leaf, edit.old)):
        return False
    return any(
        other.new == edit.new and other.parameter != edit.parameter and bare_key(spelling) in leaf.references
        for other in edits for spelling in other.spellings
    )


def _changes_of_edit(config: Config, edit: Edit) -> list[Change]:
    name = ParameterNames(edit.parameter, edit.kind, edit.spellings, edit.flag)
    keys = key_paths(name, config)
    spelling = edit.spellings[0]
    if edit.kind is not SettingKind.KEY or not keys:
        what = {
            SettingKind.ARGUMENT: "an option of a command line",
            SettingKind.ENVIRONMENT: "a variable of the environment",
            SettingKind.SBATCH: "a #SBATCH line",
            SettingKind.KEY: "an option of a command line",
        }[edit.kind]
        raise CannotEdit(
            f"{spelling} is {what}, and a {config.language} file has none",
            where=f"{config.file.path}:1", next_step="give the job script that names this file",
        )
    leaf, problem = deciding_leaf(config, name)
    where = f"{config.file.path}:{leaf.line if leaf is not None else config.broken.line if config.broken else 1}"
    if problem:
        raise not_safely(bare_key(spelling), edit.new, problem, where)
    if leaf is None:
        return [] if edit.new is None else _added(config, edit, keys)
    if edit.new is not None and has_value(leaf, edit.new):
        return []
    if edit.old is not None and not has_value(leaf, edit.old):
        raise CannotEdit(
            f"{bare_key(spelling)} is {leaf.value}, but the change was planned for {edit.old}", where=where,
            next_step="plan again from the present file",
        )
    if edit.new is None:
        return [write.remove_leaf(config, leaf)]
    if leaf.override_target is not None:
        return write.add_to_mapping(config, leaf.override_target, leaf.path[-1:], edit.new, bare_key(spelling))
    return [write.change_leaf(config, leaf, edit.new)]


def _added(config: Config, edit: Edit, keys: Sequence[tuple[str, ...]]) -> list[Change]:
    """By the first spelling for which there is a place."""
    refusals = []
    for path in keys:
        empty = _empty_parent(config, path)
        try:
            if empty is not None:
                return [_below_empty(config, empty, path, edit.new or "")]
            return write.add_key(config, path, edit.new or "", ".".join(path))
        except CannotEdit as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _empty_parent(config: Config, path: tuple[str, ...]) -> Leaf | None:
    """A key without a value (`trainer:`), below which the wanted one belongs."""
    if config.loose:
        return None
    return next(
        (leaf for leaf in config.leaves if leaf.form is Form.NULL and leaf.path == path[: len(leaf.path)]), None
    )


def _below_empty(config: Config, leaf: Leaf, path: tuple[str, ...], new: str) -> Change:
    where = f"{config.file.path}:{leaf.line}"
    rest = path[len(leaf.path) :]
    if config.language is not Language.YAML or leaf.start != leaf.end or leaf.pinned or leaf.start < 0 or leaf.flow:
        raise CannotEdit(
            f"{'.'.join(path)} cannot be added: {'.'.join(leaf.path)} is null", where=where, next_step="add it by hand"
        )
    return write.below_empty(config, leaf, rest, new, where)


def check_result(before: Config, after: Config, edits: Sequence[Edit]) -> None:
    """Every edit is in force in the changed file, and no other leaf differs."""
    if after.broken is not None:
        raise CannotEdit(
            f"the changed file would not be understood: {after.broken.what}",
            where=f"{after.file.path}:{after.broken.line}", next_step="make the change by hand",
        )
    wanted: list[tuple[str, ...]] = []
    for edit in edits:
        name = ParameterNames(edit.parameter, edit.kind, edit.spellings, edit.flag)
        wanted += key_paths(name, after)
        leaf, problem = deciding_leaf(after, name)
        in_force = leaf is None if edit.new is None else leaf is not None and has_value(leaf, edit.new)
        if problem or not in_force:
            present = leaf.value if leaf is not None else "absent"
            line = leaf.line if leaf is not None else 1
            raise not_in_force(bare_key(edit.spellings[0]), present, edit.new, problem, f"{after.file.path}:{line}")
    old, new_leaves = _rest(before, wanted), _rest(after, wanted)
    for path in dict.fromkeys((*old, *new_leaves)):
        if [item[0] for item in old.get(path, [])] != [item[0] for item in new_leaves.get(path, [])]:
            lines = [line for _, line in old.get(path, new_leaves.get(path, []))]
            raise CannotEdit(
                f"the change would also change {'.'.join(path)}", where=f"{before.file.path}:{lines[0]}",
                next_step="write that value out there, then try again",
            )


def _rest(
    config: Config, wanted: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], list[tuple[tuple[int, Form, str], int]]]:
    """What every other leaf is: its document, its type and its value."""
    found: dict[tuple[str, ...], list[tuple[tuple[int, Form, str], int]]] = {}
    for leaf in config.leaves:
        edited = any(
            is_wanted_key(config, leaf.path[:size], path)
            for path in wanted
            for size in range(1, len(leaf.path) + 1)
        )
        if not edited and not _emptied(leaf, wanted):
            value = (leaf.document, leaf.form, leaf.value if leaf.value is not None else leaf.raw)
            found.setdefault(leaf.path, []).append((value, leaf.line))
    return found


def _emptied(leaf: Leaf, wanted: Sequence[tuple[str, ...]]) -> bool:
    """A key without a value that becomes the mapping of the wanted one."""
    return leaf.form is Form.NULL and any(path[: len(leaf.path)] == leaf.path for path in wanted)
