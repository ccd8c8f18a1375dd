"""Makes ``simulator``, and ``runbook.allocator`` on which it stands, importable for the scripts of this folder.

Folders ``simulator`` and ``runbook`` beside them win, so that they can be copied to a place of their own together;
otherwise the simulator lies beside ``examples``, in the repository as in the installed package, and ``runbook`` there
or above.
"""

import os
import sys

_TRAIN = os.path.dirname(os.path.abspath(__file__))
_ABOVE = os.path.dirname(os.path.dirname(_TRAIN))
sys.path.append(_ABOVE)
if not os.path.isdir(os.path.join(_ABOVE, "runbook")):
    sys.path.append(os.path.dirname(os.path.dirname(_ABOVE)))
