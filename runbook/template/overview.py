"""What the files of a job set, over all of them: wanted parameters, or everything that is written.

`settings_in_force` is asked for parameters by name, as a plan is made of them; `all_settings` lists what is there, for
a person. In both the command line wins over a configuration file, and what is not known says where the trail ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runbook.model.template import ParameterNames, Setting, SettingKind, SubmitContext, TemplateFile, Unresolved
from runbook.template.bash.listing import listed_settings
from runbook.template.bash.script import Script, read_script
from runbook.template.budget import TooMuch
from runbook.template.config import edit as config_edit
from runbook.template.config.config_tree import Config, Form, Leaf, key_paths, last_of_mapping
from runbook.template.editing import file_settings, read_all, sourced_files
from runbook.template.text_files import CannotEdit, Language, language_of

_SHORT = {
    "-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-t": "--time", "-p": "--partition",
    "-A": "--account", "-J": "--job-name", "-o": "--output", "-e": "--error", "-w": "--nodelist", "-x": "--exclude",
    "-q": "--qos", "-C": "--constraint", "-D": "--chdir", "-d": "--dependency",
}
"""sbatch(1): short options and what they stand for."""


def settings_in_force(
    files: Sequence[TemplateFile], names: Sequence[ParameterNames], known: SubmitContext | None = None
) -> tuple[Setting, ...]:
    """The parameters that a job's files set, at most one setting each, in the order of `names`.

    `files` are the job script and the configuration files that it names. A key that the script gives as an override
    or as an option wins over the files, and its trail says so; a key that several files set is not known. Where a
    script is past a budget nothing is known.
    """
    try:
        read = read_all([file for file in files if _language(file) is not None], names, known)
        return _in_force(read, names, known)
    except TooMuch as cut:
        path = cut.where.rpartition(":")[0]
        return tuple(
            Setting(name.parameter, name.kind, name.spellings[0], None, path, 1, (), Unresolved(cut.what))
            for name in {item.parameter: item for item in names}.values()
        )


def _in_force(
    read: Sequence[Script | Config], names: Sequence[ParameterNames], known: SubmitContext | None
) -> tuple[Setting, ...]:
    several = sum(not isinstance(item, Config) for item in read) > 1
    scripts: dict[str, list[Setting]] = {}
    configs: dict[str, list[Setting]] = {}
    handed_on: dict[str, list[Setting]] = {}
    by_name = {item.parameter: item for item in names}
    parts = sourced_files(read)
    for item in read:
        for setting in file_settings(item, names):
            if setting.kind is not SettingKind.ENVIRONMENT and item.file.path in parts:
                continue  # it is read where the file is sourced
            if setting.kind is SettingKind.ENVIRONMENT and several and not setting.line:
                continue  # it comes from the script that runs this one, and stands there
            into = configs if isinstance(item, Config) else scripts
            if isinstance(item, Config) and config_edit.only_hands_on(item, by_name[setting.parameter]):
                into = handed_on
            into.setdefault(setting.parameter, []).append(setting)
    chosen: list[Setting] = []
    for name in dict.fromkeys(item.parameter for item in names):
        own, others = scripts.get(name, []), configs.get(name, [])
        if not others and not _left_out(read, by_name[name]):
            others = handed_on.get(name, [])
        if len(own) > 1 or (not own and len(others) > 1):
            chosen.append(_ambiguous(own or others))
        else:
            chosen += [_winning(own[0], others)] if own else others
    referred = sorted({target for setting in chosen for target in setting.references})
    overrides = _overrides([item for item in read if not isinstance(item, Config)], referred, known)
    return tuple(_through_overrides(setting, overrides) for setting in chosen)


def _left_out(read: Sequence[Script | Config], name: ParameterNames) -> bool:
    """Whether a configuration file has the mapping in which the key would stand, and so is where it is absent."""
    return any(
        isinstance(item, Config) and not item.loose and ".".join(path[:-1]) in item.mappings
        for item in read for path in (key_paths(name, item) if isinstance(item, Config) else ()) if len(path) > 1
    )


def _overrides(
    scripts: Sequence[Script], keys: Sequence[str], known: SubmitContext | None
) -> dict[str, Setting]:
    """What the scripts say of these keys."""
    if not keys:
        return {}
    names = [ParameterNames(key, SettingKind.KEY, (key,)) for key in keys]
    files = [script.file for script in scripts]
    return {item.parameter: item for script in read_all(files, names, known) for item in file_settings(script, names)}


def all_settings(files: Sequence[TemplateFile], known: SubmitContext | None = None) -> tuple[Setting, ...]:
    """Everything that a job's files make in force, file by file, in the order of the text.

    `parameter` is the name itself: an option with its dashes, a variable, a directive, a dotted key. `trail` begins
    with what takes it ("train.py at line 12", "srun at line 12"). A configuration key that the command line overrides
    is listed once, where it is overridden. A file that cannot be read gives one setting that says why.
    """
    found: list[Setting] = []
    files_read: list[Config] = []
    scripts: list[Script] = []
    for file in files:
        try:
            language = language_of(file)
        except CannotEdit as refusal:
            found.append(Setting("", SettingKind.KEY, "", None, file.path, 1, (), Unresolved(refusal.what)))
            continue
        if language is Language.BASH:
            try:
                script = read_script(file, (), known, scripts)
                found += (*_directives(script), *listed_settings(script))
                scripts.append(script)
            except TooMuch as cut:
                why = Unresolved(cut.what)
                found.append(Setting("", SettingKind.ARGUMENT, "the script", None, file.path, 1, (), why))
        else:
            files_read.append(config_edit.read_config(file, language))
    keys = [item for config in files_read for item in _keys(config)]
    below: dict[str, list[Setting]] = {}
    for item in keys:
        below.setdefault(item.parameter, []).append(item)
    overridden: set[int] = set()
    for at, item in enumerate(found):
        others = below.get(_as_key(item), []) if item.parameter else []
        if others:
            found[at] = _winning(item, others)
            overridden |= {id(other) for other in others}
    given = {_as_key(item): item for item in found if _as_key(item)}
    return (*found, *(_through_overrides(item, given) for item in keys if id(item) not in overridden))


def _language(file: TemplateFile) -> Language | None:
    try:
        return language_of(file)
    except CannotEdit:
        return None


def _as_key(setting: Setting) -> str:
    """The configuration key that an override, or a dotted option (`--training.batch_size`), stands for."""
    if setting.kind is SettingKind.KEY:
        return setting.parameter
    if setting.kind is SettingKind.ARGUMENT and setting.parameter.startswith("--") and "." in setting.parameter:
        return setting.parameter[2:].replace("-", "_")
    return ""


def _through_overrides(setting: Setting, given: Mapping[str, Setting]) -> Setting:
    """A reference is followed by the program after the command line had its word."""
    for target in setting.references:
        other = given.get(target)
        if other is not None:
            reason = f"it refers to {target}, which {other.file}:{other.line} sets to {other.value or 'another value'}"
            return replace(setting, value=None, unresolved=Unresolved(reason))
    return setting


def _winning(setting: Setting, others: Sequence[Setting]) -> Setting:
    """The script's own word, with what it wins over."""
    if setting.unresolved:
        return setting
    over = tuple(f"wins over {item.file}:{item.line} ({item.value})" for item in others if not item.unresolved)
    return replace(setting, trail=(*setting.trail, *over))


