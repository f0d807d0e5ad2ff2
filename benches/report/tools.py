# SPDX-License-Identifier: Apache-2.0
"""The programs that are measured, each called in one way: stanchion, fio, SPDK's perf and its target, dd."""
import contextlib
import json
import os
import pathlib
import re
import resource
import subprocess
import time

import built

from .compare import say

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SPDK = pathlib.Path(os.environ.get("STANCHION_SPDK_PREFIX", "/opt/stanchion-spdk"))
PERF = SPDK / "bin" / "spdk_nvme_perf"
MIB = 1 << 20
GIB = 1 << 30
# What stanchion uses: chunks of 1 MiB, 16 commands in flight on each drive.
IO_BYTES = MIB
DEPTH = 16


class Failed(Exception):
    """A program that was to be measured did not do its work."""


def run(command, **options):
    """Standard output of a command that succeeds."""
    command = [str(word) for word in command]
    done = subprocess.run(command, text=True, capture_output=True, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def install(packages):
    """From Debian, where they are missing."""
    run([ROOT / "scripts/lib/packages", "scripts/bench", *packages])


def has_spdk():
    return PERF.exists()


def build():
    """Builds the command, the C library and the benches; the paths of the command, libstanchion and the benches."""
    features = ["--features", "stanchion/spdk,stanchion-cli/spdk"] if has_spdk() else []
    say("building")
    made = built.artifacts(["build", "--locked", "--release", "-p", "stanchion-cli", "-p", "stanchion", *features], cwd=ROOT)
    programs = {"stanchion": built.executable(made, "stanchion"), "library": built.library(made, "libstanchion.so")}
    benches = ("commits", "rebuild", "ring_threads")
    named = [word for bench in benches for word in ("--bench", bench)]
    features = ["--features", "spdk"] if has_spdk() else []
    made = built.artifacts(["bench", "--locked", "--no-run", *features, *named], cwd=ROOT)
    programs |= {bench: built.executable(made, bench) for bench in benches}
    return {name: pathlib.Path(path) for name, path in programs.items()}


def target_directory():
    return pathlib.Path(built.target_directory(ROOT))


class Pool:
    """A pool on its drives, driven by the command. The drives are the bench's own, so nothing is asked."""

    def __init__(self, stanchion, drives, size=None, run=run):
        self.stanchion, self.run = stanchion, run
        self.drives = [word for drive in drives for word in ("--drive", str(drive))]
        self.size = size

    def format(self):
        size = ["--size", self.size] if self.size else []
        self.run([self.stanchion, "format", *self.drives, *size, "--yes", "--force"])

    def bench(self, what, size_bytes, runs=1):
        """The last run of some of `stanchion bench`, in a process of its own."""
        command = [self.stanchion, "bench", what, "--json", "--runs", runs, "--size", size_bytes, *self.drives]
        return json.loads(self.run(command))["runs"][-1]

    def gb_per_s(self, what, size_bytes):
        return self.bench(what, size_bytes)["gb_per_s"]

    def save(self, name, files):
        return json.loads(self.run([self.stanchion, "save", name, *files, "--json", *self.drives]))

    def remove(self, name):
        self.run([self.stanchion, "rm", name, "--yes", *self.drives])


def fio_gb_per_s(path, offset_bytes, rw, size_bytes, engine, block, depth, pages="small"):
    """fio on a part of a file that is there already, O_DIRECT; a write counts until its fsync has returned.

    Pages "huge" is what stanchion has: huge pages, known to io_uring beforehand. It may be the larger part of a
    difference, since a disk gets few long pieces of memory instead of many short ones.
    """
    job = [
        "fio", "--name=bench", f"--filename={path}", f"--offset={offset_bytes}", f"--size={size_bytes}", f"--rw={rw}",
        f"--ioengine={engine}", f"--bs={block}", f"--iodepth={depth}", "--direct=1", "--output-format=json",
        "--fallocate=none", "--overwrite=1", "--scramble_buffers=0", f"--end_fsync={int(rw == 'write')}",
    ]
    if pages == "huge":
        job.append("--iomem=shmhuge")
        if engine == "io_uring":
            job += ["--fixedbufs", "--registerfiles"]
    done = json.loads(run(job))["jobs"][0]
    seconds = done["job_runtime"] / 1e3
    return done["read" if rw == "read" else "write"]["io_bytes"] / seconds / 1e9


def perf_gb_per_s(addresses, seconds, rw="write", cores=os.cpu_count(), run=run):
    """SPDK's perf, on the core that stanchion's reactor would use. It flushes nothing: an upper bound.

    It counts what completes after its clock has stopped, a queue's worth for each drive, which is taken off again.
    """
    where = [word for address in addresses for word in ("-r", address)]
    core = 1 << (cores - 1)
    text = run([PERF, "-q", DEPTH, "-o", IO_BYTES, "-w", rw, "-t", seconds, "-c", hex(core), *where])
    rates = re.search(r"^Total\s*:\s*([\d.]+)\s+([\d.]+)", text, re.MULTILINE)
    if rates is None:
        raise Failed(f"spdk_nvme_perf printed no total:\n{text[-2000:]}")
    commands = float(rates[1]) * seconds - DEPTH * len(addresses)
    return commands * IO_BYTES / seconds / 1e9


def dd_gb_per_s(source, to):
    """A buffered copy with fsync at its end, into a file that is there already; the source is in the page cache."""
    started = time.monotonic()
    run(["dd", f"if={source}", f"of={to}", "bs=1M", "conv=fsync,notrunc", "status=none"])
    return source.stat().st_size / (time.monotonic() - started) / 1e9


def reserve_huge_pages(pages):
    """Reserves huge pages so that this many are free, until the bench ends."""
    free = int(pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
    if free < pages:
        run([ROOT / "scripts" / "hugepages", "--add", pages - free])


@contextlib.contextmanager
def nvmf_target(work, drives, size_mib, mib_per_second=0):
    """The addresses of a target's drives, while it runs. perf cannot name its host, so any is admitted: use a private network."""
    script, run_dir = ROOT / "scripts" / "nvmf-target", work / "nvmf"
    # The target's own pools (its script says how much) and room for stanchion and perf.
    reserve_huge_pages((400 + drives * (size_mib + 40)) // 2 + 256)
    where = ["--run-dir", run_dir]
    limit = ["--mbytes-per-second", mib_per_second] if mib_per_second else []
    try:
        started = run([script, "start", *where, "--drives", drives, "--size", f"{size_mib}MiB",
                       "--any-host", "--port", 0, "--owner", os.getpid(), *limit])
        yield started.split("\n")[:drives]
    finally:
        run([script, "stop", *where])


def peak_memory(command):
    """Most memory of a process in bytes, while it runs: resident pages and huge pages. Also its output."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    most = {"VmHWM": 0, "HugetlbPages": 0}
    status = pathlib.Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        with contextlib.suppress(OSError):
            for key, kib in re.findall(r"^(VmHWM|HugetlbPages):\s+(\d+) kB", status.read_text(), re.MULTILINE):
                most[key] = max(most[key], int(kib) * 1024)
        time.sleep(0.01)
    if process.returncode != 0:
        raise Failed(f"{command}: exit {process.returncode}")
    # The kernel's own record of the children's maximum covers what the last look missed.
    own = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 if most["VmHWM"] == 0 else most["VmHWM"]
    return own + most["HugetlbPages"], process.stdout.read()
