"""The few words of SVG that the pictures need. Styles are classes of the page: no inline style, so that the page's
content security policy can forbid it."""

from __future__ import annotations

from markupsafe import Markup, escape

from runbook.report.clean import clean_line


def element(name: str, content: Markup | str = "", **attributes: str | float | int) -> Markup:
    """An element with escaped attributes; `_` in a name stands for `-`, a trailing `_` is dropped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"' for key, value in attributes.items()
    )
    # Put together by hand: a picture has hundreds of elements, and Markup.format takes five times as long.
    return Markup(f"<{name}{written}>{escape(content)}</{name}>")  # noqa: S704  (its parts are escaped)


def text(content: str, **attributes: str | float | int) -> Markup:
    """A text element; the content is cleaned and escaped."""
    return element("text", escape(clean_line(content)), **attributes)


def title(content: str) -> Markup:
    """The name of a picture or part for screen readers and pointers."""
    return element("title", escape(clean_line(content)))


def _value(value: str | float | int) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return clean_line(str(value))
