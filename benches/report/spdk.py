# SPDX-License-Identifier: Apache-2.0
"""Rows over SPDK: NVMe-oF drives on loopback TCP, as fast as a flash drive would be or as fast as they go."""
import json
import statistics

from .compare import Row, compare, row_of_ratios, say
from .tools import MIB, Pool, nvmf_target, perf_gb_per_s, run

LIMIT_MIB_PER_S = 300
SCALES = (2, 4, 8)


def drive_mib(size_bytes):
    """Room for two generations of a checkpoint, and for metadata."""
    return 2 * size_bytes // MIB + 192


def one_drive(plan):
    name = "save.spdk.one_drive_300/perf"
    if not plan.wants(name):
        return []
    size = (512 if plan.quick else 1024) * MIB
    seconds = max(1, round(size / MIB / LIMIT_MIB_PER_S))
    with nvmf_target(plan.work, 2, drive_mib(size), LIMIT_MIB_PER_S) as (ours, peers):
        pool = Pool(plan.stanchion, [ours])
        pool.format()
        save = lambda: pool.gb_per_s("write", size)
        return compare(name, "GB/s", plan.rounds, save, lambda: perf_gb_per_s([peers], seconds))


def unlimited(plan):
    name = "save.spdk.tcp/perf"
    if not plan.wants(name):
        return []
    size = (512 if plan.quick else 1024) * MIB
    cpu = []

    def save():
        run = pool.bench("write", size)
        cpu.append(run["cpu_seconds"] / (size / 1e9))
        return run["gb_per_s"]

    with nvmf_target(plan.work, 2, drive_mib(size)) as (ours, peers):
        pool = Pool(plan.stanchion, [ours])
        pool.format()
        found = compare(name, "GB/s", plan.rounds, save, lambda: perf_gb_per_s([peers], 1 if plan.quick else 2))
    # perf polls one core from its start to its end.
    perf = 1 / found[0].peer_value
    note = "all threads of ours while it saves, checksums included, the target's core not; peer: perf's one polled core"
    return [*found, Row("cpu.spdk.core_seconds_per_GB", statistics.median(cpu), "core-s/GB", runs=len(cpu), peer_value=perf, note=note)]


def scales(plan):
    """N drives compared with N times one drive, and with perf on the same N drives: what the target's core can serve."""
    found = []
    for n in SCALES:
        to_one, to_perf = f"save.spdk.scale_{n}/{n}x_one", f"save.spdk.scale_{n}/perf"
        if not plan.wants(to_one, to_perf):
            continue
        # Less for many drives, whose memory is the target's huge pages.
        per_drive = (192 if n < 8 else 128) * MIB * (1 if plan.quick else 2)
        with nvmf_target(plan.work, n + 1, drive_mib(per_drive), LIMIT_MIB_PER_S) as addresses:
            one, many = Pool(plan.stanchion, addresses[n:]), Pool(plan.stanchion, addresses[:n])
            one.format()
            many.format()
            save = lambda: many.gb_per_s("write", n * per_drive)
            if plan.wants(to_one):
                found += compare(to_one, "GB/s", plan.rounds, save, lambda: n * one.gb_per_s("write", per_drive))
            if plan.wants(to_perf):
                found.append(compared_with_perf(plan, to_perf, many, save, addresses[:n]))
    return found


def compared_with_perf(plan, name, pool, save, drives):
    """perf writes over the pool, which is therefore made again each time."""
    ours, peers = [], []
    for number in range(plan.rounds):
        pool.format()
        ours.append(save())
        peers.append(perf_gb_per_s(drives, 1))
        say(f"{name} {number + 1}/{plan.rounds}: ours {ours[-1]:.4g}, peer {peers[-1]:.4g} GB/s")
    pool.format()
    return row_of_ratios(name, ours, "GB/s", [a / b for a, b in zip(ours, peers)], peers)


def rebuilds(plan):
    """A drive of a mirror is rebuilt while eight participants save: each compared with itself alone."""
    save, rebuild = "save.spdk.beside_rebuild/alone", "rebuild.spdk.beside_saves/alone"
    if not plan.wants(save, rebuild):
        return []
    size = (256 if plan.quick else 512) * MIB
    with nvmf_target(plan.work, 3, drive_mib(size), LIMIT_MIB_PER_S) as drives:
        document = json.loads(run([plan.programs["rebuild"], plan.rounds, size, 0, *drives]))
    alone, beside, again = (document[f"save_{what}"] for what in ("alone", "beside", "again"))
    both = [(a + c) / 2 for a, c in zip(alone, again)]
    note = f"mirror of two drives of {LIMIT_MIB_PER_S} MiB/s, eight participants; bytes saved, not their copies"
    first, second = document["rebuild_alone"], document["rebuild_beside"]
    return [
        row_of_ratios(save, beside, "MB/s", [b / a for a, b in zip(both, beside)], both, note),
        row_of_ratios(f"aa/{save}", alone + again, "MB/s", [a / c for a, c in zip(alone, again)], again, "control: ours to ours"),
        row_of_ratios(rebuild, second, "MB/s", [b / a for a, b in zip(first, second)], first, "bytes written to the new drive"),
    ]


GROUPS = (one_drive, unlimited, scales, rebuilds)
