"""The bytes of logs: literals searched at memory speed, on threads, from files' ends where they are large."""
