"""Find and apply over files of any language that has a package here."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.model.template import Edit, ParameterNames, Patch, Setting, SettingKind, Splice, Surroundings, TemplateFile
from runbook.template.bash import edit as bash_edit
from runbook.template.bash import find as bash
from runbook.template.errors import CannotEdit
from runbook.template.language import language
from runbook.template.splices import restore, splice, unified_diff


def find_settings(
    file: TemplateFile, names: Sequence[ParameterNames], known: Surroundings | None = None
) -> tuple[Setting, ...]:
    """The parameters that a template sets, in the order of `names`; an absent one has no setting.

    A value that cannot be followed is None with `unresolved`. `known` is what the script was submitted with.
    A file that cannot be read as a job script sets nothing that we know of: the result is empty.
    """
    try:
        language(file)
    except CannotEdit:
        return ()
    return bash.settings(bash.read_script(file, names, known))


def apply(
    files: Sequence[TemplateFile],
    edits: Sequence[Edit],
    *,
    names: Sequence[ParameterNames] = (),
    known: Surroundings | None = None,
) -> Patch:
    """The files with exactly these edits made; only the bytes of the splices differ.

    `names` are further parameters of the system: they tell the training command and where a new option fits.
    An edit that is already in force changes nothing, so applying twice is applying once. Raises `CannotEdit` when
    an edit cannot be made for certain; then nothing is changed.
    """
    _refuse_contradictions(edits)
    if not edits:
        return Patch(tuple(files), (), "")
    wanted = {item.parameter: item for item in names}
    all_names = (
        *wanted.values(), *(bash_edit.names_of(edit) for edit in edits if edit.parameter not in wanted),
    )
    scripts = []
    for file in files:
        language(file)
        scripts.append(bash.read_script(file, all_names, known))
    shares = _shares(scripts, edits)
    patched: list[TemplateFile] = []
    splices: list[Splice] = []
    notes: list[str] = []
    for script, share in zip(scripts, shares):
        edited = bash_edit.plan_changes(script, share)
        after, made = splice(script.file, edited.changes)
        if made:
            bash_edit.check_result(script, after, share, all_names, known)
        patched.append(after)
        splices += made
        notes += edited.notes
    diff = "".join(unified_diff(before, after) for before, after in zip(files, patched))
    return Patch(tuple(patched), tuple(splices), diff, tuple(notes))


def invert(patch: Patch) -> tuple[TemplateFile, ...]:
    """The original files of a patch, byte for byte."""
    return restore(patch)


def _refuse_contradictions(edits: Sequence[Edit]) -> None:
    wanted: dict[str, str | None] = {}
    for edit in edits:
        if wanted.setdefault(edit.parameter, edit.new) != edit.new:
            raise CannotEdit(
                f"{edit.spellings[0]} is to be both {wanted[edit.parameter]} and {edit.new}",
                where="the plan", next_step="choose one of the two changes",
            )


def _shares(scripts: Sequence[bash.Script], edits: Sequence[Edit]) -> list[list[Edit]]:
    """Each edit goes to the file that sets its parameter, else to the one with the training command.

    `#SBATCH` lines come first, so that a line added for one stays in front of an added `export`.
    """
    if not scripts:
        raise CannotEdit("there is no template to change", where="the job", next_step="give one with --template")
    shares: list[list[Edit]] = [[] for _ in scripts]
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: edit.kind is not SettingKind.SBATCH):
        name = bash_edit.names_of(edit)
        setting = [at for at, script in enumerate(scripts) if any(bash.in_force(script, name))]
        if len(setting) > 1:
            raise CannotEdit(
                f"{edit.spellings[0]} is set in several files",
                where=", ".join(scripts[at].file.path for at in setting),
                next_step="leave it in one of them",
            )
        training = [at for at, script in enumerate(scripts) if script.training]
        job_script = [0] if edit.kind is SettingKind.SBATCH else []
        shares[(setting or job_script or training or [0])[0]].append(edit)
    return shares
