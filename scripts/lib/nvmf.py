# SPDX-License-Identifier: Apache-2.0
"""An NVMe-oF target of scripts/nvmf-target: its folder, its configuration, and the process that keeps it."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import shlex
import signal
import socket
import subprocess
import time

MIB = 1 << 20
PREFIX = pathlib.Path(os.environ.get("STANCHION_SPDK_PREFIX") or "/opt/stanchion-spdk")
# How often a start with a free port tries again, when another process has taken the port.
PORT_ATTEMPTS = 5
START_SECONDS, END_SECONDS = 30, 5


class Refused(Exception):
    """Says what is wrong, and what to do."""


class Place:
    """The folder of a target: the processes that run there, and the files."""

    def __init__(self, folder):
        self.folder = folder
        self.socket, self.pid_file, self.keeper_file = folder / "rpc.sock", folder / "pid", folder / "keeper"
        self.addresses, self.log = folder / "addresses", folder / "log"

    @contextlib.contextmanager
    def locked(self):
        """One start or stop at a time. The lock of a folder leaves nothing behind."""
        lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise Refused(f"another start or stop works on {self.folder}") from None
        finally:
            os.close(lock)

    def make(self):
        """The folder, and a keeper that is just ending has ended: it would remove what a new one makes."""
        keeper = self.keeper()
        if keeper and not self.target():
            has_ended(keeper[1], END_SECONDS)
        self.folder.mkdir(parents=True, exist_ok=True)

    def process(self, file, mark):
        """A pidfd of the process that a file names, if its command line has this word: a pid may be another's by now."""
        try:
            pid = int(file.read_text())
            found = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        if os.fsencode(mark) in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid, found
        os.close(found)
        return None

    def target(self):
        return self.process(self.pid_file, self.socket)

    def keeper(self):
        return self.process(self.keeper_file, f"--run-dir={self.folder}")

    def is_kept(self):
        """Whether a keeper lives, of whatever PID namespace: it holds the lock of its file."""
        try:
            with open(self.keeper_file, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def remove_remains(self):
        """What a target left behind. Its huge pages are unlinked, so they went with it."""
        with contextlib.suppress(OSError, ValueError):
            pathlib.Path(f"/dev/shm/nvmf_trace.pid{int(self.pid_file.read_text())}").unlink()
        # The keeper's file last: until then a start waits for the keeper.
        for file in (self.pid_file, self.addresses, self.socket, f"{self.socket}.lock", self.keeper_file):
            with contextlib.suppress(OSError):
                os.unlink(file)

    def remove_all(self):
        """The log, too, and the folder unless it holds something else."""
        with contextlib.suppress(OSError):
            self.log.unlink()
        self.remove_remains()
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def has_ended(pidfd, seconds=0.0):
    return bool(select.select([pidfd], [], [], seconds)[0])


def end(pidfd):
    """Ends a process: by SIGTERM, then by SIGKILL."""
    for received, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, received)
            # A frozen one takes the signal only then.
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        if has_ended(pidfd, seconds):
            return


