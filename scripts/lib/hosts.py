# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine, as containers are: each has a network, processes, mounts, IPC objects, a host name, a /run and a
/dev/shm of its own, and reaches an NVMe-oF target.

Make them within `run.private_network`: names and addresses of links are always the same."""

import os
import pathlib
import signal
import subprocess
import time

PREFIX = pathlib.Path(os.environ.get("STANCHION_SPDK_PREFIX") or "/opt/stanchion-spdk")
# A command that takes longer hangs.
LIMIT_SECONDS = 120
# What a host shares with no other one, as in /proc/PID/ns.
OWN = ("net", "mnt", "uts", "ipc", "pid", "cgroup")


def checked(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_SECONDS)


class Target:
    """A target of scripts/nvmf-target, which listens on an address for each host, too."""

    def __init__(self, repository, folder, drives, size):
        self.script, self.folder = repository / "scripts" / "nvmf-target", pathlib.Path(folder)
        started = subprocess.run([self.script, "start", "--run-dir", self.folder, "--drives", str(drives), "--size", size,
                                  "--port", "0", "--owner", str(os.getpid())], check=True, stdout=subprocess.PIPE, text=True)
        self.addresses = started.stdout.split("\n")[:-1]

    def listen(self, ip):
        """The drives' addresses at this IP."""
        for address in self.addresses:
            fields = dict(field.split(":", 1) for field in address.split(" "))
            checked("/usr/bin/python3", PREFIX / "scripts" / "rpc.py", "-s", self.folder / "rpc.sock", "nvmf_subsystem_add_listener",
                    fields["subnqn"], "-t", "tcp", "-f", "ipv4", "-a", ip, "-s", fields["trsvcid"])
        return [address.replace("127.0.0.1", ip) for address in self.addresses]

    def stop(self):
        subprocess.run([self.script, "stop", "--run-dir", self.folder], check=False, timeout=LIMIT_SECONDS)


class Host:
    """Namespaces that a process of ours keeps. `number` is below 200."""

    def __init__(self, name, number, target):
        self.name, self.link = name, f"host{number}"
        # The kernel ends everything in the pid namespace with its first process.
        script = (f"hostname {name} && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && echo ready && "
                  "exec sleep infinity")
        self.keeper = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--ipc", "--cgroup", "--pid", "--fork", "--mount-proc",
                                        "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        if self.keeper.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {name} did not start")
        self.first = child_of(self.keeper.pid)
        shared = [kind for kind in OWN if namespace(self.first, kind) == namespace("self", kind)]
        if shared:
            raise RuntimeError(f"host {name} shares {shared} with this one")
        ours, theirs = f"10.77.{number}.1", f"10.77.{number}.2"
        checked("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.first)
        checked("ip", "address", "add", f"{ours}/24", "dev", self.link)
        checked("ip", "link", "set", self.link, "up")
        for words in (("address", "add", f"{theirs}/24", "dev", "eth0"), ("link", "set", "eth0", "up"), ("link", "set", "lo", "up")):
            checked("nsenter", "-t", self.first, "--net", "ip", *words)
        self.drives = target.listen(ours)

    def start(self, command, **options):
        return Running(["nsenter", "-t", str(self.first), "--net", "--mount", "--uts", "--ipc", "--cgroup", "--pid", *command], **options)

    def run(self, command, **options):
        return self.start(command, **options).end()

    def stop(self):
        self.keeper.kill()
        self.keeper.wait()
        subprocess.run(["ip", "link", "delete", self.link], check=False, stderr=subprocess.DEVNULL)


def namespace(pid, kind):
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def child_of(pid, limit_seconds=10.0):
    """The only child of a process."""
    until = time.monotonic() + limit_seconds
    while time.monotonic() < until:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.001)
    raise RuntimeError(f"process {pid} has no child")


class Running:
    """A command on a host."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def signal(self, number):
        """To the command itself, not to what started it there. False when it has ended."""
        try:
            os.kill(child_of(self.process.pid, 0.05), number)
            if number == signal.SIGCONT:
                # nsenter stops itself with what it started.
                self.process.send_signal(number)
            return True
        except (OSError, RuntimeError):
            return False

    def end(self):
        """Waits for the end: (exit code, standard output, standard error). A killed one has -9."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.kill()
            out, err = self.process.communicate()
            err += f"\n(it did not end in {LIMIT_SECONDS} s)"
        code = self.process.returncode
        # nsenter ends as its child did.
        return (-signal.SIGKILL if code in (-signal.SIGKILL, 128 + signal.SIGKILL) else code), out, err
