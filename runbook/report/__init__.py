"""Pure: an incident, a node check or a diagnosis → JSON, text and pages; the one place where their sentences are made.

- `vocabulary/`: words for values, one formatter each of bytes, durations and moments, hostile text made harmless.
- `narrative.py`: the story of an incident in sentences and events; `memory_picture.py`: a GPU's memory in parts.
- `text/`: what a terminal or a mail shows; `html/`: the pages; `charts/`: their pictures.
- `json_documents.py`: `incident.json` and back, its schema.
- `summary.py`, `incident_search.py`, `past_incidents.py`: rows about incidents, looked for and counted.
"""
