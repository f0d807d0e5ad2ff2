# SPDX-License-Identifier: Apache-2.0
"""Command line, order of the groups, the report's files."""
import argparse
import functools
import os
import pathlib
import re
import signal
import sys
import time

import run
from . import charts, kernel, machine, parts, pcie, peers, results, spdk, venv, write
from .compare import say
from .tools import ROOT, Failed, build, has_spdk, target_directory


class Plan:
    """What is to be measured, and with what."""

    def __init__(self, options, programs, work):
        self.quick = options.quick
        self.rounds = options.rounds or (3 if options.quick else 7)
        self.only = re.compile(options.only or "")
        self.programs = programs
        self.stanchion = programs["stanchion"]
        self.library = programs["library"]
        # The Python environment of the peers, where they are measured.
        self.peers = None
        self.spdk = has_spdk()
        self.root = ROOT
        self.work = work
        self.missing = []

    def wants(self, *names):
        return any(self.only.search(name) for name in names)

    def left_out(self, what):
        self.missing.append(what)
        say(f"left out: {what}")


# How long an interrupted bench may take to report what it has measured, in seconds.
GRACE = "15"


def main(script, description):
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="smaller and fewer: a quarter of an hour on 2 cores")
    options.add_argument("--peers", action="store_true",
                         help="compare with torch.save, DCP, safetensors and DeepSpeed too: 6 GB in target/peers, once")
    options.add_argument("--charts", type=pathlib.Path, metavar="DIR", help="draw SVG charts of the rows")
    options.add_argument("--from", dest="source", type=pathlib.Path, metavar="FILE",
                         help="measure nothing: charts and Markdown of such a JSON report")
    options.add_argument("--results", type=pathlib.Path, metavar="FILE", help="replace the generated tables of this page")
    options.add_argument("--check", action="store_true",
                         help="with --from: write nothing; fail where --charts or --results would change a file")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report as JSON")
    options.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write it as Markdown (default: standard output)")
    options.add_argument("--only", metavar="REGEX", help="only rows whose name it finds")
    options.add_argument("--rounds", type=int, metavar="N", help="rounds of each comparison (default 7; 3 with --quick)")
    options.add_argument("--dir", type=pathlib.Path, metavar="DIR",
                         help="where the drives in files go: into a new folder below DIR (default: below the target folder)")
    given = options.parse_args()
    if given.check and not given.source:
        options.error("--check needs --from")
    if given.source:
        return publish(given, write.from_json(given.source.read_text()))
    if os.geteuid() != 0:
        print("scripts/bench: run as root: it reserves huge pages and starts NVMe-oF targets", file=sys.stderr)
        return 13
    run.enter(script, "bench", "--below", str(given.dir or target_directory()), "--grace", GRACE)
    for received in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, interrupt)
    source = machine.source()
    if not source["clean"]:
        say("the tree has uncommitted changes, and the report says so: commit first to keep the figures")
    programs = build()
    work = pathlib.Path(os.environ["STANCHION_RUN_FOLDER"])
    plan = Plan(given, programs, work)
    described = machine.describe(work)
    groups = [*parts.GROUPS, *kernel.GROUPS]
    if given.peers:
        plan.peers = venv.environment()
        described |= plan.peers.versions()
        groups += peers.GROUPS
    else:
        plan.left_out("torch.save, DCP, safetensors, DeepSpeed: --peers measures them")
    if plan.spdk:
        groups += [*map(on_own_network, spdk.GROUPS), *pcie.GROUPS]
    else:
        plan.left_out("save.spdk.*: SPDK is not installed (scripts/install-spdk builds it)")
    rows, failed, interrupted = [], False, None
    try:
        for group in groups:
            started = time.monotonic()
            try:
                rows += group(plan)
            except Failed as failure:
                failed = True
                plan.left_out(f"{group.__name__}: failed: {failure}")
            say(f"{group.__name__}: {time.monotonic() - started:.0f} s")
    except Interrupted as by:
        interrupted = by.signal
        plan.left_out("the rest: interrupted")
    described["load_average_at_end"] = os.getloadavg()[0]
    report = write.Report(source, described, rows, plan.missing)
    if given.json:
        given.json.write_text(write.as_json(report) + "\n")
    published = publish(given, report)
    return 128 + interrupted if interrupted else published or int(failed)


class Interrupted(BaseException):
    """By a signal. The rows measured so far go into the report."""

    def __init__(self, signal_number):
        self.signal = signal_number


def interrupt(signal_number, _frame):
    # One is enough.
    for received in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(received, signal.SIG_IGN)
    raise Interrupted(signal_number)


def on_own_network(group):
    """Of targets that admit any host, which perf needs: no other program reaches them."""

    @functools.wraps(group)
    def alone(plan):
        with run.private_network():
            return group(plan)

    return alone


def publish(given, report):
    """Writes what was asked for, or, with --check, compares it. The exit code."""
    files = {}
    if given.charts:
        files |= {given.charts / name: text for name, text in charts.draw(report.rows)}
    if given.results:
        files[given.results] = results.page(given.results.read_text(), report)
    if given.check:
        stale = [str(file) for file, text in files.items() if not file.exists() or file.read_text() != text]
        if stale:
            print(f"scripts/bench: not what {given.source} generates: {', '.join(stale)}; run it without --check", file=sys.stderr)
        return int(bool(stale))
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    text = write.as_markdown(report)
    if given.markdown:
        given.markdown.write_text(text)
    elif not given.results:
        print(text)
    return 0
