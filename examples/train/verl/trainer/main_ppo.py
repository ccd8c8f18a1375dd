"""A simulation of verl's command line over the simulated training job of this folder's parent. It is not verl.

`python3 -m verl.trainer.main_ppo key=value …`: the actor's token budget is cut into micro-batches of the longest
sequence, as verl packs them.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from system_options import overrides, run_as

_ACTOR = "actor_rollout_ref.actor"


def update_actor() -> int:
    """Runs the job with what the overrides say."""
    given = overrides(sys.argv[1:])
    longest = int(given["data.max_prompt_length"]) + int(given["data.max_response_length"])
    budget = int(given[f"{_ACTOR}.ppo_max_token_len_per_gpu"])
    if budget < longest:
        raise SystemExit(f"AssertionError: max_token_len {budget} is below the longest sequence {longest}")
    ranks = int(given["trainer.nnodes"]) * int(given["trainer.n_gpus_per_node"])
    folder = given.get("trainer.default_local_dir")
    options = {
        "micro-batch-size": budget // longest,
        "global-batch-size": given[f"{_ACTOR}.ppo_mini_batch_size"],
        "gradient-accumulation-steps": int(given[f"{_ACTOR}.ppo_mini_batch_size"]) // (budget // longest * ranks),
        "seq-length": longest,
        "save": folder, "load": folder, "save-interval": given.get("trainer.save_freq", "0").replace("-1", "0"),
        **{key.removeprefix("simulation."): value for key, value in given.items() if key.startswith("simulation.")},
    }
    return run_as("verl", options)


if __name__ == "__main__":
    sys.exit(update_actor())
