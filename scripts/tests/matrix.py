# SPDX-License-Identifier: Apache-2.0
"""The kill matrix: each script, killed at each of its stages by each signal, and what was left of it five seconds later."""
import os
import subprocess
import sys
import threading
import time

from harness import SCRIPTS, SETTLE_SECONDS, SIGNALS, Scratch, exit_code, need_spdk, processes

# Script and arguments; its stages: what it prints when one begins, or "process: " and a part of the command line of one that it
# starts; and how many seconds into it it is killed.
DEMO = (["demo"], [("== build", 0.3), ("== a real model", 1.5), ("== four file drives", 1.0),
                   ("== four NVMe-oF", 0.4), ("== four NVMe-oF", 2.5)])
BENCH = (["bench", "--quick", "--only", "spdk.tcp|commits"], [("building", 0.5), ("ring: ", 0.3),
         ("commits: ", 1.5), ("save.spdk.tcp/perf 1", 0.3)])
RIG = (["qemu-rig", "--power-cuts", "0", "--unplugs", "0"], [("packages", 0.3),
       ("kernel and initramfs", 0.5), ("seed ", 3.0), ("doctor before", 5.0)])
TEST = (["test", "--quick"], [("== packages", 0.3), ("== format and lints", 2.0), ("== tests", 6.0)])
CRASH = (["crash-test", "--images", "100000"], [("", 0.3), ("", 3.0), ("process: crash_explorer --images", 2.0)])
KILL = (["kill-test", "--back-end", "spdk", "--rounds", "50"], [("", 1.0), ("", 8.0), ("process: nvmf_tgt", 3.0)])
INSTRUCTIONS = (["instructions"], [("", 0.3), ("", 6.0), ("process: --tool=callgrind", 0.5)])
TARGET = (["nvmf-target", "start", "--run-dir", "{scratch}/t", "--size", "64MiB", "--port", "0", "--owner", "{self}"],
          [("", 0.05), ("", 0.15), ("", 0.3), ("", 0.6)])
FUZZ = (["fuzz", "label"], [("", 0.3), ("", 5.0), ("process: -max_len", 1.0)])
CHECK = (["check"], [("shellcheck", 0.3), ("shellcheck", 4.0)])
INSTALL = (["install", "--prefix", "{scratch}/prefix"], [("", 0.3), ("", 3.0)])
TEST_C = (["test-c", "examples"], [("", 0.3), ("", 3.0), ("process: -std=c11", 0.1)])
SPDK = (["install-spdk", "--prefix", "{scratch}/prefix"], [("reading the source index", 0.5), ("fetching", 2.0)])
SCRIPTS_AND_STAGES = (TARGET, INSTALL, CHECK, CRASH, INSTRUCTIONS, FUZZ, TEST_C, SPDK, KILL, DEMO, BENCH, RIG, TEST)
STAGE_SECONDS = 900


def run(only):
    need_spdk()
    bad = 0
    print("| script | stage | signal | ended with | after | left 5 s later |\n|---|---|---|---|---|---|", flush=True)
    for (command, stages) in SCRIPTS_AND_STAGES:
        for mark, delay in stages:
            if only not in f"{command[0]} {mark} + {delay} s":
                continue
            for name in SIGNALS:
                bad += one(command, mark, delay, name)
    print(f"\ntest-scripts: {bad} of the rows left something or ended otherwise", flush=True)
    return 1 if bad else 0


def one(command, mark, delay, name):
    """One row. Whether it is bad."""
    scratch = Scratch()
    try:
        words = [word.replace("{scratch}", scratch.folder).replace("{self}", str(os.getpid())) for word in command]
        process = scratch.start(SCRIPTS / words[0], *words[1:])
        reader = Reader(process.stdout)
        reached = reader.wait_for(mark, process)
        time.sleep(delay)
        was_over = process.poll() is not None
        at = time.monotonic()
        process.send_signal(SIGNALS[name])
        process.wait(60)
        took = time.monotonic() - at
        time.sleep(SETTLE_SECONDS)
        if words[0] == "nvmf-target" and process.returncode == 0:
            # It had started: its owner, these tests, lives on.
            subprocess.run([SCRIPTS / words[0], "stop", "--run-dir", scratch.path("t")], check=False, capture_output=True)
            was_over = False
        # SPDK's log, which says how far it came.
        left = [what for what in scratch.look() if (words[0], what) != ("install-spdk", "file prefix")]
        allowed = (0, 128 + SIGNALS[name]) if words[0] == "nvmf-target" else (128 + SIGNALS[name],)
        expected = exit_code(process) in allowed
        stage = f"{mark.removeprefix('process: ').strip('= :') or 'start'} + {delay} s"
        ended = f"{exit_code(process)}{' (before the signal)' if was_over else ''}"
        print(f"| {' '.join(command[:1])} | {stage} | {name} | {ended} | {took:.1f} s | {'; '.join(left) or 'nothing'} |", flush=True)
        if not reached or was_over:
            print(f"stage not reached: {reader.text[-1500:]}", file=sys.stderr, flush=True)
        return int(bool(left) or not expected or not reached or took > 20)
    finally:
        scratch.clear()


class Reader:
    """Reads what a script prints, so that it never waits for us."""

    def __init__(self, stream):
        self.text = ""
        self.stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.stream:
            self.text += line

    def has(self, mark):
        kind, _, words = mark.partition("process: ")
        return any(words in line for line in processes().values()) if words else kind in self.text

    def wait_for(self, mark, process):
        deadline = time.monotonic() + STAGE_SECONDS
        while not self.has(mark):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True
