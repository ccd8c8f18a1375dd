"""What a job's own Python runs so that its ranks leave a memory snapshot when they run out: `sitecustomize.py`, which
stands alone here, as this folder is put on PYTHONPATH (`runbook observe`)."""
