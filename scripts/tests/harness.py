# SPDX-License-Identifier: Apache-2.0
"""What the tests of the scripts share: scripts are started in an empty folder, and what they leave is listed.

The tests run in a PID namespace of their own (scripts/lib/run.py), so every process that was not there before is one that was left.
"""
import contextlib
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SCRIPTS / "lib"))

import run as run_library  # noqa: E402  (the path first)

SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP, "KILL": signal.SIGKILL}
SETTLE_SECONDS = 5
# Two targets of one or two drives at once.
HUGE_PAGES = 600
PREFIX = pathlib.Path(os.environ.get("STANCHION_SPDK_PREFIX") or "/opt/stanchion-spdk")


class Skipped(Exception):
    """This machine cannot run the case; says why."""


def need_root():
    if os.geteuid() != 0:
        raise Skipped("needs root")


def need_spdk():
    need_root()
    if not (PREFIX / "bin" / "nvmf_tgt").exists():
        raise Skipped(f"no nvmf_tgt in {PREFIX}")
    if int(run_library.read(run_library.PAGES / "free_hugepages")) < HUGE_PAGES:
        raise Skipped(f"needs {HUGE_PAGES} free huge pages")


class Scratch:
    """An empty folder, TMPDIR of what is started; lists what is new there and in the machine's folders."""

    def __init__(self):
        # With a space: a path that is not quoted somewhere breaks.
        self.folder = tempfile.mkdtemp(prefix="a b ")
        self.processes_before = processes()
        self.pages_before = self.pages()
        self.shared_before = self.shared()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *command, environment=(), **options):
        """The process, in a session of its own so that signals reach it alone."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("STANCHION_RUN")}
        variables |= {"TMPDIR": self.folder, **dict(environment)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, env=variables, text=True,
                                start_new_session=True, **options)

    def run(self, *command, environment=(), seconds=120, **options):
        """Exit code and output."""
        process = self.start(*command, environment=environment, **options)
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output

    def records(self, others=False):
        """Records of runs that work in this folder, or of those that do not. One without a folder may belong to any run."""
        folders = {path: run_library.read(path / "folder") for path in run_library.runs_folder().glob("*/")}
        return [path for path, folder in folders.items() if folder and folder.startswith(self.folder + "/") != others]

    def pages(self):
        """Huge pages without those that other runs have added: such a run may begin or end meanwhile."""
        pages = run_library.PAGES
        there = int(run_library.read(pages / "nr_hugepages") or 0) - int(run_library.read(pages / "surplus_hugepages") or 0)
        lines = [line.split() for record in self.records(others=True) for line in run_library.read(record / "huge-pages").splitlines()]
        return there - sum(int(more) for what, _, more in lines if what == "got")

    @staticmethod
    def shared():
        """What runs leave in folders of the machine."""
        patterns = ("/run/stanchion/*", "/dev/shm/nvmf_trace*", "/dev/hugepages/*", "/run/dpdk/*")
        return {path for pattern in patterns for path in glob.glob(pattern)}

    def remains(self, seconds=SETTLE_SECONDS):
        """What is left after at most this many seconds; returns as soon as nothing is left."""
        deadline = time.monotonic() + seconds
        while True:
            left = self.look()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def look(self):
        left = [f"process {pid}: {words}" for pid, words in processes().items() if pid not in self.processes_before]
        left += [f"file {name}" for name in sorted(os.listdir(self.folder))]
        left += [f"file {path}" for path in sorted(self.shared() - self.shared_before)]
        left += [f"record {path}" for path in self.records()]
        left += [f"loop device on {file}" for file in loop_files() if os.path.basename(self.folder) in file]
        more = self.pages() - self.pages_before
        if more > 0:
            left.append(f"{more} huge pages")
        return left

    def clear(self):
        for pid in processes():
            if pid not in self.processes_before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def processes():
    found = {}
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            words = pathlib.Path(folder, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            # One without a command line is a zombie that init is about to reap.
            if words:
                found[int(folder[6:])] = words
    return found


def loop_files():
    return [run_library.read(file) for file in glob.glob("/sys/block/loop*/loop/backing_file")]


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*"))


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def expect_end(found, code, *texts):
    """Exit code and parts of the output."""
    ended, output = found
    expect(ended == code, f"exit code {ended}, not {code}: {output[-2000:]}")
    for text in texts:
        expect(text in output, f"{text!r} is not in: {output[-2000:]}")


def expect_nothing_left(scratch):
    left = scratch.remains()
    expect(not left, "left: " + "; ".join(left))


def exit_code(process):
    """As a shell reports it."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
