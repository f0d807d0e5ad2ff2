"""Rows over SPDK: NVMe-oF drives on loopback TCP, as fast as a flash drive would be or as fast as they go."""
from .compare import Row, compare, row_of_ratios, say
from .tools import MIB, Pool, nvmf_target, perf_gb_per_s

LIMIT_MIB_PER_S = 300
SCALES = (2, 4, 8)


def rows(plan):
    names = ["save.spdk.one_drive_300/perf", "save.spdk.tcp/perf"]
    names += [f"save.spdk.scale_{n}/{n}x_one" for n in SCALES] + [f"save.spdk.scale_{n}/perf" for n in SCALES]
    if not plan.wants(*names):
        return []
    if not plan.spdk:
        plan.left_out("save.spdk.*: SPDK is not installed (scripts/install-spdk builds it)")
        return []
    return one_drive(plan) + unlimited(plan) + scales(plan)


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
        cpu = []
        save = lambda: record_cpu(pool.bench("write", size), size, cpu)
        found = compare(name, "GB/s", plan.rounds, save, lambda: perf_gb_per_s([peers], seconds))
    cpu.sort()
    median = cpu[len(cpu) // 2]
    found.append(Row("cpu.save.spdk", median, "core-s/GB", runs=len(cpu), note="all threads; a target that is slow is polled"))
    return found


def record_cpu(run, size_bytes, into):
    into.append(run["cpu_seconds"] / (size_bytes / 1e9))
    return run["gb_per_s"]


def unlimited(plan):
    name = "save.spdk.tcp/perf"
    if not plan.wants(name):
        return []
    size = (512 if plan.quick else 1024) * MIB
    with nvmf_target(plan.work, 2, drive_mib(size)) as (ours, peers):
        pool = Pool(plan.stanchion, [ours])
        pool.format()
        save = lambda: pool.gb_per_s("write", size)
        return compare(name, "GB/s", plan.rounds, save, lambda: perf_gb_per_s([peers], 1 if plan.quick else 2))


def scales(plan):
    """N drives beside N times one drive, and beside perf on the same N drives: what the target's core can serve."""
    found = []
    counts = [n for n in SCALES if plan.wants(f"save.spdk.scale_{n}/{n}x_one", f"save.spdk.scale_{n}/perf")]
    if not counts:
        return []
    per_drive = (192 if plan.quick else 384) * MIB
    with nvmf_target(plan.work, max(counts) + 1, drive_mib(per_drive), LIMIT_MIB_PER_S) as addresses:
        one = Pool(plan.stanchion, addresses[-1:])
        one.format()
        for n in counts:
            drives = addresses[:n]
            pool = Pool(plan.stanchion, drives)
            pool.format()
            many = lambda: pool.gb_per_s("write", n * per_drive)
            name = f"save.spdk.scale_{n}/{n}x_one"
            if plan.wants(name):
                found += compare(name, "GB/s", plan.rounds, many, lambda: n * one.gb_per_s("write", per_drive))
            name = f"save.spdk.scale_{n}/perf"
            if plan.wants(name):
                found.append(beside_perf(plan, name, pool, many, drives))
    return found


def beside_perf(plan, name, pool, save, drives):
    """perf writes over the pool, so it is made anew each time."""
    ours, peers = [], []
    for number in range(plan.rounds):
        pool.format()
        ours.append(save())
        peers.append(perf_gb_per_s(drives, 1))
        say(f"{name} {number + 1}/{plan.rounds}: ours {ours[-1]:.4g}, peer {peers[-1]:.4g} GB/s")
    pool.format()
    return row_of_ratios(name, ours, "GB/s", [a / b for a, b in zip(ours, peers)], peers)
