"""An incident from the command line: begin it, look on, answer, look at what is stored."""
