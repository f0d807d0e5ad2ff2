# SPDX-License-Identifier: Apache-2.0
"""Installs a tree of files and records it, so that it can be removed without touching anything else.

A manifest has one line for each thing: `file SHA256 PATH`, `link TARGET PATH` (the target with %-escapes) or
`folder - PATH`, folders that the installation made itself. Paths are those of use, without the destination folder.
"""

import hashlib
import os
import pathlib
import shutil
import sys
import urllib.parse


def below(destination, path):
    """Where `path` is written."""
    return pathlib.Path(path) if destination is None else pathlib.Path(f"{destination}{path}")


def place(prefix):
    return prefix / "share/stanchion/manifest"


def read(prefix, destination):
    file = below(destination, place(prefix))
    if not file.exists():
        return None
    return [tuple(line.split(" ", 2)) for line in file.read_text().splitlines()]


def entry(file, path):
    if file.is_symlink():
        return ("link", urllib.parse.quote(os.readlink(file)), str(path))
    return ("file", hashlib.sha256(file.read_bytes()).hexdigest(), str(path))


def install(stage, prefix, destination):
    """Puts everything below `stage` in its place. What an earlier installation had and this one has not is removed."""
    before = read(prefix, destination) or []
    files = sorted(file for file in stage.rglob("*") if file.is_symlink() or file.is_file())
    paths = [pathlib.Path("/") / file.relative_to(stage) for file in files]
    folders = {path for kind, _, path in before if kind == "folder"}
    for path in [*paths, place(prefix)]:
        folders |= {str(folder) for folder in make_folders(below(destination, path).parent, destination)}
    entries = [entry(file, path) for file, path in zip(files, paths)]
    entries += [("folder", "-", folder) for folder in sorted(folders)]
    # Before the files: what is interrupted can be uninstalled.
    listed = {path for _, _, path in entries}
    gone = [line for line in before if line[0] != "folder" and line[2] not in listed]
    write(prefix, destination, [*entries, *gone])
    for file, path in zip(files, paths):
        target = below(destination, path)
        # A new file and a rename: running programs go on with the old file.
        temporary = target.with_name(f".{target.name}.new")
        temporary.unlink(missing_ok=True)
        shutil.copy2(file, temporary, follow_symlinks=False)
        os.replace(temporary, target)
    remove(gone, destination)
    write(prefix, destination, entries)


def write(prefix, destination, entries):
    file = below(destination, place(prefix))
    temporary = file.with_name(".manifest.new")
    temporary.write_text("".join(f"{' '.join(line)}\n" for line in entries))
    os.replace(temporary, file)


def make_folders(folder, destination):
    """Makes the folders, and returns the paths of the new ones; the destination folder itself is the caller's."""
    made = []
    while not folder.is_dir():
        made.append(folder)
        folder = folder.parent
    for missing in reversed(made):
        missing.mkdir()
    if destination is None:
        return made
    return [pathlib.Path("/") / made_one.relative_to(destination) for made_one in made if destination in made_one.parents]


def remove(entries, destination):
    """Files and links that are as they were installed; returns those that are not."""
    changed = []
    for kind, value, path in entries:
        target = below(destination, path)
        if kind == "folder" or not os.path.lexists(target):
            continue
        if entry(target, path) == (kind, value, path):
            target.unlink()
        else:
            changed.append(str(target))
    return changed


def uninstall(prefix, destination):
    """Removes what the manifest names, and the folders that were made for it where they are empty."""
    entries = read(prefix, destination)
    if entries is None:
        sys.exit(f"install: nothing to uninstall: there is no {below(destination, place(prefix))}")
    changed = remove(entries, destination)
    below(destination, place(prefix)).unlink()
    for _, _, path in sorted((line for line in entries if line[0] == "folder"), key=lambda line: -len(line[2])):
        try:
            below(destination, path).rmdir()
        except OSError:
            pass  # Something else is in it.
    return changed
