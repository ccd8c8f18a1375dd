"""The node probe: one program of the standard library and nvidia-ml-py that looks at a node and changes nothing.

It runs on the node under whatever Python is there, from 3.6 on, and answers one JSON document. It imports nothing of
runbook's: `build.py` packs the other modules and pynvml into one file.
"""
