"""Commands and wiring: the only place where adapters are made."""
