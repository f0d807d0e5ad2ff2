# SPDX-License-Identifier: Apache-2.0
"""What was measured, and on what."""
import datetime
import os
import pathlib
import re

from .tools import ROOT, SPDK, Failed, run


def source():
    """The code that is measured. Read before anything is built or written."""
    commit = attempt(["git", "-C", ROOT, "rev-parse", "HEAD"])
    changes = attempt(["git", "-C", ROOT, "status", "--porcelain"])
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"commit": commit, "clean": changes == "", "measured_at": started.replace("+00:00", "Z")}


def describe(work):
    cpu = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    memory_kib = int(re.search(r"^MemTotal:\s+(\d+)", read("/proc/meminfo"), re.MULTILINE)[1])
    source, kind = attempt(["findmnt", "-n", "-o", "SOURCE,FSTYPE", "-T", work]).split() or ("?", "?")
    disk = pathlib.Path(source).name
    queue = f"/sys/class/block/{disk}/queue"
    return {
        "cpu": cpu[1] if cpu else os.uname().machine,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "kernel": os.uname().release,
        "file_system": f"{kind} on {source}",
        "volatile_cache": read(f"{queue}/write_cache").strip() or "unknown",
        "load_average_at_start": os.getloadavg()[0],
        "rustc": attempt(["rustc", "--version"]),
        "fio": attempt(["fio", "--version"]),
        "spdk": spdk_version(),
    }


def spdk_version():
    file = read(SPDK / "lib" / "pkgconfig" / "spdk_nvme.pc")
    version = re.search(r"^Version:\s*(\S+)", file, re.MULTILINE)
    return version[1] if version else "not installed"


def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def attempt(command):
    try:
        return run(command).strip()
    except (Failed, OSError):
        return "?"
