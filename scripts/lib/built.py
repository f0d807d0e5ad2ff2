#!/usr/bin/env python3
"""Builds by cargo and prints the path of an executable:  built NAME SUBCOMMAND ARGUMENT...

The path is cargo's own word, so that CARGO_TARGET_DIR, CARGO_BUILD_TARGET and a user's configuration do not lead elsewhere.
"""
import json
import subprocess
import sys


def build(name, arguments, **options):
    """The path of what was built; exits with cargo's code when it fails, after cargo has said why."""
    command = ["cargo", *arguments, "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"the build failed (exit {done.returncode}): {' '.join(command)}")
    found = None
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["target"]["name"] == name:
            found = message["executable"]
    if found is None:
        raise SystemExit(f"cargo built no executable {name}: {' '.join(command)}")
    return found


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    print(build(sys.argv[1], sys.argv[2:]))
