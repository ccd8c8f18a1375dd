"""Answers of nvidia-smi and dmesg for simulated GPUs, from a state file. There is no GPU behind them."""
