"""The base by which an object shows itself: HTML, text, and a static picture of its figure.

An object stays cheap to make and to print; what it looks like is found in :mod:`tbkit.view` under the
name of its type when a front end displays it, and only then. A display never raises: a drawer that
fails leaves text that says so.
"""

from __future__ import annotations

import base64
import logging
import sys
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("tbkit.show")
_PNG_MARK = b"\x89PNG\r\n\x1a\n"
_no_pictures = ""  # why this process makes no static pictures; "" while it may


@dataclass(frozen=True)
class Drawing:
    """What a drawer makes of an object. ``figure`` makes its ``plotly`` figure, or is None without one.

    ``html`` gets the static picture as an ``<img>`` tag (or "" where there is none) and gives a fragment.
    """

    text: str
    html: Callable[[str], str]
    figure: Callable[[], Any] | None = None
    alt: str = ""


class Shown:
    """Mixin: displays through the drawer that ``tbkit.view`` holds for the type, else as its ``repr``."""

    __slots__ = ()

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        bundle = mime_bundle(self, text_only=_text_only())
        return {
            kind: data
            for kind, data in bundle.items()
            if (not include or kind in include) and (not exclude or kind not in exclude)
        }


def mime_bundle(shown: object, text_only: bool = False) -> dict[str, str]:
    """``{mime type: data}`` of an object: ``text/plain``, ``text/html``, ``image/png`` in base64.

    Never raises. ``text_only`` leaves out what a terminal cannot show, and the time it takes.
    """
    try:
        drawing = _drawing(shown)
        if drawing is None:
            return {"text/plain": repr(shown)}
        if text_only:
            return {"text/plain": drawing.text}
        return _rich(drawing)
    except Exception as error:
        _log.debug("display of %s failed", type(shown).__name__, exc_info=True)
        return {"text/plain": f"{_safe_repr(shown)}\n(display failed: {type(error).__name__}: {error})"}


def picture_png(figure: Any, scale: float = 1.5) -> bytes | None:
    """PNG bytes of a plotly figure, ``scale`` times its own size, or None where no browser makes it.

    The absence of a Chrome or Chromium is said once per process, on the log.
    """
    global _no_pictures
    if _no_pictures:
        return None
    try:
        return repacked(figure.to_image(format="png", scale=scale))
    except Exception as error:
        _no_pictures = str(error).strip().split("\n")[0] or type(error).__name__
        _log.warning("no static pictures of figures in this process: %s", _no_pictures)
        return None


def repacked(png: bytes) -> bytes:
    """The same PNG a quarter smaller: browsers pack for speed, and saved notebooks keep every byte."""
    parts, at = [], len(_PNG_MARK)
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        parts.append((png[at + 4 : at + 8], png[at + 8 : at + 8 + length]))
        at += length + 12
    pixels = zlib.compress(zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT")), 9)
    before = [part for part in parts[:-1] if part[0] != b"IDAT"]
    return _PNG_MARK + b"".join(_chunk(*part) for part in [*before, (b"IDAT", pixels), (b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _drawing(shown: object) -> Drawing | None:
    # The one import against the order of the rooms: display alone needs it, and it must stay lazy.
    from tbkit.view import drawer_for

    drawer = drawer_for(type(shown))
    return drawer(shown) if drawer else None


def _rich(drawing: Drawing) -> dict[str, str]:
    picture = picture_png(drawing.figure()) if drawing.figure else None
    if picture is None:
        return {"text/plain": drawing.text, "text/html": drawing.html("")}
    data = base64.b64encode(picture).decode("ascii")
    alt = drawing.alt.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    tag = f'<img alt="{alt}" style="max-width:100%" width="1000" src="data:image/png;base64,{data}">'
    return {"text/plain": drawing.text, "text/html": drawing.html(tag), "image/png": data}


def _text_only() -> bool:
    """Whether the front end is IPython in a terminal, which shows text alone."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    formatter = getattr(get_ipython(), "display_formatter", None)
    return getattr(formatter, "active_types", None) == ["text/plain"]


def _safe_repr(shown: object) -> str:
    try:
        return repr(shown)
    except Exception:
        return f"<{type(shown).__name__}>"
