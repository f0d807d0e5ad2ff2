# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance/results.md, generated from a report.

The page keeps its own prose. Only what stands between a pair of markers is replaced:

    <!-- generated: NAME -->
    ...
    <!-- end -->
"""
import re

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PEERS = re.compile(r"/(torch_|safetensors|dcp|deepspeed)")
MOVERS = re.compile(r"^(save|cpu)\.spdk|/fio_best$|/buffered_fsync$")


def page(text, report):
    """The page with every generated block as this report has it."""
    def fill(match):
        if match[2] not in BLOCKS:
            raise ValueError(f"no block is called {match[2]}; there are {', '.join(BLOCKS)}")
        return match[1] + "\n".join(BLOCKS[match[2]](report)) + "\n" + match[3]

    filled, count = BLOCK.subn(fill, text)
    if count == 0:
        raise ValueError("the page has no generated block")
    return filled


def facts(report):
    source = report.source
    state = "clean" if source["clean"] else "not clean: it had changes that were not committed"
    yield f"- commit: `{source['commit']}`; tree: {state}"
    yield f"- measured at: {source['measured_at'] or 'not recorded'}"
    for key, value in report.machine.items():
        yield f"- {key.replace('_', ' ')}: {value}"
    for what in report.left_out:
        yield f"- left out: {what}"


def peers(report):
    return table(report, lambda name: PEERS.search(name))


def movers(report):
    return table(report, lambda name: MOVERS.search(name))


def ladder(report):
    return table(report, lambda name: name.startswith("ladder."))


def parts(report):
    """Every row that no other table has, so that none is lost."""
    return table(report, lambda name: not (PEERS.search(name) or MOVERS.search(name) or name.startswith("ladder.")))


BLOCKS = {block.__name__: block for block in (facts, peers, movers, ladder, parts)}


def table(report, belongs):
    controls = {row.name.removeprefix("aa/"): row.ratio for row in report.rows if row.name.startswith("aa/")}
    yield "| row | Stanchion | peer | unit | ratio | min | max | control | runs | note |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in report.rows:
        if not row.name.startswith("aa/") and belongs(row.name):
            cells = [row.value, row.peer_value, row.unit, row.ratio, row.ratio_min, row.ratio_max, controls.get(row.name)]
            yield " | ".join([f"| `{row.name}`", *map(cell, cells), str(row.runs), row.note]).rstrip() + " |"


def cell(value):
    """Three significant digits of a number, text as it is."""
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:#.3g}".rstrip(".")
