"""Many nodes at once, over any Nodes port: the one fan-out that the steps use too."""

from runbook.fan_out import FAN_OUT, ask_many, check_many

__all__ = ["FAN_OUT", "ask_many", "check_many"]
