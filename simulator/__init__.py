"""Application-free models of a GPU and of a training job's tensors, which come from ``runbook.allocator``.

Everything here runs without a GPU and without PyTorch, imports nothing but that and the standard library, and can be
copied elsewhere together with it: modules of this package import each other relatively.
"""
