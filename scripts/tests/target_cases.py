# SPDX-License-Identifier: Apache-2.0
"""Cases of scripts/nvmf-target, and of scripts/clean where it meets one."""
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import time

from harness import PREFIX, SCRIPTS, SIGNALS, expect, expect_end, expect_nothing_left, listing, need_spdk, run_library

TARGET = SCRIPTS / "nvmf-target"


def start_target(scratch, name, *options):
    """Its addresses, as a dictionary of the first one, and all lines."""
    code, output = scratch.run(TARGET, "start", "--run-dir", scratch.path(name), "--size", "64MiB", "--port", "0", *options,
                               stderr=subprocess.DEVNULL)
    expect(code == 0, f"start: exit code {code}")
    lines = output.splitlines()
    return dict(word.split(":", 1) for word in lines[0].split()), lines


def is_running(scratch, name):
    return scratch.run(TARGET, "status", "--run-dir", scratch.path(name))[0] == 0


def wait_for_end(scratch, name, seconds=5):
    deadline = time.monotonic() + seconds
    while is_running(scratch, name):
        expect(time.monotonic() < deadline, f"the target {name} still runs after {seconds} s")
        time.sleep(0.1)


def a_target_ends_with_its_owner_and_no_other(scratch):
    need_spdk()
    owners = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    start_target(scratch, "t", "--owner", owners[0].pid)
    expect_end(scratch.run(TARGET, "stop", "--run-dir", scratch.path("t")), 0, "has ended")
    start_target(scratch, "t", "--owner", owners[1].pid)
    owners[0].kill()
    owners[0].wait()
    time.sleep(2.5)
    expect(is_running(scratch, "t"), "the end of an earlier owner ended the target of a later one")
    owners[1].kill()
    owners[1].wait()
    wait_for_end(scratch, "t")
    expect_nothing_left(scratch)


def an_owner_that_is_dead_is_an_error(scratch):
    need_spdk()
    dead = subprocess.Popen(["true"])
    time.sleep(0.3)
    # Ended, and not yet waited for.
    expect_end(scratch.run(TARGET, "start", "--run-dir", scratch.path("t"), "--owner", dead.pid), 1, "has ended")
    dead.wait()
    expect_end(scratch.run(TARGET, "start", "--run-dir", scratch.path("t"), "--owner", dead.pid), 1, "no process")
    expect_nothing_left(scratch)


def a_target_whose_start_is_killed_is_not_left(scratch):
    need_spdk()
    for name, number in SIGNALS.items():
        for delay in (0.05, 0.1, 0.2, 0.4):
            process = scratch.start(TARGET, "start", "--run-dir", scratch.path("t"), "--size", "64MiB", "--port", "0",
                                    "--owner", os.getpid())
            time.sleep(delay)
            process.send_signal(number)
            output, _ = process.communicate(timeout=20)
            if process.returncode == 0:
                # The start was faster than the signal: then it is a target like any other.
                scratch.run(TARGET, "stop", "--run-dir", scratch.path("t"))
            left = scratch.remains()
            expect(not left, f"{name} after {delay} s left: {left}: {output}")


def a_target_ends_with_its_keeper(scratch):
    """A killed keeper leaves only files, and the next start ignores them."""
    need_spdk()
    start_target(scratch, "t")
    os.kill(int(run_library.read(scratch.path("t/keeper"))), signal.SIGKILL)
    wait_for_end(scratch, "t", 1)
    start_target(scratch, "t")
    expect_end(scratch.run(TARGET, "stop", "--run-dir", scratch.path("t")), 0, "has ended")
    expect_nothing_left(scratch)


def a_target_that_was_killed_starts_again(scratch):
    """At once, whatever the keeper of the first one is doing."""
    need_spdk()
    address, _ = start_target(scratch, "t")
    for _ in range(5):
        os.kill(int(run_library.read(scratch.path("t/pid"))), signal.SIGKILL)
        options = ["--port", address["trsvcid"], "--host-nqn", address["hostnqn"]]
        again, _ = start_target(scratch, "t", *options)
        expect(again == address, f"{again}, not {address}")
        time.sleep(0.3)
        expect(is_running(scratch, "t"), "the keeper of the first one took away the second")
    scratch.run(TARGET, "stop", "--run-dir", scratch.path("t"))
    expect_nothing_left(scratch)


def a_frozen_target_is_stopped(scratch):
    need_spdk()
    start_target(scratch, "t")
    os.kill(int(run_library.read(scratch.path("t/pid"))), signal.SIGSTOP)
    expect_end(scratch.run(TARGET, "stop", "--run-dir", scratch.path("t")), 0, "has ended")
    expect_nothing_left(scratch)


