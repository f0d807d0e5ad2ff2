"""The report: JSON for programs, Markdown for people."""
import dataclasses
import json

from .compare import Row


def as_json(machine, rows, left_out):
    return json.dumps({"machine": machine, "rows": [dataclasses.asdict(row) for row in rows], "left_out": left_out}, indent=1)


def from_json(text):
    """What as_json was given."""
    document = json.loads(text)
    return document["machine"], [Row(**row) for row in document["rows"]], document["left_out"]


def as_markdown(machine, rows, left_out):
    lines = ["# Stanchion beside its peers", ""]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in machine.items()]
    lines += ["", "| row | ours | peer | unit | ratio | min | max | runs | |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        numbers = [row.ratio, row.ratio_min, row.ratio_max]
        ratios = " | ".join("" if number is None else f"{number:.3f}" for number in numbers)
        lines.append(
            f"| `{row.name}` | {number(row.value)} | {number(row.peer_value)} | {row.unit} | {ratios} | {row.runs} | {row.note} |"
        )
    if left_out:
        lines += ["", "Left out:", ""] + [f"- {what}" for what in left_out]
    return "\n".join(lines) + "\n"


def number(value):
    return "" if value is None else f"{value:.4g}"
