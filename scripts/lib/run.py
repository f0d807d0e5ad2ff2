#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one of our scripts so that nothing of it is left, however it ends.

    run.py --name NAME [--below DIR] [--keep] [--grace SECONDS] [--shared-folders] -- COMMAND...

What a run has of its own:

- a new folder below DIR (or TMPDIR); it is also TMPDIR of the command. Only this folder is ever removed, and what was not
  there before it;
- as root, a PID namespace: when its first process ends, the kernel ends all others in it;
- as root, a mount namespace with a /proc, a /run/stanchion, a /dev/shm, a /dev/hugepages and a runtime folder of DPDK of its own,
  so that equal process ids of two runs never meet, and no lock file outlives the run;
- the huge pages that it added with `scripts/hugepages --add`.

Four processes:

    this one       has the process id that the caller knows. On INT, TERM, HUP it ends the run at once (after SECONDS with
                   --grace, which the command gets to report), cleans, and ends with 130, 143, 129.
    watcher        in a session of its own; cleans when this one was killed.
    init           the first process of the namespace; ends with this one (PR_SET_PDEATHSIG), reaps orphans.
    the command    a child of init.

A record of each run lies in RUNS while it runs: what it made, and a lock that these processes hold. The record is written before
the thing is made. A record whose lock is free belongs to a run whose watcher was killed, too: the next run and scripts/clean
remove it.

Without root, or where namespaces are forbidden, the run's processes are those that have its record in their environment.
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import secrets
import select
import shutil
import signal
import socket
import struct
import sys
import time

PAGES = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
MARKER = ".stanchion-run"
# Signals that end a run, which this process and init wait for; blocked, and taken by sigwait.
ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    ENDS.discard(signal.SIGHUP)  # nohup

CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID = 0x20000, 0x40000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOP_CLR_FD, LOOP_GET_STATUS64, LOOP_INFO64_BYTES = 0x4C01, 0x4C05, 232
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    """A system call by its name in the C library; OSError when it fails."""
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def end_with_parent():
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def mount(source, target, kind, flags=0, data=None):
    call("mount", source.encode(), os.fsencode(target), kind and kind.encode(), flags, data and data.encode())


def runs_folder():
    """Where the records lie."""
    if os.geteuid() == 0:
        return pathlib.Path("/run/stanchion-runs")
    # Not TMPDIR, which differs from run to run.
    return pathlib.Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"stanchion-runs-{os.getuid()}"


# What a run made, and how it is removed.


def clean(record, say=lambda text: None):
    """Removes what a run made, then its record. The caller holds the record's lock, and the run's processes have ended."""
    keep = (record / "keep").exists()
    folder = read(record / "folder")
    if folder:
        release_loop_devices(folder, say)
        if keep:
            unlink(os.path.join(folder, MARKER))
        else:
            remove_folder(folder, record.name, say)
    give_back_huge_pages(record, say)
    for parent in reversed(read(record / "parents").split("\0")):
        if parent and not keep:
            rmdir(parent)
    shutil.rmtree(record, ignore_errors=True)
    rmdir(record.parent)


def remove_folder(folder, name, say):
    if read(pathlib.Path(folder, MARKER)) == name:
        say(f"removing {folder}")
        # The second time removes what was written during the first.
        for _ in range(3):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                return
    else:
        # Killed before the marker was there: then it is empty. Anything else is not ours.
        rmdir(folder)


def release_loop_devices(folder, say):
    """Loop devices are the machine's: those on files of the run would stay. By inode, as a path of a chroot means nothing here."""
    files = set()
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(at, name))
                files.add((found.st_dev, found.st_ino))
            except OSError:
                continue
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        device = f"/dev/{backing.parent.parent.name}"
        try:
            with open(device, "rb") as file:
                info = fcntl.ioctl(file, LOOP_GET_STATUS64, bytes(LOOP_INFO64_BYTES))
                # Its path, too, since the file may be deleted.
                if struct.unpack_from("QQ", info) in files or read(backing).startswith(folder + "/"):
                    say(f"detaching {device} from {read(backing)}")
                    fcntl.ioctl(file, LOOP_CLR_FD)
        except OSError as error:
            if error.errno != errno.ENXIO:  # detached meanwhile
                say(f"{device}: {error}")


