"""Launch templates: find what is set, change exactly that, and undo it to the byte.

`find_settings` and `apply` look at a file's language: job scripts are `bash/`, configuration files (YAML, JSON, TOML,
literals of a Python module) are `config/`. `named_files` says which configuration files a job script names, and
`point_to_copies` rewrites the script to copies of them.
"""

from runbook.template.companions import NamedFile, named_files
from runbook.template.copies import point_to_copies, wire_copies
from runbook.template.editing import apply, find_settings, invert
from runbook.template.errors import CannotEdit
from runbook.template.overview import all_settings, settings_in_force

__all__ = [
    "CannotEdit", "NamedFile", "all_settings", "apply", "find_settings", "invert", "named_files", "point_to_copies",
    "settings_in_force", "wire_copies",
]
