# SPDX-License-Identifier: Apache-2.0
"""Charts of a report: SVG, one bar a row, with the smallest and the largest ratio as a whisker. No library is needed."""
from xml.sax.saxutils import escape

WIDTH, LABEL, BAR, STEP, TOP = 760, 300, 14, 24, 46
RIGHT = 90
# Legible on white and on black.
INK, MUTED, OURS, BEHIND = "#6b7280", "#9ca3af", "#2563eb", "#d97706"

# File, title, and which rows by the start of their names.
CHARTS = (
    ("peers.svg", "Durable saves: times as fast as other writers", ("save.kernel", "save.small_tensors", "save.huge_tensors", "mlperf")),
    ("raw.svg", "Compared with programs that only move bytes", ("save.spdk", "save.kernel/fio", "restore.kernel")),
)


def draw(rows):
    """File names and texts."""
    taken = set()
    for file, title, starts in reversed(CHARTS):
        shown = [row for row in rows if row.ratio is not None and row.name.startswith(starts) and row.name not in taken]
        taken |= {row.name for row in shown}
        if shown:
            yield file, chart(title, shown)


def chart(title, rows):
    most = max(1.0, *(row.ratio_max for row in rows))
    scale = (WIDTH - LABEL - RIGHT) / most
    height = TOP + STEP * len(rows) + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f'<text x="8" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for tick in ticks(most):
        x = LABEL + tick * scale
        line = f'stroke="{INK}"' if tick == 1 else f'stroke="{MUTED}" stroke-opacity="0.4"'
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 22}" {line}/>')
        out.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="{MUTED}">{tick:g}x</text>')
    for number, row in enumerate(rows):
        out += bar(row, TOP + STEP * number, scale)
    return "\n".join([*out, "</svg>", ""])


def bar(row, y, scale):
    middle = y + BAR / 2
    low, high = (LABEL + scale * ratio for ratio in (row.ratio_min, row.ratio_max))
    color = OURS if row.ratio >= 1 else BEHIND
    yield f'<text x="{LABEL - 8}" y="{middle + 4}" text-anchor="end">{escape(row.name)}</text>'
    yield f'<rect x="{LABEL}" y="{y}" width="{scale * row.ratio:.1f}" height="{BAR}" rx="2" fill="{color}" fill-opacity="0.75"/>'
    yield f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8" stroke="{INK}" fill="none"/>'
    yield f'<text x="{high + 6:.1f}" y="{middle + 4}">{row.ratio:.2f}</text>'


def ticks(most):
    """About six of them, 1 always among them."""
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if most / step <= 7)
    return sorted({1, *(step * number for number in range(int(most / step) + 1))})
