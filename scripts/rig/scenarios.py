# SPDX-License-Identifier: Apache-2.0
"""What is done with the machine, and the required results."""

import array
import os
import random
import signal
import threading
import time

from drive import READ, WRITE
from machine import GuestGone, Machine

MIB = 1 << 20
LOOP_MAX_BYTES, LOOP_KEEPS = 5 * MIB, 8
# The end of a drive has labels and roots; see docs/on-disk-format.md.
DATA_END_FROM_END = 4 * MIB
UNPLUG_SECONDS = 90


def root_ranges(size_bytes):
    """Where a drive's roots lie, which are written with Force Unit Access; see docs/on-disk-format.md."""
    end = size_bytes // MIB * MIB
    return [(3 * MIB, 4 * MIB), (end - 3 * MIB, end - 2 * MIB)]


class Violation(Exception):
    """The engine did what it must not do."""


def expect(condition, text):
    if not condition:
        raise Violation(text)


def fnv1a_32(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def content(name, length):
    """The bytes that `save_loop` saves under this name; see engine/examples/save_loop.rs."""
    base = fnv1a_32(name) << 32
    words = array.array("Q", range(base, base + (length + 7) // 8))
    return words.tobytes()[:length]


class Rig:
    """Drives that outlive the machine, the machine as it is now, and what was acknowledged."""

    def __init__(self, place, drives, options, log):
        self.place, self.drives, self.options, self.log = place, drives, options, log
        self.machine = None
        self.log_path = f"{place.share}/log"
        self.bind_command = "stanchion bind"
        if options.no_iommu:
            self.bind_command += " --driver uio_pci_generic --no-iommu"
        self.addresses = [f"pcie:0000:{number + 1:02x}:00.0" for number in range(len(drives))]

    def boot(self):
        try:
            self.machine = Machine(self.place, self.drives, self.options, self.log)
        except (GuestGone, TimeoutError):
            # Nothing of ours runs before the guest is ready: a kernel that does not start is not the engine's fault.
            self.log.write("the machine did not start; once more\n")
            self.machine = Machine(self.place, self.drives, self.options, self.log)

    def end(self):
        if self.machine:
            self.machine.power_cut()
            self.machine = None

    def shut_down(self):
        self.machine.shut_down()
        self.machine = None
        for drive in self.drives:
            drive.power_off()

    def power_cut(self, seed):
        """What happened to the writes that no flush had covered, over all drives."""
        self.end()
        fates = [drive.power_cut(f"{seed}/{drive.serial}") for drive in self.drives]
        return {fate: sum(one[fate] for one in fates) for fate in fates[0]}

    def cut_after(self, commands):
        """Kills the machine when this many more writes and flushes have reached the drives, during the last of them."""
        done = threading.Event()
        left = [commands]
        counting = threading.Lock()

        def count():
            with counting:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(self.machine.process.pid, signal.SIGKILL)
                    done.set()

        for drive in self.drives:
            drive.on_command = count
        expect(done.wait(120), f"no {commands} commands reached the drives in 120 s")
        for drive in self.drives:
            drive.on_command = None

    def with_drives(self, command, addresses=None):
        return command + "".join(f" --drive {address}" for address in addresses or self.addresses)

    def run(self, command, code=0, says=(), seconds=120):
        """Runs a command in the guest, which must end with this code and say all of this."""
        ended, output = self.machine.run(command, seconds)
        expect(ended == code, f"{command}: exit code {ended}, not {code}: {output}")
        for text in says:
            expect(text in output, f"{command}: {text!r} is not in: {output}")
        return output

    def device(self, number):
        """The kernel's name of a drive that its driver has: newer kernels give them in any order."""
        folder = f"/sys/bus/pci/devices/{self.addresses[number][5:]}/nvme"
        found = self.run(f"ls {folder}/* | grep -x 'nvme[0-9]*n1'").split()
        expect(len(found) == 1, f"drive {number} has the devices {found}")
        return f"/dev/{found[0]}"

    def bind(self):
        self.run(self.with_drives(self.bind_command))

    def start_saving(self, first):
        self.machine.start(f"save_loop save {first} {LOOP_MAX_BYTES} {LOOP_KEEPS} /mnt/log {' '.join(self.addresses)}")

    def log_lines(self):
        if not os.path.exists(self.log_path):
            return []
        with open(self.log_path, encoding="utf-8") as file:
            text = file.read()
        # A line that is cut off does not count.
        return [line.split() for line in text.split("\n")[:-1]]

    def wait_for_saves(self, count, seconds=120):
        """Waits until this many more checkpoints are acknowledged than now."""
        acknowledged = lambda: sum(line[0] == "saved" for line in self.log_lines())
        wanted, deadline = acknowledged() + count, time.monotonic() + seconds
        while acknowledged() < wanted:
            expect(self.machine.process.poll() is None, "QEMU ended by itself")
            expect(time.monotonic() < deadline, f"no {count} checkpoints were saved in {seconds} s")
            time.sleep(0.02)

    def check_acknowledged(self):
        """Restores everything and compares it with the log. Returns the next step, and how many were compared."""
        present, must, may_be_gone, lengths = set(), set(), set(), {}
        for what, name, *rest in self.log_lines():
            if what == "saving":
                lengths[name] = int(rest[0])
            elif what == "saved":
                must.add(name)
            elif what == "removing":
                may_be_gone.add(name)
                must.discard(name)
            elif what == "removed":
                may_be_gone.discard(name)
                lengths.pop(name)
        folder = f"{self.place.share}/restored"
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        self.run(f"save_loop restore /mnt/restored {' '.join(self.addresses)}", says=["restored everything"])
        for name in os.listdir(folder):
            expect(name in lengths, f"{name} is there, and was removed or never saved")
            with open(f"{folder}/{name}", "rb") as file:
                found = file.read()
            expect(found == content(name, lengths[name]), f"{name} is not what was saved")
            present.add(name)
        expect(must <= present, f"acknowledged and lost: {', '.join(sorted(must - present))}")
        self.run(self.with_drives("stanchion verify --quiet"))
        steps = [int(name.split("@")[1]) for what, name, *rest in self.log_lines() if what == "saving"]
        return max(steps, default=0) + 1, len(present)


def functional(rig, say):
    """doctor, bind, format, save, restore, verify, and what must be refused on the way."""
    say("doctor before, refusals, bind")
    first, serial = rig.addresses[0], rig.drives[0].serial
    rig.run(rig.with_drives("stanchion doctor"), 13, ["bound to the kernel driver nvme", f"stanchion bind --drive {first}"])
    rig.run(rig.with_drives("stanchion list"), 13, ["bound to the kernel driver nvme"])
    if rig.options.no_iommu:
        rig.run(f"stanchion bind --drive {first}", 13, [serial, "no IOMMU", "--no-iommu"])
    dry = rig.run(f"{rig.bind_command} --drive {first} --dry-run")
    expect(f"echo {first[5:]} > /sys/bus/pci/drivers_probe" in dry, f"the dry run shows no probe: {dry}")
    device = rig.device(0)
    rig.run(f"mke2fs -b 4096 -F {device} >/dev/null && mkdir -p /tmp/m && mount -t ext4 {device} /tmp/m")
    forced = f"{rig.bind_command} --drive {first} --serial {serial} --force"
    rig.run(forced, 12, [serial, "mounted at /tmp/m", "nothing overrides"])
    rig.run("umount /tmp/m")
    rig.run(f"{rig.bind_command} --drive {first}", 12, [serial, "ext2 file system", f"--serial {serial} --force"])
    rig.run(f"{rig.bind_command} --drive {first} --serial OTHER --force", 12, [serial])
    rig.run(f"exec 9<{device}; {forced}", 11, [serial, "in use by"])
    rig.run(forced, 0, [f"stanchion unbind --drive {first}"])
    unbound = rig.run(f"stanchion unbind --drive {first}")
    device = rig.device(0)
    expect(device in unbound, f"{device} is not in: {unbound}")
    rig.run(f"dd if=/dev/zero of={device} bs=1M count=2 2>/dev/null; sync")
    rig.bind()
    rig.run(rig.with_drives(rig.bind_command), 0, ["already, as"])
    rig.run(rig.with_drives("stanchion doctor"), 0, [serial, "volatile; every commit flushes it", "% used"])

    say("format, save, restore, verify")
    rig.run(rig.with_drives("stanchion format --yes"))
    names = {"a@1": 5 * MIB + 17, "b@7": MIB, "c@2": 8 * MIB - 1}
    for name, length in names.items():
        with open(f"{rig.place.share}/{name}", "wb") as file:
            file.write(content(name, length))
        rig.run(rig.with_drives(f"stanchion save {name} /mnt/{name}"))
    for name, length in names.items():
        rig.run(rig.with_drives(f"stanchion restore {name} -o /mnt/out-{name}"))
        with open(f"{rig.place.share}/out-{name}/{name}", "rb") as file:
            expect(file.read() == content(name, length), f"{name} came back differently")
    rig.run(rig.with_drives("stanchion verify"), 0, ["verified 3 checkpoints"])

    say("a second process, a killed process")
    commands = (f"save_loop save 1 {LOOP_MAX_BYTES} {LOOP_KEEPS} /mnt/log {' '.join(rig.addresses)} & pid=$!; "
                "until [ $(grep -c ^saved /mnt/log) -ge 2 ]; do sleep 0.1; done; ")
    for command in ("list", "unbind", "doctor"):
        commands += rig.with_drives(f"stanchion {command}") + f"; echo {command} ended with $?; "
    commands += "kill -9 $pid; wait $pid; echo the loop ended with $?"
    rig.run(commands, 0, ["list ended with 11", "unbind ended with 11", "doctor ended with 11", "save_loop (pid",
                         "the loop ended with 137"])
    for name in names:
        rig.run(rig.with_drives(f"stanchion rm --yes {name}"))
    rig.check_acknowledged()


def data_first(drive):
    """No metadata lies behind this: its area has at most an eighth of a drive, after at most 8 MiB."""
    return drive.size_bytes // 8 + 8 * MIB


def media_errors(rig, say):
    """Reads and writes that a drive fails: errors have the NVMe status and the serial; the rest is unchanged."""
    say("media errors")
    drive = rig.drives[-1]
    length = 8 * MIB * len(rig.drives)  # so much that some of it lies there
    with open(f"{rig.place.share}/e@1", "wb") as file:
        file.write(content("e@1", length))
    rig.run(rig.with_drives("stanchion save e@1 /mnt/e@1"))
    drive.failing = [(READ, data_first(drive), drive.size_bytes - DATA_END_FROM_END)]
    rig.run(rig.with_drives("stanchion restore e@1 -o /mnt/out"), 3, ["NVMe status 02/81", drive.serial])
    rig.run(rig.with_drives("stanchion verify"), 3, ["NVMe status 02/81", drive.serial])
    # A place that cannot be written is left alone: the chunks go to the other drives, while there are such.
    failing_writes = [(WRITE, data_first(drive), drive.size_bytes - DATA_END_FROM_END)]
    drive.failing = failing_writes
    if len(rig.drives) > 1:
        rig.run(rig.with_drives("stanchion save f@1 /mnt/e@1"), 0, ["NVMe status 02/80", drive.serial, "cannot be written", "saved f@1"])
    for other in rig.drives:
        other.failing = failing_writes
    rig.run(rig.with_drives("stanchion save g@1 /mnt/e@1"), 1, ["g@1", "NVMe status 02/80", drive.serial])
    for other in rig.drives:
        other.failing = []
    whole = ["e@1", "f@1"] if len(rig.drives) > 1 else ["e@1"]
    for name in whole:
        rig.run(rig.with_drives(f"stanchion restore {name} -o /mnt/out-{name}"))
        with open(f"{rig.place.share}/out-{name}/e@1", "rb") as file:
            expect(file.read() == content("e@1", length), f"{name} came back differently")
        rig.run(rig.with_drives(f"stanchion rm --yes {name}"))
    rig.check_acknowledged()


def give_back(rig, say):
    """The drives go back to the kernel, and hold the same pool there."""
    say("unbind")
    unbound = rig.run(rig.with_drives("stanchion unbind"), 0, ["to undo"])
    devices = [rig.device(number) for number in range(len(rig.drives))]
    for device in devices:
        expect(f"to nvme, now {device}" in unbound, f"{device} is not in: {unbound}")
    rig.run(rig.with_drives("stanchion verify --quiet", devices))
    # Drives without reservations, by the kernel's calls for them; twice, since an opening may leave something on a drive.
    length = 4 * MIB
    with open(f"{rig.place.share}/kernel@1", "wb") as file:
        file.write(content("kernel@1", length))
    for name in ("kernel@1", "kernel@2"):
        rig.run(rig.with_drives(f"stanchion save {name} /mnt/kernel@1", devices))
    rig.run(rig.with_drives("stanchion restore kernel@2 -o /mnt/out-kernel", devices))
    with open(f"{rig.place.share}/out-kernel/kernel@1", "rb") as file:
        expect(file.read() == content("kernel@1", length), "kernel@2 came back differently")
    rig.run(rig.with_drives("stanchion rm --yes kernel@1 kernel@2", devices))
    rig.run(rig.with_drives("stanchion doctor", devices), 0, ["% used", rig.drives[0].serial])


def power_cuts(rig, count, seed, say):
    """Kills the machine while it saves, `count` times; after each all that was acknowledged is there."""
    chance = random.Random(f"power cuts {seed}")
    totals = {"compared": 0}
    step, _ = rig.check_acknowledged()
    for number in range(1, count + 1):
        before = sum(line[0] == "saved" for line in rig.log_lines())
        rig.start_saving(step)
        rig.wait_for_saves(1)
        if chance.random() < 0.25:
            instant = chance.uniform(0, 3)
            when = f"{instant:.2f} s"
            time.sleep(instant)
        else:
            # A save is some large writes and some small ones, and each is as good an instant as another.
            commands = chance.randrange(1, 200)
            when = f"{commands} commands"
            rig.cut_after(commands)
        fates = rig.power_cut(f"{seed}/{number}")
        saved = sum(line[0] == "saved" for line in rig.log_lines()) - before
        rig.boot()
        rig.bind()
        step, compared = rig.check_acknowledged()
        totals["compared"] += compared
        for fate, writes in fates.items():
            totals[fate] = totals.get(fate, 0) + writes
        say(f"cut {number} of {count}, {when} after a save: {saved} more acknowledged, {compared} restored and compared; "
            f"writes in the caches: {fates['lost']} lost, {fates['torn']} torn, {fates['kept']} kept")
    return totals


def unplugs(rig, count, seed, say):
    """Takes a drive out while the machine saves, `count` times, and starts it again with the drive back."""
    chance = random.Random(f"unplugs {seed}")
    step, _ = rig.check_acknowledged()
    slowest = 0.0
    for number in range(1, count + 1):
        rig.start_saving(step)
        rig.wait_for_saves(1)
        time.sleep(chance.uniform(0, 3))
        victim = chance.randrange(len(rig.drives))
        serial, address = rig.drives[victim].serial, rig.addresses[victim][5:]
        asked = time.monotonic()
        rig.machine.monitor("device_del", id=f"nvme{victim}")
        try:
            code, output = rig.machine.finish(UNPLUG_SECONDS)
        except TimeoutError:
            raise Violation(f"unplugging {serial}: the process that used it has not ended in {UNPLUG_SECONDS} s") from None
        took = time.monotonic() - asked
        slowest = max(slowest, took)
        expect(code == 1, f"unplugging {serial}: exit code {code}: {output}")
        expect(serial in output and "is gone" in output, f"unplugging {serial}: no clear error: {output}")
        rig.run(f"n=0; while [ -e /sys/bus/pci/devices/{address} ]; do sleep 0.2; n=$((n+1)); [ $n -lt 150 ] || exit 9; done")
        # The rest can be read, but not written.
        rig.run(rig.with_drives("stanchion list"), 0, [address, f"lost with {serial}"])
        rig.run(rig.with_drives("stanchion rm none@1"), 10, [address])
        rig.machine.shut_down()
        for drive in rig.drives:
            # To the drive it is a power cut.
            drive.power_cut(f"{seed}/{number}") if drive.serial == serial else drive.power_off()
        rig.boot()
        rig.bind()
        step, compared = rig.check_acknowledged()
        say(f"unplug {number} of {count}, of {serial}: the process ended with an error after {took:.1f} s; "
            f"{compared} restored and compared")
    return slowest
