"""What a line means: signature documents, made ready for searching."""

from runbook.logs.signatures.field_units import ABSURD_BYTES, SENTINEL_BYTES
from runbook.logs.signatures.signature import (
    AT_START,
    CONSEQUENCE,
    FRAMING,
    HARMLESS,
    MEMORY_FIELDS,
    OTHER_FIELDS,
    OUTSIDE_PROSE,
    Match,
    Signature,
    Signatures,
    load_signatures,
)

__all__ = [
    "ABSURD_BYTES",
    "AT_START",
    "CONSEQUENCE",
    "FRAMING",
    "HARMLESS",
    "MEMORY_FIELDS",
    "OTHER_FIELDS",
    "OUTSIDE_PROSE",
    "SENTINEL_BYTES",
    "Match",
    "Signature",
    "Signatures",
    "load_signatures",
]
