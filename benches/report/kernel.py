# SPDX-License-Identifier: Apache-2.0
"""Rows of the kernel back end: a drive in a preallocated file, on the file system of the working directory."""
import itertools
import json
import os
import shutil

from .compare import Row, compare, row_of_ratios, say
from .tools import GIB, MIB, Failed, Pool, dd_gb_per_s, fio_gb_per_s, install, peak_memory, reserve_huge_pages, run

ENGINES = ("libaio", "io_uring")
BLOCKS = ("1M", "4M")
DEPTHS = (8, 16, 32)
PAGES = ("small", "huge")
BUFFER_BYTES = 64 * MIB
# Two files on one disk may differ by a tenth, so fio has the same one, and in it about the same place: the data of
# a pool of 2 to 4 GiB begins 75 to 145 MiB behind its start.
FIRST_DATA_BYTES = 110 * MIB


def file_pool(plan, name, size_bytes):
    """A pool of one new file with room for two generations, every block of which was written once: a file system turns
    reserved blocks into written ones at the first write, which is not what is to be measured."""
    path = plan.work / f"{name}.img"
    path.unlink(missing_ok=True)
    pool = Pool(plan.stanchion, [path], f"{2 * size_bytes // MIB + 256}MiB")
    pool.format()
    # From here on the file exists.
    pool.size = None
    for _ in range(3):
        pool.bench("write", size_bytes)
    return pool


def compared_with_fio(plan):
    wanted = {"write": "save.kernel/fio_best", "read": "restore.kernel/fio_best"}
    wanted = {rw: name for rw, name in wanted.items() if plan.wants(name)}
    if not wanted:
        return []
    install(["fio"])
    reserve_huge_pages(256)
    size = (1 if plan.quick else 2) * GIB
    pool = file_pool(plan, "drive", size)
    drive = plan.work / "drive.img"
    found = []
    for rw, name in wanted.items():
        best = best_of_fio(drive, plan, rw, size)
        peer = lambda: fio_gb_per_s(drive, FIRST_DATA_BYTES, rw, size, *best)

        def ours():
            if rw == "read":
                # The first follows a save, which the disk is still busy with; fio has no such start.
                return pool.bench(rw, size, runs=3)["gb_per_s"]
            # fio has written over the data; in a new pool the first checkpoint lies where fio writes.
            pool.format()
            return pool.gb_per_s(rw, size)

        note = "fio: %s, blocks of %s, depth %d, %s pages; on the same bytes of the same file" % best
        found += compare(name, "GB/s", plan.rounds, ours, peer, note)
    return found


def best_of_fio(drive, plan, rw, size_bytes):
    """Its fastest way on this machine, each tried in two turns, so that one slow moment does not decide."""
    ways = list(itertools.product(ENGINES, BLOCKS, DEPTHS, PAGES))
    rates = {way: 0 for way in ways}
    for _ in range(1 if plan.quick else 2):
        for way in ways:
            try:
                rates[way] = max(rates[way], fio_gb_per_s(drive, FIRST_DATA_BYTES, rw, size_bytes, *way))
            except Failed as failure:
                # io_uring is forbidden in some containers, and huge pages may be few.
                say(f"fio cannot {rw} with {way} here: {str(failure).splitlines()[-1]}")
    best = max(ways, key=rates.get)
    small = max(rate for way, rate in rates.items() if way[3] == "small")
    say(f"fio {rw}: best is {best} with {rates[best]:.3f} GB/s; with small pages {small:.3f} GB/s")
    return best


def buffered(plan):
    """The command on a file, compared with dd on the same file, both in the page cache."""
    name = "save.kernel/buffered_fsync"
    if not plan.wants(name):
        return []
    source = random_file(plan, "source", (1 if plan.quick else 2) * GIB)
    pool = file_pool(plan, "drive", source.stat().st_size)
    target = plan.work / "buffered.img"
    dd_gb_per_s(source, target)

    def save():
        report = pool.save("bench@1", [source])
        pool.remove("bench@1")
        return report["gb_per_s"]

    found = compare(name, "GB/s", plan.rounds, save, lambda: dd_gb_per_s(source, target), "peer: dd conv=fsync")
    target.unlink()
    return found


