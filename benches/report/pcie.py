# SPDX-License-Identifier: Apache-2.0
"""Rows over PCIe: drives of an emulated machine, behind an emulated IOMMU, ours and SPDK's perf in the same guest.

The machine is emulated in software, so a checksum costs there some tens of times what it costs here. Drives held to a rate
that the emulated cores can follow show whether the engine keeps real queue pairs full; without a limit it is the emulation
that is measured, and the row says so.
"""
import contextlib
import shlex
import sys
import types

from .compare import compare, say
from .tools import MIB, PERF, ROOT, Failed, Pool, perf_gb_per_s

sys.path.insert(0, str(ROOT / "scripts" / "rig"))

from drive import SteadyDrive  # noqa: E402
from machine import GuestGone, Machine  # noqa: E402
from place import Place  # noqa: E402

COUNTS = (1, 2, 4)
DRIVE_BYTES = 512 * MIB
LIMIT_BYTES_PER_S = 20 * MIB
CORES = 2
# The emulation works out carry-less products bit by bit: checksums from tables are twice as fast there.
CPU = "max,-pclmulqdq,-vpclmulqdq"


class Guest:
    """The machine with its drives bound; runs ours and perf in it."""

    def __init__(self, machine, count):
        self.machine = machine
        self.addresses = [f"0000:{number + 1:02x}:00.0" for number in range(count)]
        self.pool = Pool("stanchion", [f"pcie:{address}" for address in self.addresses], run=self.run)
        self.run(["stanchion", "bind", *self.pool.drives])

    def run(self, command):
        """Its standard output; the standard error is in the exception, if it fails."""
        text = shlex.join(str(word) for word in command)
        status, output = self.machine.run(f"{text} 2>/tmp/said || {{ status=$?; cat /tmp/said; exit $status; }}", 300)
        if status != 0:
            raise Failed(f"in the emulated machine: {text}: exit {status}\n{output[-2000:]}")
        return output

    def save(self, size_bytes):
        """Into a new pool: perf has written over the last one."""
        self.pool.format()
        return self.pool.gb_per_s("write", size_bytes)

    def perf(self, seconds):
        """From the difference of two runs: perf counts what ends after its time, which is much of a short run."""
        short = max(1, seconds // 4)
        return (seconds * self.perf_once(seconds) - short * self.perf_once(short)) / (seconds - short)

    def perf_once(self, seconds):
        run = lambda command: self.run([PERF.name, *command[1:]])
        where = [f"trtype:PCIe traddr:{address}" for address in self.addresses]
        return perf_gb_per_s(where, seconds, cores=CORES, run=run)


@contextlib.contextmanager
def guest(plan, place, count, bytes_per_second):
    drives = [SteadyDrive(plan.work / f"pcie{n}.img", f"PCIE{n:04}", DRIVE_BYTES, bytes_per_second) for n in range(count)]
    with open(plan.work / "guest.log", "w", encoding="utf-8") as log:
        machine = Machine(place, drives, types.SimpleNamespace(lba=512, mdts=8, no_iommu=False, cpu=CPU), log)
        try:
            yield Guest(machine, count)
        finally:
            machine.power_cut()


def limited(plan, place, count):
    """Compared with perf; the second row is the control."""
    name = f"save.spdk.pcie_{count}/perf"
    seconds = 3 if plan.quick else 8
    per_drive = seconds * LIMIT_BYTES_PER_S
    with guest(plan, place, count, LIMIT_BYTES_PER_S) as booted:
        note = f"drives held to {LIMIT_BYTES_PER_S // MIB} MiB/s, emulated"
        ours = lambda: booted.save(count * per_drive)
        return compare(name, "GB/s", plan.rounds, ours, lambda: booted.perf(seconds), note)


def unlimited(plan, place):
    with guest(plan, place, 1, 0) as booted:
        ours, peer = (lambda: booted.save(256 * MIB)), (lambda: booted.perf(4))
        note = "no limit: how fast the emulated cores are; a checksum is emulated, too"
        return compare("save.spdk.pcie_unlimited/perf", "GB/s", plan.rounds, ours, peer, note)


def emulated(plan):
    names = {count: f"save.spdk.pcie_{count}/perf" for count in COUNTS}
    last = "save.spdk.pcie_unlimited/perf"
    if not plan.wants(*names.values(), last):
        return []
    place = Place(str(ROOT), str(plan.work / "rig"), (str(PERF),), release=True)
    try:
        place.prepare(lambda text: say(f"emulated machine: {text}"))
        found = []
        for count, name in names.items():
            if plan.wants(name):
                found += limited(plan, place, count)
        if plan.wants(last):
            found += unlimited(plan, place)
        return found
    except (GuestGone, TimeoutError, SystemExit) as error:
        raise Failed(f"the emulated machine: {error}") from None
    finally:
        place.clear()


GROUPS = (emulated,)
