#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds by cargo and prints the path of an executable:  built.py NAME SUBCOMMAND ARGUMENT...

The path is the one that cargo prints, so that CARGO_TARGET_DIR, CARGO_BUILD_TARGET and a user's configuration are
respected.
"""
import json
import pathlib
import re
import subprocess
import sys


def run(command, **options):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options)
    except FileNotFoundError:
        manifest = (pathlib.Path(__file__).resolve().parents[2] / "Cargo.toml").read_text()
        wanted = re.search(r'^rust-version = "(.*)"', manifest, re.M)[1]
        print(f"needs cargo: install Rust {wanted} or newer, for example by https://rustup.rs", file=sys.stderr)
        sys.exit(13)


def messages(arguments, **options):
    """Runs cargo, which is asked for JSON messages, and returns them. SystemExit when it fails, after cargo has printed why."""
    # The crates are those of Cargo.lock, always.
    locked = [] if "--locked" in arguments else ["--locked"]
    command = ["cargo", arguments[0], *locked, *arguments[1:]]
    done = run(command, **options)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # With --message-format=json the caller must show them.
    for message in (message["message"] for message in said if message["reason"] == "compiler-message"):
        if message["level"] in ("error", "warning"):
            print(message["rendered"], file=sys.stderr)
    if done.returncode != 0:
        raise SystemExit(f"the build failed (exit code {done.returncode}): {' '.join(command)}")
    return said


def artifacts(arguments, **options):
    """Cargo's messages about what it built."""
    said = messages([*arguments, "--message-format=json-render-diagnostics"], **options)
    return [message for message in said if message["reason"] == "compiler-artifact"]


def executable(messages, name):
    found = [m["executable"] for m in messages if m["executable"] and m["target"]["name"] == name]
    if not found:
        raise SystemExit(f"cargo built no executable {name}")
    return found[-1]


def library(messages, name):
    """A file of this name, such as libstanchion.so."""
    found = [file for message in messages for file in message["filenames"] if file.endswith(f"/{name}")]
    if not found:
        raise SystemExit(f"cargo built no {name}")
    return found[-1]


def target_directory(repository):
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    done = run(command, cwd=repository)
    if done.returncode != 0:
        raise SystemExit(f"failed (exit code {done.returncode}): {' '.join(command)}")
    return json.loads(done.stdout)["target_directory"]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    print(executable(artifacts(sys.argv[2:]), sys.argv[1]))
