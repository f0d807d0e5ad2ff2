# SPDX-License-Identifier: Apache-2.0
"""Cases: each a function that takes a Scratch. Those of QUICK need no build and take a few seconds."""
import fcntl
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import time

import target_cases as targets
from harness import (SCRIPTS, SIGNALS, Skipped, expect, expect_end, expect_nothing_left, exit_code, listing, need_root, run_library)
from install_cases import (an_uninstall_removes_what_was_installed_and_nothing_else, install_refuses_what_it_cannot_do,
                           two_builds_in_two_folders_are_the_same_bytes)

HOARDER = SCRIPTS / "tests" / "hoarder"
# Cargo asks the compiler for its version before it touches anything.
BROKEN_BUILD = {"RUSTC": "/bin/false"}


def started(process, mark):
    """The output up to a line with this mark."""
    output = ""
    for line in process.stdout:
        output += line
        if mark in line:
            return output
    raise AssertionError(f"it ended with {process.wait()} before it said {mark!r}: {output[-2000:]}")


# Only what a script made is deleted.


def demo_leaves_the_folder_that_was_there(scratch):
    theirs = pathlib.Path(scratch.path("theirs"))
    (theirs / "target").mkdir(parents=True)
    (theirs / "model.safetensors").write_text("precious")
    before = listing(theirs)
    code, output = scratch.run(SCRIPTS / "demo", "--directory", theirs, environment=BROKEN_BUILD)
    expect(code != 0 and "the build failed" in output, f"{code}: {output}")
    expect(listing(theirs) == before, f"now: {listing(theirs)}")
    # A folder that did not exist does not exist afterwards.
    code, _ = scratch.run(SCRIPTS / "demo", "--directory", scratch.path("x/new folder"), environment=BROKEN_BUILD)
    expect(code != 0 and os.listdir(scratch.folder) == ["theirs"], f"{code}, {os.listdir(scratch.folder)}")
    shutil.rmtree(theirs)
    expect_nothing_left(scratch)


def bench_leaves_the_folder_that_was_there(scratch):
    need_root()
    theirs = pathlib.Path(scratch.path("theirs/bench"))
    theirs.mkdir(parents=True)
    (theirs / "results").write_text("precious")
    code, output = scratch.run(SCRIPTS / "bench", "--dir", theirs.parent, environment=BROKEN_BUILD)
    expect(code != 0 and "the build failed" in output, f"{code}: {output}")
    expect(listing(theirs.parent) == ["bench", "bench/results"], f"now: {listing(theirs.parent)}")
    shutil.rmtree(theirs.parent)
    expect_nothing_left(scratch)


def a_folder_that_is_not_a_runs_is_not_removed(scratch):
    """Whatever a record names: the folder must have the run's name."""
    need_root()
    theirs = pathlib.Path(scratch.path("theirs"))
    theirs.mkdir()
    (theirs / "file").write_text("precious")
    record = run_library.runs_folder() / "forged-00000000"
    record.mkdir(parents=True)
    (record / "folder").write_text(str(theirs))
    # Or the end of another run on this machine does it first.
    expect_end(scratch.run(SCRIPTS / "clean"), 0)
    expect(not record.exists(), "the record is still there")
    expect(listing(theirs) == ["file"], f"now: {listing(theirs)}")
    shutil.rmtree(theirs)
    expect_nothing_left(scratch)


# Nothing is left.


def a_run_leaves_nothing(scratch):
    """At its own end and by each signal, with all that a script may make."""
    expect_end(scratch.run(HOARDER, scratch.path("new"), 0), 7, "ready")
    expect_nothing_left(scratch)
    for name, number in SIGNALS.items():
        process = scratch.start(HOARDER, scratch.path("new"), 1000)
        started(process, "ready")
        at = time.monotonic()
        process.send_signal(number)
        process.wait(10)
        took = time.monotonic() - at
        expect(exit_code(process) == 128 + number and took < 2, f"{name}: exit code {exit_code(process)} after {took:.1f} s")
        expect_nothing_left(scratch)


