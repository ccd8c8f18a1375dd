"""Application-free models of a GPU's memory: PyTorch's caching allocator and a training job's tensors.

Everything here runs without a GPU and without PyTorch, imports nothing but the standard library, and can be
copied elsewhere as one folder: modules of this package import each other relatively.
"""
