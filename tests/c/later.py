#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the source of a later library from this one: later.py SOURCE DESTINATION.

Every structure with a size of its own gets one more field at its end, in the header and in the code,
as a later version would have it. What it fills in says 7 there.
"""

import pathlib
import re
import shutil
import subprocess
import sys


def grow_header(text):
    grown = 0

    def one(match):
        nonlocal grown
        body = match[2]
        if "uint32_t size;" not in body and match[1] not in ("stn_shard", "stn_save_shard"):
            return match[0]
        grown += 1
        return f"struct {match[1]} {{{body}    uint64_t later;\n}};"

    return re.sub(r"struct (stn_\w+) \{(.*?)\};", one, text, flags=re.S), grown


def grow_code(text):
    grown = 0

    def one(match):
        nonlocal grown
        grown += 1
        return f"pub struct {match[1]} {{{match[2]}    pub later: u64,\n}}"

    text = re.sub(r"pub struct (stn_\w+) \{(.*?)\n\}", lambda m: one(m), text, flags=re.S)
    return re.sub(r"^(\s+)size: 0,$", r"\1size: 0,\n\1later: 7,", text, flags=re.M), grown


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, destination = map(pathlib.Path, sys.argv[1:])
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=source, check=True,
                           capture_output=True, text=True).stdout.split("\n")
    for file in filter(None, files):
        if (source / file).is_file():
            (destination / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / file, destination / file)
    header = destination / "include/stanchion.h"
    text, in_header = grow_header(header.read_text(encoding="utf-8"))
    header.write_text(text, encoding="utf-8")
    in_code = 0
    for path in (destination / "src/c").glob("*.rs"):
        text, grown = grow_code(path.read_text(encoding="utf-8"))
        in_code += grown
        path.write_text(text, encoding="utf-8")
    if in_header != in_code or in_header < 10:
        sys.exit(f"{in_header} structures grew in the header and {in_code} in the code")


if __name__ == "__main__":
    main()
