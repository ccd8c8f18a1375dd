"""Small bodies of requests, read without trusting their length or their content."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

_FORM_BYTES = 16_384


class TooLarge(Exception):
    """The body is larger than it may be."""


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body. Raises `TooLarge` as soon as it is, whatever length was announced."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdecimal() and int(announced[:18]) > limit:
        raise TooLarge
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


async def form_of(request: Request) -> Mapping[str, str]:
    """The fields of a form without files; empty for what is none. A field that comes twice is left out: which one is
    meant is not known. Raises `TooLarge`."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await body_of(request, _FORM_BYTES)
    if content != "application/x-www-form-urlencoded":
        return {}
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except (UnicodeDecodeError, ValueError):
        return {}
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}
