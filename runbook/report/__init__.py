"""Pure: an incident becomes JSON, HTML and text. Reads no clock, starts nothing, asks nobody."""