def give_back_huge_pages(record, say):
    """Removes the pages that the run added. The kernel takes back pages in use when they are freed."""
    lines = [line.split() for line in read(record / "huge-pages").splitlines()]
    if not lines:
        return
    try:
        with locked(PAGES):
            total = int(read(PAGES / "nr_hugepages")) - int(read(PAGES / "surplus_hugepages"))
            more = 0
            for what, before, pages in lines:
                if what == "got":
                    more += int(pages)
                elif what == "asked" and ["got", before, pages] not in lines and ["none", before, pages] not in lines:
                    # Killed while it asked: the count shows the result.
                    more += min(int(pages), max(0, total - int(before)))
            if more:
                say(f"giving back {more} huge pages")
                (PAGES / "nr_hugepages").write_text(str(max(0, total - more)))
    except OSError as error:
        say(f"huge pages: {error}")


def clean_dead_runs(say=lambda text: None, really=True):
    """Cleans the runs of which no process is left. The number of them."""
    found = 0
    for record in sorted(runs_folder().glob("*/")):
        try:
            # Not between the making of a record and its lock.
            with locked(runs_folder()):
                lock = lock_of(record)
        except OSError:
            return found  # the last run has just removed the folder
        if lock is None:
            continue
        found += 1
        say(f"the run {record.name} has ended and left its record")
        if really:
            clean(record, say)
        else:
            say(f"  its folder: {read(record / 'folder') or 'none'}; huge pages: {read(record / 'huge-pages').strip() or 'none'}")
        os.close(lock)
    return found


@contextlib.contextmanager
def locked(folder):
    """Holds the lock of a folder, which leaves nothing behind."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def lock_of(record):
    """The lock of a record, now held, or None when another process holds it."""
    try:
        lock = os.open(record / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    except OSError:
        os.close(lock)
        return None


def read(path):
    try:
        return pathlib.Path(path).read_text().strip("\n")
    except OSError:
        return ""


def unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def rmdir(path):
    try:
        os.rmdir(path)
    except OSError:
        pass


# The run.


def new_record(name):
    """The record of a new run and its held lock."""
    os.umask(0o022)
    while True:
        record = runs_folder() / f"{name}-{secrets.token_hex(4)}"
        try:
            record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with locked(record.parent):
                record.mkdir(mode=0o700)
                return record, lock_of(record)
        except FileNotFoundError:
            continue  # the last run has just removed the folder


def make_folder(record, options):
    below = os.path.abspath(options.below or os.environ.get("TMPDIR") or "/tmp")
    missing, at = [], below
    while not os.path.exists(at):
        missing.append(at)
        at = os.path.dirname(at)
    if options.keep:
        (record / "keep").touch()
    # Topmost first, as they are made.
    (record / "parents").write_text("\0".join(reversed(missing)))
    os.makedirs(below, exist_ok=True)
    folder = os.path.join(below, f"stanchion-{record.name}")
    (record / "folder").write_text(folder)
    os.mkdir(folder, 0o700)
    pathlib.Path(folder, MARKER).write_text(record.name)
    return folder


def watch(parent, messages, record):
    """The watcher's whole life. `messages` brings init's pidfd, or ends with the parent."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.chdir("/")
    _, fds, _, _ = socket.recv_fds(messages, 16, 1)
    select.select([parent], [], [])
    for init in fds:
        try:
            signal.pidfd_send_signal(init, signal.SIGKILL)
        except ProcessLookupError:
            pass
        select.select([init], [], [])
    if record.exists():
        if (record / "no-namespace").exists():
            kill_all(record)
        clean(record)
    # Those within this one, whose watchers ended with its namespace.
    clean_dead_runs()
    os._exit(0)


def kill_all(record):
    """Without a namespace: every process that carries the run's record in its environment, until there is none."""
    mark = os.fsencode(f"STANCHION_RUN={record}")
    while True:
        found = 0
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found += 1
            except OSError:
                continue  # another user's, or it has ended
        if not found:
            return
        time.sleep(0.01)