def _ambiguous(settings: Sequence[Setting]) -> Setting:
    shown = ", ".join(
        f"{'not known' if item.value is None else item.value} in {item.file}" + (f":{item.line}" if item.line else "")
        for item in settings
    )
    return replace(settings[0], value=None, unresolved=Unresolved(f"ambiguous: several files set it ({shown})"))


def _directives(script: Script) -> Iterator[Setting]:
    """One setting for each option of the header: the last wins, whether it is written short or long."""
    last = {_SHORT.get(item.option, item.option): item for item in script.header.directives}
    several = Unresolved("the job is heterogeneous: each component has its own directives")
    reason = several if script.header.heterogeneous else None
    for name, item in sorted(last.items(), key=lambda pair: pair[1].start):
        value = None if reason else item.value if item.value is not None else "true"
        yield Setting(name, SettingKind.SBATCH, item.option, value, script.file.path, item.line, ("#SBATCH",), reason)


def _keys(config: Config) -> Iterator[Setting]:
    path = config.file.path
    if config.broken is not None:
        yield Setting("", SettingKind.KEY, "", None, path, config.broken.line, (), Unresolved(config.broken.what))
        return
    lists = {leaf.path for leaf in config.leaves if leaf.form is Form.LIST}
    groups: dict[str, list[Leaf]] = {}
    for leaf in config.leaves:
        if not lists or not any(leaf.path[:size] in lists for size in range(1, len(leaf.path))):
            groups.setdefault(".".join(leaf.path), []).append(leaf)
    for key, leaves in groups.items():
        last = last_of_mapping(config, leaves) if len(leaves) > 1 else None
        first = last or leaves[0]
        reason = Unresolved(first.unresolved, first.raw) if first.unresolved else None
        if len(leaves) > 1 and last is None:
            places = ", ".join(f"line {leaf.line}" for leaf in leaves)
            reason = Unresolved(f"ambiguous: it is set at several places ({places})")
        value = None if reason else first.value
        references = () if config.loose else first.references
        yield Setting(key, SettingKind.KEY, key, value, path, first.line, first.trail, reason, references)