def clean_ends_a_target_of_an_older_version(scratch):
    """One without a keeper; one with a keeper is left alone."""
    need_spdk()
    folder = pathlib.Path(scratch.path("old"))
    folder.mkdir()
    process = subprocess.Popen([PREFIX / "bin" / "nvmf_tgt", "-m", "[0]", "-s", "64", "-u", "-R", "-r", folder / "rpc.sock"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    (folder / "pid").write_text(f"{process.pid}\n")
    start_target(scratch, "new")
    deadline = time.monotonic() + 20
    while not (folder / "rpc.sock").exists():
        expect(process.poll() is None and time.monotonic() < deadline, "it did not start")
        time.sleep(0.05)
    expect_end(scratch.run(SCRIPTS / "clean", "--dry-run"), 0, f"would be ended: NVMe-oF target in {folder}")
    expect(process.poll() is None, "a dry run ended it")
    expect_end(scratch.run(SCRIPTS / "clean"), 0, f"ended: NVMe-oF target in {folder}")
    process.wait(5)
    expect(is_running(scratch, "new"), "a target in use was ended")
    scratch.run(TARGET, "stop", "--run-dir", scratch.path("new"))
    expect_nothing_left(scratch)


def a_target_admits_the_named_host_only(scratch):
    """A process of another user, who does not have the name."""
    need_spdk()
    address, _ = start_target(scratch, "t")
    nobody = pwd.getpwnam("nobody")

    def connect(host):
        # Its own copy on standard input: the folder of this checkout may not be open to all.
        with open(SCRIPTS / "tests" / "nvme_tcp.py", encoding="utf-8") as program:
            done = subprocess.run(["/usr/bin/python3", "-", address["trsvcid"], address["subnqn"], host], stdin=program, text=True,
                                  capture_output=True, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], cwd="/", check=False)
        expect(done.returncode == 0, done.stderr)
        return done.stdout.strip()

    refused = connect("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000")
    # Status code type 1 (of the command), 84h: Connect Invalid Host.
    expect(refused == str(0x184), f"another host: {refused}")
    expect(connect(address["hostnqn"]) == "0", "the named host was refused")
    for name in ("addresses", "rpc.sock", "log"):
        mode = os.stat(scratch.path(f"t/{name}")).st_mode
        expect(mode & 0o077 == 0, f"{name} is open to others: {mode:o}")
    again, _ = start_target(scratch, "other")
    expect(again["hostnqn"] != address["hostnqn"], "two targets have one name")
    expect(again["trsvcid"] != address["trsvcid"], "two targets have one port")
    for name in ("t", "other"):
        expect_end(scratch.run(TARGET, "stop", "--run-dir", scratch.path(name)), 0, "has ended")
    expect_nothing_left(scratch)


def a_target_on_files_keeps_them(scratch):
    need_spdk()
    files = pathlib.Path(scratch.path("with space"))
    files.mkdir()
    (files / "drive0.img").write_bytes(b"x" * (64 << 20))
    # A leading zero is a digit like any other.
    _, lines = start_target(scratch, "t", "--drives", "02", "--backing", f"aio:{files}")
    expect(len(lines) == 2, f"{lines}")
    scratch.run(TARGET, "stop", "--run-dir", scratch.path("t"))
    expect((files / "drive0.img").read_bytes()[:4] == b"xxxx" and listing(files) == ["drive0.img", "drive1.img"], f"{listing(files)}")
    shutil.rmtree(files)
    expect_nothing_left(scratch)


def targets_refuse_what_they_cannot_do(scratch):
    for options, text in (
        (["--drives", "0x8"], "--drives"), (["--drives", "65"], "--drives"), (["--drives", "0"], "--drives"),
        (["--port", "70000"], "--port"), (["--port", "-1"], "--port"), (["--core", "1.5"], "--core"),
        (["--size", "512Q"], "--size"), (["--size", "1.5KiB"], "--size"), (["--size", "99999999999T"], "--size"),
        (["--size", ""], "--size"), (["--backing", "aio:"], "--backing"), (["--mbytes-per-second", "5"], "--mbytes-per-second"),
        (["--run-dir", "/x" * 60], "--run-dir"), (["--nonsense"], "--nonsense"), (["--owner", "0"], "--owner"),
    ):
        expect_end(scratch.run(TARGET, "start", *options), 2, text)
    if os.geteuid() == 0 and (PREFIX / "bin" / "nvmf_tgt").exists():
        options = ["start", "--run-dir", scratch.path("t"), "--owner", os.getpid()]
        expect_end(scratch.run(TARGET, *options, "--size", "500GiB"), 1, "free huge pages", "scripts/hugepages")
        expect_end(scratch.run(TARGET, *options, "--host-nqn", "me"), 1, "is not an NQN")
    expect_nothing_left(scratch)
