"""Define inline styles that an untrusted notebook keeps.

It strips `<style>`, and drops every declaration with `var()`. So colours are either the page's
(left unset) or a translucent grey, which is legible on light and dark pages. Only declarations that
JupyterLab's sanitizer accepts are used. Each cell of a table has its own style, about a hundred
bytes in every saved notebook; so long tables are lines of text.
"""

from __future__ import annotations

_LINE = "rgba(128,128,128,0.35)"

BOX = "font-size:13px;line-height:1.45;max-width:1260px;overflow-x:auto"
COLUMNS = "display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start"
CHARTS = "flex:0 1 540px;min-width:0;max-width:100%"
TABLES = "flex:1 1 430px;min-width:0;max-width:100%;overflow-x:auto"
CHART = "display:block;width:540px;max-width:100%;min-width:340px;height:auto;margin:0 0 10px 0"
PICTURE = "display:block;width:720px;max-width:100%;min-width:480px;height:auto;margin:0 0 10px 0"

TABLE = "border-collapse:collapse;margin:0 0 12px 0;font-size:12px;table-layout:auto;width:auto"
CAPTION = "text-align:left;font-weight:600;font-size:13px;padding:2px 0 4px 0;white-space:nowrap"
HEAD = (
    "text-align:right;padding:2px 5px;white-space:nowrap;font-weight:600;"
    f"border-bottom:1px solid {_LINE}"
)
HEAD_TEXT = HEAD.replace("text-align:right", "text-align:left")
TEXT = "text-align:left;padding:2px 5px;font-weight:400"
BREAKING = f"{TEXT};min-width:110px;overflow-wrap:anywhere"
"""For paths, which have no blanks; untrusted notebooks scroll instead."""
NAME = "text-align:left;padding:2px 5px;font-weight:400;white-space:nowrap"
FIGURE = "text-align:right;padding:2px 5px;font-weight:400;white-space:nowrap"
STRONG_FIGURE = FIGURE.replace("font-weight:400", "font-weight:600")
FLOWING = "display:block;max-width:600px;margin:0 0 12px 0;font-size:12px"
"""For a table whose figures go below the name where it is narrower than 369 px, as in a sidebar.

The name's width is beyond the line's then, and else what the figures leave. The sanitizer drops
`calc()`; the width before it is for untrusted notebooks.
"""
FLOWING_PART = "display:block"
FLOWING_ROW = (
    "display:flex;flex-wrap:wrap;justify-content:end;padding:0;"  # JupyterLab pads rows, too
    f"border-bottom:1px solid {_LINE}"
)
FLOWING_NAME = (
    "flex:1 1 150px;flex:1 1 calc((369px - 100%) * 999);min-width:0;text-align:left;padding:2px 0;"
    "font-weight:400;"
    "overflow-wrap:break-word"
)
FLOWING_FIGURE = (
    "flex:0 0 auto;min-width:66px;min-width:clamp(66px,14%,80px);text-align:right;"
    "padding:2px 0 2px 6px;font-weight:400;white-space:nowrap"
)
SMALL = "font-size:11px;opacity:0.75;margin:0"
SWATCH = (
    "display:inline-block;width:11px;height:11px;margin:0 7px 0 0;vertical-align:middle;"
    "box-sizing:border-box;"
)

VERDICT = "font-size:15px;font-weight:600;margin:0 0 2px 0"
FORMULA = "font-weight:600;margin:0 0 10px 0"
FIGURES = "margin:0 0 2px 0"
LONG = "overflow-wrap:break-word;margin:0 0 2px 0"
ABOUT = "opacity:0.75;margin:0 0 8px 0"
TILES = "display:flex;flex-wrap:wrap;gap:8px;margin:0 0 10px 0"
TILE = f"border:1px solid {_LINE};border-radius:6px;padding:5px 10px;min-width:92px"
TILE_NAME = "font-size:11px;opacity:0.75"
TILE_VALUE = "font-size:18px;font-weight:600;white-space:nowrap"
CHIPS_TITLE = "font-weight:600;margin:0 0 4px 0"
CHIPS = "display:flex;flex-wrap:wrap;gap:6px;margin:0 0 4px 0;align-items:flex-start"
_CHIP = f"border:1px solid {_LINE};border-radius:6px;padding:3px 8px;font-size:12px;"
CHIP_FITS = f"{_CHIP}border-left:4px solid #2E9E7E"
CHIP_TIGHT = f"{_CHIP}border-left:4px solid #C98A12"
CHIP_NO = f"{_CHIP}border-left:4px solid #C8553D"
CHIP_SUMMARY = "cursor:pointer"
CHIP_ANSWER = "font-size:11px;white-space:nowrap"
CHIP_DETAIL = "font-size:11px;max-width:180px;margin:4px 0 2px 0"
CHIPS_NOTE = "font-size:11px;opacity:0.75;margin:0 0 10px 0"
ERROR = (
    "border:1px solid #C8553D;border-left:5px solid #C8553D;border-radius:4px;"
    "padding:5px 10px;margin:0 0 8px 0;font-weight:600"
)
ERROR_TEXT = "text-align:left;padding:2px 5px;font-weight:600;color:#C8553D"
NOTES = "margin:0 0 6px 0;padding:0 0 0 20px"
HEADING = "font-weight:600;margin:0 0 4px 0"
SUMMARY = "cursor:pointer;font-weight:600;margin:0 0 4px 0"
MONOSPACE = "font-family:monospace"  # a list of fonts is more than JupyterLab's sanitizer keeps
"""For pages of others (nbconvert, GitHub), whose style of `pre` may name no such font."""
BLOCK = f"{MONOSPACE};font-size:12px;line-height:1.35;overflow-x:auto;margin:0 0 12px 0"
SCROLL = "overflow-x:auto;max-width:100%"
DETAILS = "margin:0 0 10px 0"


def filled(share: float) -> str:
    """Return the style of a bar behind a cell's figure.

    It fills `share` of the cell's width from the left.
    """
    percent = round(100 * min(max(share, 0), 1))
    return (
        f";background-image:linear-gradient(90deg,rgba(68,170,153,0.4) {percent}%,"
        f"rgba(68,170,153,0) {percent}%)"
    )
