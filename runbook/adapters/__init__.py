"""The real world behind the ports: each module implements one port, or a part of one."""
