"""A simulation of an SFT program of TRL over the simulated training job, with `--config FILE.yaml`. It is not TRL."""

from __future__ import annotations

import sys

from system_options import flat_yaml, run_as


def main() -> int:
    """Runs the job with what the configuration and further `--name value` options say."""
    words = sys.argv[1:]
    if len(words) < 2 or words[0] != "--config":
        raise SystemExit("usage: trl_sft.py --config FILE.yaml [--name value]…")
    given = flat_yaml(words[1])
    for name, value in zip(words[2::2], words[3::2], strict=True):
        given[name.lstrip("-")] = value
    options = {
        "micro-batch-size": given["per_device_train_batch_size"],
        "gradient-accumulation-steps": given.get("gradient_accumulation_steps", "1"),
        "activation-checkpointing": "full" if given.get("gradient_checkpointing") == "true" else "none",
        "seq-length": given["max_length"],
        **{
            key.removeprefix("simulation_").replace("_", "-"): value
            for key, value in given.items() if key.startswith("simulation_")
        },
    }
    return run_as("TRL", options)


if __name__ == "__main__":
    sys.exit(main())