def no_mount_leaves_this_namespace():
    """Makes all mounts private. In a chroot, the mount that holds its folder can be named from outside only."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.getcwd()
    os.chdir("/")
    # With a root below the working folder, .. leads out.
    os.chroot("/proc")
    while not os.path.samestat(os.stat("."), os.stat("..")):
        os.chdir("..")
    os.chroot(".")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.fchdir(root)
    os.chroot(".")
    os.close(root)
    os.chdir(before)


def private_mounts(shared_folders):
    call("unshare", CLONE_NEWNS)
    no_mount_leaves_this_namespace()
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if shared_folders:
        return
    # Stanchion takes no lock in a folder that others may write.
    for folder, mode in (("/run/stanchion", "0755"), ("/run/dpdk", "1777"), ("/dev/shm", "1777")):
        # Not over the run's own folder.
        if not os.environ["STANCHION_RUN_FOLDER"].startswith(folder + "/"):
            os.makedirs(folder, exist_ok=True)
            mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode}")
    try:
        os.makedirs("/dev/hugepages", exist_ok=True)
        mount("nodev", "/dev/hugepages", "hugetlbfs", 0, "pagesize=2M")
    except OSError:
        pass  # a kernel without huge pages; a script that needs them fails with a message


def init(go, alone, options):
    """The first process of the run. Its exit code is the command's."""
    end_with_parent()
    # A parent that has ended already does not send "go".
    if os.read(go, 1) != b"g":
        os._exit(1)
    try:
        if alone:
            private_mounts(options.shared_folders)
        else:
            call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        script = os.fork()
        if script == 0:
            os.setpgid(0, 0)
            # No script asks questions, and a process group in the background must not read from the terminal.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            # Python ignores these, and a command would inherit that.
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            os.execvp(options.command[0], options.command)
    except OSError as error:
        print(f"run: {options.command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    while True:
        received = signal.sigwait(ENDS | {signal.SIGCHLD})
        if received != signal.SIGCHLD:
            os.kill(script, received)
            continue
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if ended == 0:
                break
            if ended == script:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)


def wait_for(child, seconds=None):
    """Init's exit code when it ends, or the signal that came first, or None on timeout. (code, signal)"""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), None
        if seconds is None:
            received = signal.sigwait(ENDS | {signal.SIGCHLD})
        else:
            started = time.monotonic()
            info = signal.sigtimedwait({signal.SIGCHLD}, max(0, seconds))
            seconds -= time.monotonic() - started
            received = info.si_signo if info else None
        if received is None or received in ENDS:
            return None, received


def run(options):
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS | {signal.SIGCHLD})
    clean_dead_runs()
    record, _lock = new_record(options.name)
    messages, of_watcher = socket.socketpair()
    parent = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        messages.close()
        watch(parent, of_watcher, record)
    of_watcher.close()
    folder = make_folder(record, options)
    # What programs print is read by scripts: in one language.
    os.environ.update(STANCHION_RUN=str(record), STANCHION_RUN_SCRIPT=options.command[0], STANCHION_RUN_FOLDER=folder,
                      TMPDIR=folder, LC_ALL="C")
    alone = os.geteuid() == 0
    try:
        if alone:
            call("unshare", CLONE_NEWPID)
    except OSError as error:
        print(f"run: no namespace for the run ({error}); its processes are found by their environment instead", file=sys.stderr)
        alone = False
    go, of_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(of_go)
        messages.close()
        init(go, alone, options)
    os.close(go)
    if not alone:
        (record / "no-namespace").touch()
    socket.send_fds(messages, [b"i"], [os.pidfd_open(child)])
    os.write(of_go, b"g")
    code, received = wait_for(child)
    if received:
        if options.grace:
            os.kill(child, received)
            code, _ = wait_for(child, options.grace)
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        code = 128 + received
    if not alone:
        kill_all(record)
    clean(record)
    clean_dead_runs()
    if options.keep:
        print(f"{options.name}: kept: {folder}")
    return code if code >= 0 else 128 - code


def enter(script, name, *options):
    """For a script in Python: goes on in a run of its own, unless this is one."""
    if os.environ.get("STANCHION_RUN_SCRIPT") != script:
        arguments = ["--name", name, *options, "--", script, *sys.argv[1:]]
        os.execv(sys.executable, [sys.executable, "-B", os.path.realpath(__file__), *arguments])


@contextlib.contextmanager
def private_network():
    """What is started meanwhile has a loopback of its own, and nothing else. Of a process with one thread."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call("unshare", CLONE_NEWNET)
    try:
        with socket.socket() as any_socket:
            name_and_flags = struct.pack("16sH14x", b"lo", IFF_UP)
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, name_and_flags)
        yield
    finally:
        call("setns", before, CLONE_NEWNET)
        os.close(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--below")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--grace", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--shared-folders", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        return run(options)
    except OSError as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
