"""What several boxes share: what a step is given and gives back, the template, a job's logs, its nodes."""
