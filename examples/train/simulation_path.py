"""Makes ``simulator`` importable for the scripts of this folder.

A folder ``simulator`` beside them wins, so that they can be copied to a place of their own together with it;
otherwise it lies beside ``examples``, in the repository as in the installed package.
"""

import os
import sys

_TRAIN = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(os.path.dirname(_TRAIN)))
