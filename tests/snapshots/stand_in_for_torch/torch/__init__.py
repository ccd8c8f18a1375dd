"""A stand-in for PyTorch, which is none: as much of it as `runbook observe` touches, with the names of PyTorch 2.15."""

from torch import _C as _C
from torch import cuda as cuda

IS_A_STAND_IN = True
