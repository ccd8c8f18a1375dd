"""Who says a line and when: prefixes, stamps, JSON records, files' names."""

from runbook.logs.lines.log_line import FileProfile, LogLine, PrefixProfile, family_profiles, file_profile, named_file
from runbook.logs.lines.prefixes import read_time, site_prefixes
from runbook.logs.lines.speaker import IS_BAR, learn_prefixes, parse_line, parse_lines

__all__ = [
    "IS_BAR",
    "FileProfile",
    "LogLine",
    "PrefixProfile",
    "family_profiles",
    "file_profile",
    "learn_prefixes",
    "named_file",
    "parse_line",
    "parse_lines",
    "read_time",
    "site_prefixes",
]