def a_run_that_is_killed_while_it_starts_leaves_nothing(scratch):
    for name, number in SIGNALS.items():
        for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.2):
            process = scratch.start(HOARDER, scratch.path("new"), 1000, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            process.send_signal(number)
            process.wait(10)
            left = scratch.remains()
            expect(not left, f"{name} after {delay} s left: {left}")


def clean_removes_what_a_killed_watcher_left(scratch):
    """The watcher, too: what can be left then are files, loop devices and huge pages, and no process."""
    need_root()
    for _ in range(5):
        process = scratch.start(HOARDER, scratch.path("new"), 1000)
        started(process, "ready")
        # The watcher is the one in a session of its own.
        name = str(SCRIPTS / "lib" / "run.py")
        watchers = [pid for pid, words in processes_of(name) if pid != process.pid and os.getsid(pid) == pid]
        expect(len(watchers) == 1, f"watchers: {watchers}")
        os.kill(watchers[0], signal.SIGKILL)
        process.kill()
        process.wait()
        time.sleep(0.5)
        left = scratch.look()
        _, dry = scratch.run(SCRIPTS / "clean", "--dry-run")
        if "hoarder-" in dry and scratch.look() == left:
            break
        # Another run that ended on this machine has cleaned it.
        expect_nothing_left(scratch)
    else:
        raise Skipped("other runs clean everything at once")
    expect(left and not any(what.startswith("process") for what in left), f"left: {left}")
    expect("huge pages: asked" in dry, dry)
    expect_end(scratch.run(SCRIPTS / "clean"), 0)
    expect_nothing_left(scratch)


def processes_of(word):
    from harness import processes

    return [(pid, words) for pid, words in processes().items() if word in words]


def runs_that_meet_give_back_their_own_huge_pages(scratch):
    need_root()
    first = scratch.start(HOARDER, scratch.folder, 1000)
    started(first, "ready")
    second = scratch.start(HOARDER, scratch.folder, 1000)
    started(second, "ready")
    expect(scratch.pages() == scratch.pages_before + 16, f"{scratch.pages()} pages, {scratch.pages_before} before")
    first.terminate()
    first.wait()
    expect(scratch.pages() == scratch.pages_before + 8, f"{scratch.pages()} pages, {scratch.pages_before} before")
    second.terminate()
    second.wait()
    expect_nothing_left(scratch)


def a_signal_ends_a_build_at_once(scratch):
    """A signal to the script alone, whatever the build below it does."""
    slow = pathlib.Path(scratch.path("rustc"))
    scripts = ["demo", "instructions", "crash-test", "kill-test", "test-c", "install --prefix /nowhere"]
    scripts += ["bench", "qemu-rig"] if os.geteuid() == 0 else []
    for script in scripts:
        for name in SIGNALS:
            slow.write_text("#!/bin/sh\ntouch \"$0.called\"\nexec sleep 1000\n")
            slow.chmod(0o755)
            program, *arguments = script.split()
            process = scratch.start(SCRIPTS / program, *arguments, environment={"RUSTC": str(slow)})
            deadline = time.monotonic() + 60
            while not os.path.exists(f"{slow}.called"):
                expect(process.poll() is None and time.monotonic() < deadline, f"{script} did not build")
                time.sleep(0.02)
            at = time.monotonic()
            process.send_signal(SIGNALS[name])
            output, _ = process.communicate(timeout=30)
            took = time.monotonic() - at
            code = exit_code(process)
            expect(code == 128 + SIGNALS[name] and took < 3, f"{script}, {name}: exit code {code} after {took:.1f} s: {output}")
            for file in slow.parent.glob("rustc*"):
                file.unlink()
            expect_nothing_left(scratch)


def a_run_without_root_leaves_nothing(scratch):
    need_root()
    nobody = pwd.getpwnam("nobody")
    # A copy, because other users may not be able to read this checkout.
    copy = pathlib.Path(scratch.path("scripts"))
    shutil.copytree(SCRIPTS, copy)
    work = scratch.path("work")
    os.mkdir(work)
    os.chown(work, nobody.pw_uid, nobody.pw_gid)
    # Its folder, that of this run, and that of the run that this one may be part of.
    ours = [path for path in pathlib.Path(scratch.folder).parents if path.name.startswith("stanchion-")]
    for path in (pathlib.Path(scratch.folder), *ours):
        path.chmod(0o755)
    who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    environment = {"TMPDIR": work, "XDG_RUNTIME_DIR": ""}
    hoarder = copy / "tests" / "hoarder"
    expect_end(scratch.run(hoarder, f"{work}/new", 0, environment=environment, **who), 7, "ready")
    for name, number in SIGNALS.items():
        process = scratch.start(hoarder, f"{work}/new", 1000, environment=environment, **who)
        started(process, "ready")
        process.send_signal(number)
        process.wait(10)
        expect(exit_code(process) == 128 + number, f"{name}: exit code {exit_code(process)}")
        time.sleep(0.5)
        expect(not os.listdir(work), f"{name}: left {os.listdir(work)}")
        expect(not os.path.exists(f"/tmp/stanchion-runs-{nobody.pw_uid}"), f"{name}: left its record")
    shutil.rmtree(copy)
    os.rmdir(work)
    expect_nothing_left(scratch)


# What a chroot without a mount of its own has; then whether a mount of the run has spread.
IN_A_CHROOT = r"""
set -eu
mount --make-rshared /
root=$1 hoarder=$2 below=$3
for folder in /*; do
    [ ! -d "$folder" ] || [ -L "$folder" ] || { mkdir "$root$folder"; mount --rbind "$folder" "$root$folder"; }
    [ ! -L "$folder" ] || cp -P "$folder" "$root$folder"
done
before=$(wc -l </proc/self/mountinfo)
code=0
chroot "$root" "$hoarder" "$below" 0 || code=$?
[ "$(wc -l </proc/self/mountinfo)" = "$before" ] || { echo "a mount has spread"; exit 1; }
exit "$code"
"""


def a_run_in_a_chroot_leaves_nothing(scratch):
    need_root()
    root = pathlib.Path(scratch.path("root"))
    root.mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", IN_A_CHROOT, "sh", root, HOARDER, scratch.path("new")]
    expect_end(scratch.run(*command), 7, "ready")
    for path in root.iterdir():
        # Empty, or a link.
        path.unlink() if path.is_symlink() else path.rmdir()
    root.rmdir()
    expect_nothing_left(scratch)


def nohup_is_heeded(scratch):
    process = scratch.start("nohup", HOARDER, scratch.folder, 1)
    started(process, "ready")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=20)
    expect(process.returncode == 7, f"exit code {process.returncode}")
    expect_nothing_left(scratch)


