"""Who says a line and when: prefixes, stamps, JSON records, files' names."""
