"""Configuration files (YAML, JSON, TOML, literals of a Python module): read to leaves with byte ranges, and edited."""