def make_workload_writes_all_or_nothing(scratch):
    file, before = scratch.path("file"), b"what was there"
    pathlib.Path(file).write_bytes(before)
    for name in ("INT", "TERM", "HUP"):
        process = scratch.start(SCRIPTS / "make-workload", "--scale", "2", file)
        deadline = time.monotonic() + 20
        while len(os.listdir(scratch.folder)) < 2:
            expect(process.poll() is None and time.monotonic() < deadline, "it wrote nothing")
            time.sleep(0.01)
        process.send_signal(SIGNALS[name])
        process.wait(10)
        expect(exit_code(process) == 128 + SIGNALS[name], f"{name}: exit code {exit_code(process)}")
        there = os.listdir(scratch.folder)
        expect(pathlib.Path(file).read_bytes() == before and there == ["file"], f"{name}: {there}")
    expect_end(scratch.run(SCRIPTS / "make-workload", scratch.path("no/folder")), 1, "make-workload: ")
    os.unlink(file)
    expect_nothing_left(scratch)


# What older versions left.


def clean_removes_folders_of_older_versions(scratch):
    """Those of a demo and of a test target, and no other that looks like one."""
    def make(folder, *names):
        pathlib.Path(scratch.path(folder)).mkdir()
        for name in names:
            pathlib.Path(scratch.path(folder), name).write_text("")

    demo = ("drive0.img", "drive1.img", "model.safetensors", "optimizer.safetensors")
    make("tmp.abcdefghij", *demo)
    make("tmp.0123456789", *demo, "thesis.pdf")
    make("tmp.0123456abc", "model.safetensors")
    make("stanchion-nvmf-999999999-1", "log")
    make("stanchion-nvmf-notes-1b", "log")
    scratch.run(SCRIPTS / "clean", "--dry-run")
    expect(len(os.listdir(scratch.folder)) == 5, "a dry run removed something")
    expect_end(scratch.run(SCRIPTS / "clean"), 0, "tmp.abcdefghij", "stanchion-nvmf-999999999-1")
    left = sorted(os.listdir(scratch.folder))
    expect(left == ["stanchion-nvmf-notes-1b", "tmp.0123456789", "tmp.0123456abc"], f"{left}")


def clean_removes_lock_files_that_nobody_holds(scratch):
    need_root()
    held, free, other = (pathlib.Path(f"/run/stanchion/{name}") for name in ("held.lock", "free.lock", "other"))
    held.parent.mkdir(mode=0o755, exist_ok=True)
    for path in (held, free, other):
        path.write_text("")
    with open(held, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        expect_end(scratch.run(SCRIPTS / "clean"), 0, "held.lock is held: left alone", "free.lock")
        expect(held.exists() and other.exists() and not free.exists(), "the wrong ones were removed")
    expect_end(scratch.run(SCRIPTS / "clean"), 0, "removed: /run/stanchion/held.lock")
    other.unlink()
    expect_nothing_left(scratch)


# Other people's machines.


def output_is_read_in_one_language(scratch):
    found = scratch.run(HOARDER, scratch.folder, 0, environment={"LC_ALL": "de_DE.UTF-8"})
    expect_end(found, 7, "locale C, ignored signals ")
    # Python ignores these, and a command is not to inherit that.
    ignored = int(found[1].split("ignored signals ")[1].split()[0], 16)
    expect(not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1), f"ignored signals: {ignored:x}")
    expect_nothing_left(scratch)


