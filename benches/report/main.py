"""Command line, order of the groups, the report's files."""
import argparse
import os
import pathlib
import re
import shutil
import signal
import sys

from . import kernel, machine, parts, spdk, write
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
        self.spdk = has_spdk()
        self.root = ROOT
        self.work = work
        self.missing = ["peers in Python (torch.save, DCP, safetensors, DeepSpeed): not part of this bench yet"]

    def wants(self, *names):
        return any(self.only.search(name) for name in names)

    def left_out(self, what):
        self.missing.append(what)
        say(f"left out: {what}")


def main(description):
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="smaller and fewer: a quarter of an hour on 2 cores")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the report as JSON")
    options.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write it as Markdown (default: standard output)")
    options.add_argument("--only", metavar="REGEX", help="only rows whose name it finds")
    options.add_argument("--rounds", type=int, metavar="N", help="rounds of each comparison (default 7; 3 with --quick)")
    options.add_argument("--dir", type=pathlib.Path, help="where the drives in files go (default target/bench)")
    given = options.parse_args()
    if os.geteuid() != 0:
        print("scripts/bench: run as root: it reserves huge pages and starts NVMe-oF targets", file=sys.stderr)
        return 13
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs = build()
    work = (given.dir or target_directory()) / "bench"
    work.mkdir(parents=True, exist_ok=True)
    plan = Plan(given, programs, work)
    described = machine.describe(work)
    groups = [*parts.GROUPS, *kernel.GROUPS]
    if plan.spdk:
        groups += spdk.GROUPS
    else:
        plan.left_out("save.spdk.*: SPDK is not installed (scripts/install-spdk builds it)")
    rows, failed = [], False
    try:
        for group in groups:
            try:
                rows += group(plan)
            except Failed as failure:
                failed = True
                plan.left_out(f"{group.__name__}: failed: {failure}")
    except KeyboardInterrupt:
        plan.left_out("what was to come: interrupted")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    described["load_average_at_end"] = os.getloadavg()[0]
    if given.json:
        given.json.write_text(write.as_json(described, rows, plan.missing) + "\n")
    text = write.as_markdown(described, rows, plan.missing)
    if given.markdown:
        given.markdown.write_text(text)
    else:
        print(text)
    return int(failed)
