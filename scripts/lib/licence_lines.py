#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds the licence line to every source file that lacks it: licence_lines.py, in the repository's root.

The engine's test `repository` holds that none lacks it.
"""
import pathlib
import subprocess

TEXT = "SPDX-License-Identifier: Apache-2.0"
COMMENTS = {".rs": "// {}", ".c": "/* {} */", ".h": "/* {} */", ".cpp": "/* {} */", ".py": "# {}", ".sh": "# {}"}


def comment(path, first):
    if path.suffix in COMMENTS:
        return COMMENTS[path.suffix]
    return "# {}" if first.startswith("#!") else None


def main():
    listed = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for path in (pathlib.Path(name) for name in listed.split("\0") if name):
        if not path.is_file() or path.is_symlink():
            continue
        lines = path.read_bytes().split(b"\n")
        form = comment(path, lines[0].decode(errors="replace"))
        if form is None or any(TEXT.encode() in line for line in lines[:3]):
            continue
        lines.insert(1 if lines[0].startswith(b"#!/") else 0, form.format(TEXT).encode())
        path.write_bytes(b"\n".join(lines))
        print(path)


if __name__ == "__main__":
    main()
