"""Launcher logs, pure: which rank failed first and what it said, who followed, how far the job came.

How a line becomes part of a story, in the order of the work: `reader` (the logs of a job, one pass), `search` (bytes
that hold a literal), `lines` (who says a line), `signatures` (what a line means), `collect` (matches with their
surroundings, ranks and nodes), `root_cause` (what came first, what followed, what was handled), `progress` (steps,
their times and memory). `tracebacks` is what all of them know of a stack.
"""
