# SPDX-License-Identifier: Apache-2.0
"""The emulated machine: QEMU without KVM, its drives behind an IOMMU, an agent in the guest, and QEMU's own monitor."""

import json
import os
import select
import signal
import socket
import subprocess
import time

BOOT_SECONDS = 180
MEMORY_MIB, HUGE_PAGES = 1536, 320


def option(value):
    """As a value among QEMU's options, which commas separate."""
    return str(value).replace(",", ",,")


class GuestGone(Exception):
    """The machine ended, or does not answer."""


class Machine:
    """One boot. `power_cut` kills the machine; `shut_down` ends it properly."""

    def __init__(self, place, drives, options, log):
        self.place, self.log = place, log
        sector, mdts = options.lba, options.mdts
        self.agent_path, self.monitor_path = f"{place.folder}/agent.sock", f"{place.folder}/qmp.sock"
        for path in (self.agent_path, self.monitor_path):
            if os.path.exists(path):
                os.unlink(path)
        arguments = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", options.cpu, "-smp", "2", "-m", str(MEMORY_MIB),
            "-machine", "q35,kernel-irqchip=split",
            "-display", "none", "-nodefaults", "-no-reboot",
            "-kernel", place.kernel, "-initrd", place.initrd,
            # A busy host delivers the first timer interrupts late; the kernel would treat the timer as broken.
            "-append", "console=ttyS0 no_timer_check quiet panic=-1 intel_iommu=on mitigations=off nokaslr audit=0 "
            f"hugepages={HUGE_PAGES} rdinit=/init",
            "-serial", f"file:{place.folder}/console.log",
            "-chardev", f"socket,id=agent,path={option(self.agent_path)},server=on,wait=off", "-serial", "chardev:agent",
            "-qmp", f"unix:{option(self.monitor_path)},server=on,wait=off",
            "-fsdev", f"local,id=share,path={option(place.share)},security_model=none",
        ]
        if not options.no_iommu:
            # Before the drives, so that it translates for them.
            arguments += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        for number, drive in enumerate(drives):
            arguments += [
                "-drive", f"if=none,id=d{number},format=raw,{drive.source}",
                "-device", f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1}",
                "-device", f"nvme,id=nvme{number},bus=port{number},serial={drive.serial},mdts={mdts},"
                           f"drive=d{number},logical_block_size={sector},physical_block_size={sector}",
            ]
        arguments += ["-device", "virtio-9p-pci,fsdev=share,mount_tag=rig"]
        # A group of its own, so that Ctrl-C on the host's terminal reaches the script alone.
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=open(f"{place.folder}/qemu.log", "ab"),
                                        stderr=subprocess.STDOUT, start_new_session=True)
        self.next_id = 0
        self.pending = b""
        try:
            self.agent = self._connect(self.agent_path)
            self._until("@@ready", time.monotonic() + BOOT_SECONDS)
        except BaseException:
            self.power_cut()
            raise

    def _connect(self, path):
        deadline = time.monotonic() + 20
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
                return connection
            except OSError:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise GuestGone(f"QEMU did not start: see {self.place.folder}/qemu.log") from None
                time.sleep(0.02)

    def _line(self, deadline):
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the guest does not answer in time")
            if select.select([self.agent], [], [], left)[0]:
                try:
                    received = self.agent.recv(65536)
                except ConnectionError:
                    received = b""
                if not received:
                    raise GuestGone("the machine is off")
                self.pending += received
        line, self.pending = self.pending.split(b"\n", 1)
        text = line.decode(errors="replace").rstrip("\r")
        self.log.write(text + "\n")
        return text

    def _until(self, mark, deadline, on_line=None):
        lines = []
        while True:
            line = self._line(deadline)
            # Output without a newline at its end stands before the mark.
            at = line.find(mark + " ")
            if at >= 0:
                if line[:at]:
                    lines.append(line[:at])
                return int(line[at + len(mark) + 1:]), "\n".join(lines)
            lines.append(line)
            if on_line:
                on_line(line)

    def start(self, command):
        """Sends a command and does not wait; `finish` does."""
        self.next_id += 1
        self.log.write(f"$ {command}\n")
        self.agent.sendall(f"{self.next_id} {command}\n".encode())

    def finish(self, seconds=120, on_line=None):
        """Exit status and output of the command that was started."""
        return self._until(f"@@{self.next_id}", time.monotonic() + seconds, on_line)

    def run(self, command, seconds=120):
        self.start(command)
        return self.finish(seconds)

    def monitor(self, command, **arguments):
        """A command of QEMU's own monitor."""
        connection = self._connect(self.monitor_path)
        with connection, connection.makefile("rw") as stream:
            stream.readline()
            for request in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                while "event" in (answer := json.loads(stream.readline())):
                    pass
        if "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def power_cut(self):
        """Kills the machine. Whatever it did not report counts as not done."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def shut_down(self):
        if self.process.poll() is None:
            try:
                self.start("poweroff -f")
                self.process.wait(30)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.power_cut()
