"""Bash job scripts: followed statement by statement, without running anything, to the command that trains."""
