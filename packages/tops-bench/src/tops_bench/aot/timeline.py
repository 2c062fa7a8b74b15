"""A loop body as a picture: slots down, bundles across, darker where fuller. One HTML file, no script, no other file."""

import html
from collections.abc import Sequence

from tops_bench.aot.hotspot import Hotspot

_COLUMNS = 1600  # more bundles than this are shown several to a column
_ROW = 22
_LEFT = 120


def page(title: str, spot: Hotspot, slots: Sequence[str]) -> str:
    """An HTML page with the SVG and what is said of the loop beside it."""
    lines = "".join(f"<tr><td>{share:.0f}</td><td>{html.escape(line)}</td></tr>" for line, share in spot.lines[:25])
    chains = "".join(
        f"<tr><td>{chain.ops}</td><td>{chain.span}</td><td>{html.escape(chain.first)}</td><td>{html.escape(chain.last)}</td>"
        f"<td>{html.escape(', '.join(chain.mnemonics))}</td></tr>"
        for chain in spot.chains
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:0 1em 0 0;text-align:left}svg{max-width:100%}</style>"
        f"<h1>{html.escape(title)}</h1><p>Schedule estimate. {spot.bundles} bundles, {spot.trips} trips, "
        f"{spot.share:.0%} of all bundles run, {spot.idle} of them idle.</p>{svg(spot, slots)}"
        f"<h2>Source lines</h2><table><tr><th>bundles run</th><th>line</th></tr>{lines}</table>"
        f"<h2>Longest dependency chains</h2><table><tr><th>ops</th><th>bundles</th><th>from</th><th>to</th><th>of</th></tr>{chains}</table>\n"
    )


def svg(spot: Hotspot, slots: Sequence[str]) -> str:
    """One rectangle a slot and column; what it stands for is its tooltip."""
    step = max(1, -(-len(spot.timeline) // _COLUMNS))
    columns = [spot.timeline[at : at + step] for at in range(0, len(spot.timeline), step)]
    width = max(1, min(8, 1200 // max(len(columns), 1)))
    parts = []
    for row, (slot, room) in enumerate(zip(slots, spot.capacity, strict=True)):
        top = row * _ROW
        parts.append(f'<text x="0" y="{top + 15}" font-size="12">{html.escape(slot)} ({room})</text>')
        for column, rows in enumerate(columns):
            share = sum(one[row] for one in rows) / (room * len(rows))
            if share:
                shade = round(235 - 200 * min(share, 1.0))
                parts.append(
                    f'<rect x="{_LEFT + column * width}" y="{top}" width="{width}" height="{_ROW - 4}" fill="rgb({shade},{shade},255)">'
                    f"<title>bundle {spot.first + column * step:#x}: {share:.0%}</title></rect>"
                )
    height, total = len(slots) * _ROW, _LEFT + len(columns) * width
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}" height="{height}">{"".join(parts)}</svg>'
