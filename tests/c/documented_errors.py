#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which documented errors no test provoked: documented_errors.py HEADER COVERAGE EXCEPTIONS.

The header's Errors sections say which function answers with which error. COVERAGE has a line for each
answer that a test saw, written by the tests themselves. EXCEPTIONS names the pairs that the C tests
cannot provoke, each with the file and the text of the test that does. Also reported: answers that the
header does not document, and exceptions that are none.
"""

import errno
import pathlib
import re
import sys


def documented(header):
    pairs = set()
    for comment, rest in re.findall(r"/\*\*\n(.*?)\*/\n([^\n]*)", header, re.S):
        title = re.match(r" \* (stn_\w+) - ", comment)
        name = title[1] if title else (re.match(r"struct (stn_\w+)", rest) or [None, None])[1]
        if name and " * Errors:" in comment:
            for error in re.findall(r"^ \*\s{1,3}(-\w+)\s", comment.split(" * Errors:")[1], re.M):
                pairs.add((name, error))
    return pairs


def names(header):
    """Error names by number: those that the header uses, where several mean one number."""
    known = {number: name for number, name in errno.errorcode.items()}
    used = set(re.findall(r"-(E[A-Z0-9]+)\b", header))
    known.update({getattr(errno, name): name for name in used if hasattr(errno, name)})
    ours = re.findall(r"#define (STN_E_\w+) (\d+)", header)
    known.update({int(value): name for name, value in ours})
    return known


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    header, coverage, exceptions = (pathlib.Path(path) for path in sys.argv[1:])
    text = header.read_text(encoding="utf-8")
    promised = documented(text)
    lines = {tuple(line.split()) for line in coverage.read_text(encoding="utf-8").splitlines()}
    known = names(text)
    seen = {(function, "-" + known[-int(number)]) for function, number in lines}
    excused, wrong = set(), []
    for line in exceptions.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, error, file, test = line.split(None, 3)
            excused.add((name, error))
            path = exceptions.parent.parent.parent / file
            if not path.exists() or test not in path.read_text(encoding="utf-8"):
                wrong.append(f"{name} {error}: {file} has no {test!r}")
    for name, error in sorted(promised - seen - excused):
        wrong.append(f"{name} {error}: documented, and no test provokes it")
    for name, error in sorted(seen - promised):
        wrong.append(f"{name} {error}: seen, and not documented")
    for name, error in sorted(excused - promised):
        wrong.append(f"{name} {error}: excused, and not documented")
    if len(promised) < 100:
        wrong.append(f"only {len(promised)} documented errors were found: has the header's form changed?")
    print(f"{len(promised)} documented errors, {len(promised & seen)} provoked by the C tests, "
          f"{len((promised - seen) & excused)} by others")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
