# SPDX-License-Identifier: Apache-2.0
"""The report: JSON for programs, Markdown for people."""
import dataclasses
import json

from .compare import Row


@dataclasses.dataclass
class Report:
    # What was measured: commit, whether the tree was clean, and when (machine.source).
    source: dict
    # What it was measured on (machine.describe).
    machine: dict
    rows: list[Row]
    # What was asked for and could not be measured, with the reason.
    left_out: list[str]


def as_json(report):
    return json.dumps(dataclasses.asdict(report), indent=1)


def from_json(text):
    document = json.loads(text)
    rows = [Row(**row) for row in document["rows"]]
    return Report(document["source"], document["machine"], rows, document["left_out"])


def as_markdown(report):
    lines = ["# Stanchion and its peers", ""]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in (report.source | report.machine).items()]
    lines += ["", "| row | ours | peer | unit | ratio | min | max | runs | |", "|---|---|---|---|---|---|---|---|---|"]
    for row in report.rows:
        numbers = [row.ratio, row.ratio_min, row.ratio_max]
        ratios = " | ".join("" if number is None else f"{number:.3f}" for number in numbers)
        lines.append(
            f"| `{row.name}` | {number(row.value)} | {number(row.peer_value)} | {row.unit} | {ratios} | {row.runs} | {row.note} |"
        )
    if report.left_out:
        lines += ["", "Left out:", ""] + [f"- {what}" for what in report.left_out]
    return "\n".join(lines) + "\n"


def number(value):
    return "" if value is None else f"{value:.4g}"
