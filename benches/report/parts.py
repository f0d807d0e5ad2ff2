# SPDX-License-Identifier: Apache-2.0
"""Rows of parts: commits in one pool, and the ring between two threads."""
import json
import statistics

from .compare import Row, percentile, row_of_ratios, rows_of_rounds
from .tools import run


def commits(plan):
    names = ["commits.per_second", "commit.tail_ms.p50", "commit.tail_ms.p99"]
    if not plan.wants(*names):
        return []
    count = 1000
    drive = plan.work / "commits.img"
    drive.unlink(missing_ok=True)
    # 1 MB each; all are kept, so the catalogue grows to its end.
    document = json.loads(run([plan.programs["commits"], count, 1_000_000, count, drive]))
    drive.unlink()
    whole, tail = document["whole_ms"], document["tail_ms"]
    # The two ends, by tens and pairwise; medians, since one slow flush of a shared disk is not due to the catalogue.
    first = [statistics.median(whole[i : i + 10]) for i in range(0, 100, 10)]
    last = [statistics.median(whole[-100:][i : i + 10]) for i in range(0, 100, 10)]
    note = f"{count} checkpoints of 1 MB; ratio: time of the first 100 to that of the last 100, by tens"
    ratios = [a / b for a, b in zip(first, last)]
    found = [row_of_ratios("commits.per_second", [1e3 / statistics.median(whole)], "1/s", ratios, note=note)]
    note = "Flush, metadata and root after the last byte, one file drive"
    for percent in (50, 99):
        found.append(Row(f"commit.tail_ms.p{percent}", percentile(tail, percent), "ms", runs=count, note=note))
    return found


def ring(plan):
    name = "ring.round_trip/crossbeam"
    if not plan.wants(name):
        return []
    document = json.loads(run([plan.programs["ring_threads"], 31 if plan.quick else 101]))
    note = f"two threads, {document['window']} outstanding"
    return rows_of_rounds(name, "M/s", document["ours"], document["peer"], document["again"], note)


GROUPS = (ring, commits)
