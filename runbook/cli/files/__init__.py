"""Commands that need no cluster: they look at logs, launch scripts and the documents of a playbook."""
