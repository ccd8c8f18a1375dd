"""Launch templates: find what is set, change exactly that, and undo it to the byte.

`find_settings` and `apply` look at a file's language and hand it to that language's package; today that is
`bash` (job scripts). A further language is a further package with `settings` and `splices` of the same shape,
entered in `language.py`.
"""

from runbook.template.editing import apply, find_settings, invert
from runbook.template.errors import CannotEdit

__all__ = ["CannotEdit", "apply", "find_settings", "invert"]