def random_file(plan, name, size_bytes):
    path = plan.work / name
    with path.open("wb") as out:
        block = os.urandom(64 * MIB)
        for _ in range(size_bytes // len(block)):
            out.write(block)
    return path


def memory(plan):
    """The process's peak without its buffers; it must not depend on the size of the checkpoint."""
    if not plan.wants("memory.beyond_buffers"):
        return []
    found = []
    sizes = {"64MiB": 64 * MIB, "1GiB": GIB, "4GiB": 4 * GIB}
    path = plan.work / "memory.img"
    path.unlink(missing_ok=True)
    pool = Pool(plan.stanchion, [path], "4480MiB")
    pool.format()
    beyond = {}
    for size_name, size in sizes.items():
        command = [
            plan.stanchion, "bench", "write", "--json", "--runs", 1, "--size", size, "--buffer-size", BUFFER_BYTES, *pool.drives,
        ]
        most, _ = peak_memory(command)
        beyond[size_name] = (most - BUFFER_BYTES) / MIB
        say(f"memory.beyond_buffers, checkpoint of {size_name}: {beyond[size_name]:.1f} MiB")
    path.unlink()
    smallest = beyond["64MiB"]
    for size_name, value in beyond.items():
        note = f"checkpoint of {size_name}; ratio to that of 64MiB; peak of resident and huge pages less 64 MiB of buffers"
        found.append(Row(f"memory.beyond_buffers.{size_name}", value, "MiB", value / smallest, runs=1, note=note))
    values = list(beyond.values())
    ratios = [value / smallest for value in values]
    found.insert(0, row_of_ratios("memory.beyond_buffers", [max(values)], "MiB", ratios, note="the most of the three"))
    return found


def small_tensors(plan):
    """Many small files, compared with one file of the same bytes, both through `stanchion save`."""
    name = "save.small_tensors/one_file"
    if not plan.wants(name):
        return []
    whole, parts = plan.work / "model.safetensors", plan.work / "tensors"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    run([plan.root / "scripts" / "make-workload", "--kind", "model", "--scale", 2, whole])
    tensors = split_safetensors(whole, parts)
    one = plan.work / "one"
    with one.open("wb") as out:
        for tensor in tensors:
            out.write(tensor.read_bytes())
    pool = file_pool(plan, "drive", one.stat().st_size + len(tensors) * MIB)

    def save(files):
        report = pool.save("bench@1", files)
        pool.remove("bench@1")
        return report["gb_per_s"]

    note = f"{len(tensors)} files of a llama3-8b list, {one.stat().st_size / MIB:.0f} MiB in all"
    found = compare(name, "GB/s", plan.rounds, lambda: save(tensors), lambda: save([one]), note)
    shutil.rmtree(parts)
    return found


def split_safetensors(path, into):
    """One file for each tensor."""
    with path.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(length))
        tensors = []
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            source.seek(8 + length + start)
            (into / name).write_bytes(source.read(end - start))
            tensors.append(into / name)
    return tensors


def ladder(plan):
    """The published remedies one at a time, and what saves during training add to an iteration."""
    if not plan.wants("train.stall") and not plan.wants("ladder"):
        return []
    size, ranks = (512 * MIB if plan.quick else 2 * GIB), 4
    paths = [plan.work / f"ladder{number}.img" for number in range(2)]
    for path in paths:
        path.unlink(missing_ok=True)
    pool = Pool(plan.stanchion, paths, f"{2 * size // MIB + 256}MiB")
    pool.format()
    command = [plan.stanchion, "bench", "ladder", "--json", "--size", size, "--ranks", ranks, "--runs", plan.rounds]
    measured = json.loads(run([*command, *pool.drives]))
    for path in paths:
        path.unlink()
    found = []
    for rung in measured["rungs"]:
        note = f"{rung['what']}; ratio: to the rung below; stall of the trainer {rung['stall_seconds']:.3f} s"
        found.append(Row(f"ladder.{rung['rung']}", rung["gb_per_s"], "GB/s", rung["gain"], runs=plan.rounds, note=note))
    train = measured["train"]
    note = f"saves during {train['compute_seconds']:.2f} s of compute, over the same iterations without saves"
    found.append(Row("train.stall", 100 * train["stall_share"], "% of an iteration", runs=5 * plan.rounds, note=note))
    return found


GROUPS = (compared_with_fio, buffered, memory, small_tensors, ladder)