def what_is_missing_is_named(scratch):
    """With a PATH that has the usual tools and not the one that is needed."""
    tools = pathlib.Path(scratch.path("bin"))
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in os.listdir(folder):
            if not (tools / tool).is_symlink() and not tool.startswith(("cargo", "valgrind", "c++", "g++")):
                (tools / tool).symlink_to(f"{folder}/{tool}")
    path = {"PATH": str(tools)}
    without_cargo = ["demo", "check", "crash-test", "kill-test", "test-c", *(["test", "bench", "qemu-rig"] if os.geteuid() == 0 else [])]
    for script in without_cargo:
        expect_end(scratch.run(SCRIPTS / script, environment=path), 13, "needs cargo: install Rust ")
    expect_end(scratch.run(SCRIPTS / "install", "--prefix", "/nowhere", environment=path), 13, "is not there; install it")
    # With a cargo, of which nothing more is asked.
    (tools / "cargo").symlink_to("/bin/false")
    for script, text in (("instructions", "needs valgrind: apt-get install valgrind"), ("fuzz", "needs a C++ compiler")):
        expect_end(scratch.run(SCRIPTS / script, environment=path), 13, text)
    shutil.rmtree(tools)
    expect_nothing_left(scratch)


def a_build_that_fails_is_not_a_finding(scratch):
    for script, arguments in (("instructions", ()), ("crash-test", ()), ("crash-test", ("--planted",)), ("kill-test", ())):
        expect_end(scratch.run(SCRIPTS / script, *arguments, environment=BROKEN_BUILD), 14, "the build failed")
    expect_nothing_left(scratch)


def valgrind_that_fails_is_heard(scratch):
    """The first of the two programs that are run fails, and says why."""
    tools = pathlib.Path(scratch.path("bin"))
    tools.mkdir()
    if not shutil.which("valgrind"):
        raise Skipped("no valgrind")
    for text, code in (("echo 'vex: unhandled instruction' >&2; exit 132", "132"), ("echo 'no count here'", "no count")):
        (tools / "valgrind").write_text(f"#!/bin/sh\n{text}\n")
        (tools / "valgrind").chmod(0o755)
        found = scratch.run(SCRIPTS / "instructions", environment={"PATH": f"{tools}:{os.environ['PATH']}"}, seconds=600)
        expect_end(found, 15, code, "unhandled instruction" if code == "132" else "no count here")
    shutil.rmtree(tools)
    expect_nothing_left(scratch)


QUICK = (
    demo_leaves_the_folder_that_was_there,
    bench_leaves_the_folder_that_was_there,
    a_folder_that_is_not_a_runs_is_not_removed,
    a_run_leaves_nothing,
    a_run_that_is_killed_while_it_starts_leaves_nothing,
    clean_removes_what_a_killed_watcher_left,
    clean_removes_folders_of_older_versions,
    clean_removes_lock_files_that_nobody_holds,
    runs_that_meet_give_back_their_own_huge_pages,
    nohup_is_heeded,
    a_run_in_a_chroot_leaves_nothing,
    a_run_without_root_leaves_nothing,
    make_workload_writes_all_or_nothing,
    targets.a_target_ends_with_its_owner_and_no_other,
    targets.an_owner_that_is_dead_is_an_error,
    targets.a_target_ends_with_its_keeper,
    targets.a_target_admits_the_named_host_only,
    targets.targets_refuse_what_they_cannot_do,
    output_is_read_in_one_language,
    what_is_missing_is_named,
    an_uninstall_removes_what_was_installed_and_nothing_else,
    install_refuses_what_it_cannot_do,
)
ALL = (
    *QUICK,
    a_signal_ends_a_build_at_once,
    targets.a_target_whose_start_is_killed_is_not_left,
    targets.a_target_that_was_killed_starts_again,
    targets.a_frozen_target_is_stopped,
    targets.clean_ends_a_target_of_an_older_version,
    targets.a_target_on_files_keeps_them,
    a_build_that_fails_is_not_a_finding,
    valgrind_that_fails_is_heard,
)
# Two release builds from nothing, a quarter of an hour on two cores.
LONG = (two_builds_in_two_folders_are_the_same_bytes,)