class Keeper:
    """The process that a target belongs to. It ends the target when the owner ends or when it is asked to, and the kernel ends
    the target when the keeper is killed. While the starting process still waits for the target, the end of that process ends the
    target, too."""

    def __init__(self, options, place, owner, starter, answer):
        self.options, self.place, self.owner, self.starter, self.answer = options, place, owner, starter, answer
        self.port, self.host = options.port, options.host_nqn
        self.target = self.target_end = None
        # `signal` writes into it, so that every wait also ends on a signal.
        self.asked, asked = os.pipe()
        os.set_blocking(asked, False)
        signal.set_wakeup_fd(asked)
        for received in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(received, lambda *_: None)

    def live(self):
        """The whole life of the keeper."""
        try:
            # Held until this process ends.
            self.file = open(self.place.keeper_file, "w", encoding="ascii")
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print(os.getpid(), file=self.file, flush=True)
            self.bring_up()
            os.write(self.answer, b"ok")
            os.close(self.answer)
            self.wait([self.target_end])
        except Ended:
            pass
        except (Refused, OSError) as error:
            with contextlib.suppress(OSError):
                os.write(self.answer, str(error).encode())
        died = self.target is not None and self.target.poll() is not None
        self.end_target()
        # The log of a target that died has the reason.
        self.place.remove_remains() if died else self.place.remove_all()

    def wait(self, wanted, seconds=None):
        """Waits for one of these; Ended when the target must end. Whether one came in time."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            ends = [self.asked, *filter(None, [self.owner])]
            left = None if until is None else max(0.0, until - time.monotonic())
            starter = [] if self.starter is None else [self.starter]
            ready, _, _ = select.select([*wanted, *ends, *starter], [], [], left)
            if set(ready) & set(ends):
                raise Ended
            if self.starter in ready:
                if os.read(self.starter, 1) != b"k":
                    raise Ended  # the process that started us was killed
                self.starter = None
                continue
            return bool(set(ready) & set(wanted))

    def bring_up(self):
        attempts = PORT_ATTEMPTS if self.options.port == 0 else 1
        for attempt in range(attempts):
            self.port = self.options.port or free_port()
            self.spawn()
            said = self.configure()
            if said is None:
                return
            self.end_target()
            if attempt + 1 == attempts or b"in use" not in said:
                raise Refused("nvmf_tgt refused the configuration:\n" + said.decode(errors="replace") + self.log_end())

    def spawn(self):
        options, place = self.options, self.place
        # No PCI (-u), huge pages unlinked at once (-R). Only the pools are taken at start (-s): a malloc drive taken
        # out of that memory would leave unusable remainders.
        command = [PREFIX / "bin" / "nvmf_tgt", "-m", f"[{options.core}]", "-s", str(pool_mib(options)), "-u", "-R", "-r", place.socket]
        # Later releases claim their core for one target; tests run several side by side.
        if offers("--disable-cpumask-locks"):
            command.append("--disable-cpumask-locks")
        keeper = os.getpid()

        def with_keeper():
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != keeper:
                os._exit(1)

        with open(place.log, "wb") as log:
            self.target = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=with_keeper)
        self.target_end = os.pidfd_open(self.target.pid)
        place.pid_file.write_text(f"{self.target.pid}\n")
        for _ in range(START_SECONDS * 20):
            if place.socket.exists():
                return
            if self.wait([self.target_end], 0.05):
                break
        raise Refused(f"nvmf_tgt did not come up:\n{self.log_end()}")

    def log_end(self):
        with contextlib.suppress(OSError):
            return "".join(self.place.log.read_text(errors="replace").splitlines(True)[-15:])
        return ""

    def configure(self):
        """Makes the drives. Returns what SPDK's tool printed when that failed."""
        tool = subprocess.Popen(["/usr/bin/python3", PREFIX / "scripts" / "rpc.py", "-s", self.place.socket], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        tool.stdin.write("\n".join(configuration(self.options, self.port, self.host)).encode() + b"\n")
        tool.stdin.close()
        ended = os.pidfd_open(tool.pid)
        try:
            self.wait([ended])
        finally:
            tool.kill()
            said = tool.stdout.read()
            os.close(ended)
            code = tool.wait()
        if code != 0:
            return said
        text = "".join(f"{address}\n" for address in addresses(self.options, self.port, self.host))
        self.place.addresses.write_text(text)
        return None

    def end_target(self):
        if self.target is not None:
            end(self.target_end)
            self.target.wait()


def offers(option):
    """Whether the target of this release has such an option."""
    said = subprocess.run([PREFIX / "bin" / "nvmf_tgt", "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=START_SECONDS, check=False)
    return option.encode() in said.stdout


class Ended(Exception):
    """The keeper is to end its target."""


def pool_mib(options):
    """Huge pages, in MiB, for SPDK's own pools and the transport's buffers: measured, 396 with one drive and 504 with four."""
    return 364 + options.drives * 36


def memory_mib(options):
    """All of the target's huge pages, in MiB."""
    return pool_mib(options) + (options.drives * (options.size + 2) if options.backing == "malloc" else 0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def nqn(drive):
    return f"nqn.2026-01.io.stanchion:drive{drive}"


def backing_file(options, drive):
    return os.path.join(os.path.abspath(options.backing.removeprefix("aio:")), f"drive{drive}.img")


def prepare_files(options):
    for drive in range(options.drives):
        path = backing_file(options, drive)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError), open(path, "xb") as file:
            os.truncate(file.fileno(), options.size * MIB)


def configuration(options, port, host):
    """The RPC calls that make the drives."""
    # 1 MiB commands, Stanchion's chunk, reach a drive whole; 128 KiB buffers are 8 of the 16 pieces that SPDK allows.
    yield f"nvmf_create_transport -t TCP -i 1048576 -u 131072 -n {192 + options.drives * 160} -m 16"
    for drive in range(options.drives):
        name, subsystem = f"drive{drive}", nqn(drive)
        if options.backing == "malloc":
            yield f"bdev_malloc_create -b {name} {options.size} {options.block_size}"
        else:
            # A bare aio device asks for I/O in pieces of 64 KiB (NOIOB), which no NVMe drive does and which the
            # initiator obeys by splitting every command. A RAID 0 of one member is the same device without that wish.
            yield f"bdev_aio_create {shlex.quote(backing_file(options, drive))} file{drive} {options.block_size}"
            yield f"bdev_raid_create -n {name} -z 1024 -r 0 -b file{drive}"
        if options.mbytes_per_second:
            yield f"bdev_set_qos_limit {name} --w_mbytes_per_sec {options.mbytes_per_second} --r_mbytes_per_sec {options.mbytes_per_second}"
        any_host = "-a " if options.any_host else ""
        yield f"nvmf_create_subsystem {subsystem} {any_host}-s STNDRIVE{drive} -d 'Stanchion test drive'"
        if not options.any_host:
            yield f"nvmf_subsystem_add_host {subsystem} {shlex.quote(host)}"
        # An NGUID of its own, so that a drive in a file keeps its identity over a restart, as a real one does.
        yield f"nvmf_subsystem_add_ns {subsystem} {name} -g 53544e4452495645{port:08x}{drive:08x}"
        yield f"nvmf_subsystem_add_listener {subsystem} -t tcp -f ipv4 -a 127.0.0.1 -s {port}"


def addresses(options, port, host):
    suffix = "" if options.any_host else f" hostnqn:{host}"
    for drive in range(options.drives):
        yield f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{nqn(drive)}{suffix}"
