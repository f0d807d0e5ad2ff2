# SPDX-License-Identifier: Apache-2.0
"""Ratios of interleaved runs.

A round is ours, the peer, ours again. The ratio of a round is the mean of our two runs to the peer's run between them,
so a machine whose speed drifts steadily spoils neither. Our first run to our second one is the control (A/A): it is
the same program twice, so what it is away from 1 is noise, and no ratio means more than that.
"""
import dataclasses
import statistics
import sys


@dataclasses.dataclass
class Row:
    name: str
    value: float | None
    unit: str
    ratio: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    runs: int = 1
    peer_value: float | None = None
    note: str = ""


def row_of_ratios(name, values, unit, ratios, peers=(), note=""):
    return Row(
        name, statistics.median(values), unit, statistics.median(ratios), min(ratios), max(ratios), len(ratios),
        statistics.median(peers) if peers else None, note,
    )


def compare(name, unit, rounds, ours, peer, note=""):
    """The row, and the row of its control. `ours` and `peer` run once and return a rate; more is better."""
    first, between, again = [], [], []
    for number in range(rounds):
        first.append(ours())
        between.append(peer())
        again.append(ours())
        say(f"{name} {number + 1}/{rounds}: ours {first[-1]:.4g} and {again[-1]:.4g}, peer {between[-1]:.4g} {unit}")
    return rows_of_rounds(name, unit, first, between, again, note)


def rows_of_rounds(name, unit, first, between, again, note=""):
    ratios = [(a + c) / 2 / b for a, b, c in zip(first, between, again)]
    control = [a / c for a, c in zip(first, again)]
    return [
        row_of_ratios(name, first + again, unit, ratios, between, note),
        row_of_ratios(f"aa/{name}", first, unit, control, again, "control: ours to ours"),
    ]


def percentile(values, percent):
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)
