"""Launch templates: find what is set, change exactly that, and undo it to the byte.

A file's language decides who reads it: job scripts are `bash/`, configuration files (YAML, JSON, TOML, literals of a
Python module) are `config/`. docs/templates.md has an example of each function.

- `named_files(file, known)`: the files that a script or a configuration names; `Container.on_node(path)`: where one
  lies that a container shows under another path.
- `programs_started(file, known)`: the Python programs that its commands start; `words_of_files(file, known)`: the words
  behind them that look like files of a configuration.
- `all_settings(files, known)`: everything that they make in force, with where and how it was found.
- `settings_in_force(files, names, known)`, `find_settings(file, names, known)`: the same for parameters by name.
- `apply(files, edits, names=, known=)`: a `Patch` of exactly these edits, with its diff; `invert(patch)` undoes it.
- `wire_copies(files, copies, known)`, `point_to_copies(file, copies, known)`: paths rewritten to copies.
- `tied_by(file)`: by what a copy would have to lie beside the file.
- `CannotEdit`: the refusal, with what, where and what to do next.
"""

from runbook.template.containers import Container
from runbook.template.copies import point_to_copies, tied_by, wire_copies
from runbook.template.editing import apply, find_settings, invert
from runbook.template.named_files import NamedFile, named_files, programs_started, words_of_files
from runbook.template.overview import all_settings, settings_in_force
from runbook.template.text_files import CannotEdit

__all__ = [
    "CannotEdit", "Container", "NamedFile", "all_settings", "apply", "find_settings", "invert", "named_files",
    "point_to_copies", "programs_started", "settings_in_force", "tied_by", "wire_copies", "words_of_files",
]
