"""Give command lines to the libraries' own parsers. Run by .venv-parsers' Python; reads and writes JSON lines.

A line in: {"parser": "verl" | "huggingface" | "trl" | "deepspeed" | "torchtitan" | "accelerate" |
"trainer_deepspeed", "release": …,
"arguments": […], "file": …, "ranks": …, "ask": […]}. A line out: {"error": …} or {"values": {asked: value, …}}.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

RELEASES = Path(sys.prefix) / "releases"


def verl(job: dict[str, Any]) -> dict[str, Any]:
    """Hydra's compose on the release's own configuration, or on the job's where it names a folder of its own."""
    hydra: Any = importlib.import_module("hydra")
    conf: Any = importlib.import_module("omegaconf").OmegaConf
    name, overrides = "ppo_trainer", []
    folder = RELEASES / job["release"] / "verl" / "trainer" / "config"
    words = iter(job["arguments"])
    for word in words:
        if word.startswith("--config-name"):
            name = word.partition("=")[2] or next(words)
        elif word.startswith("--config-path"):
            folder = Path(job["root"]) / (word.partition("=")[2] or next(words)).lstrip("/")
        else:
            overrides.append(word)
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        config = hydra.compose(config_name=name.removesuffix(".yaml"), overrides=overrides)
    return {key: conf.select(config, key) for key in job["ask"]}


def huggingface(job: dict[str, Any]) -> dict[str, Any]:
    module: Any = importlib.import_module("transformers")
    parser = module.HfArgumentParser(module.TrainingArguments)
    if len(job["arguments"]) == 1 and job["arguments"][0].endswith(".json"):
        arguments, *_ = parser.parse_json_file(job["arguments"][0], allow_extra_keys=True)
        return {key: getattr(arguments, key, None) for key in job["ask"]}
    arguments, _ = parser.parse_args_into_dataclasses(job["arguments"], return_remaining_strings=True)
    return {key: getattr(arguments, key, None) for key in job["ask"]}


def trl(job: dict[str, Any]) -> dict[str, Any]:
    """TRL's own parser, which reads a YAML file with --config, in a job of so many ranks."""
    module: Any = importlib.import_module("trl")
    config = getattr(module, job["release"])
    ranks = int(job["ranks"])
    config = type(config.__name__, (config,), {"world_size": property(lambda self: ranks)})
    arguments, *_ = module.TrlParser(config).parse_args_and_config(
        job["arguments"], return_remaining_strings=True, fail_with_unknown_args=False
    )
    return {key: getattr(arguments, key, None) for key in job["ask"]}


def trainer_deepspeed(job: dict[str, Any]) -> dict[str, Any]:
    """The trainer's check that DeepSpeed's configuration says what its own arguments say."""
    module: Any = importlib.import_module("transformers")
    made: Any = importlib.import_module("transformers.integrations.deepspeed").HfTrainerDeepSpeedConfig
    ranks = int(job["ranks"])
    config = type("TrainingArguments", (module.TrainingArguments,), {"world_size": property(lambda self: ranks)})
    arguments, _ = module.HfArgumentParser(config).parse_args_into_dataclasses(
        job["arguments"], return_remaining_strings=True
    )
    checked = made(json.loads(Path(job["file"]).read_text()))
    checked.trainer_config_process(arguments)
    return {key: checked.config.get(key) for key in job["ask"]}


def deepspeed(job: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's check of its configuration, among so many data-parallel ranks."""
    module: Any = importlib.import_module("deepspeed.runtime.config")

    class Ranks:
        """What DeepSpeed asks of its communication before a process group is there."""

        @staticmethod
        def get_rank() -> int:
            return 0

        @staticmethod
        def get_world_size() -> int:
            return int(job["ranks"])

    module.dist = Ranks
    config = module.DeepSpeedConfig(json.loads(Path(job["file"]).read_text()))
    return {key: getattr(config, key) for key in job["ask"]}


def torchtitan(job: dict[str, Any]) -> dict[str, Any]:
    sys.path.insert(0, str(RELEASES / job["release"]))
    config: Any = importlib.import_module("torchtitan.config").ConfigManager().parse_args(job["arguments"])
    values = {}
    for key in job["ask"]:
        found = config
        for part in key.split("."):
            found = getattr(found, part, None)
        values[key] = found
    return values


def accelerate(job: dict[str, Any]) -> dict[str, Any]:
    """accelerate's own reader of its configuration file."""
    module: Any = importlib.import_module("accelerate.commands.config.config_args")
    config = module.load_config_from_file(job["file"])
    found = {}
    for key in job["ask"]:
        head, _, rest = key.partition(".")
        value = getattr(config, head, None)
        found[key] = value.get(rest) if rest and isinstance(value, dict) else value
    return found


PARSERS = {
    "verl": verl, "huggingface": huggingface, "trl": trl, "deepspeed": deepspeed, "torchtitan": torchtitan,
    "accelerate": accelerate, "trainer_deepspeed": trainer_deepspeed,
}


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        noise = io.StringIO()
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                answer: dict[str, Any] = {"values": PARSERS[job["parser"]](job)}
        except (Exception, SystemExit) as error:
            answer = {"error": f"{type(error).__name__}: {error} {noise.getvalue()[-300:]}".strip()}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
