"""A message to a person: what it is about, how urgent it is, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What is asked of a person; the words of the alerts (docs/alerts.md)."""

    INFO = "info"
    """Nothing: it is being handled, or it is done."""
    WARNING = "warning"
    """Look today."""
    PAGE = "page"
    """A person is needed now."""


@dataclass(frozen=True, slots=True)
class About:
    """The job that a message is about, for targets that want some only. "" where it is not known."""

    incident: str = ""
    owner: str = ""
    partition: str = ""
    account: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """Short: a title for a subject line, a body of a few lines, one link. Cleaned and masked already."""

    event: str
    """What happened, the same word each time that it is told of: nobody is told of one event twice."""
    severity: Severity
    title: str
    body: str
    link: str = ""
    about: About = About()
    question: bool = False
    """A question that a person at the terminal is asked there, too."""
