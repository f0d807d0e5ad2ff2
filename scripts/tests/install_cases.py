# SPDX-License-Identifier: Apache-2.0
"""Cases of scripts/install: nothing stale is installed, nothing of this machine is in it, and uninstalling leaves nothing."""
import filecmp
import os
import pathlib
import shlex
import shutil
import subprocess

from harness import SCRIPTS, expect, expect_end, expect_nothing_left

import manifest  # harness has put scripts/lib into the path

PREFIX = pathlib.Path("/opt/a prefix")
# Of one release build from nothing, on a machine that does other things, too.
BUILD_SECONDS = 3600


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*"))


def an_uninstall_removes_what_was_installed_and_nothing_else(scratch):
    stage, destination = pathlib.Path(scratch.path("stage")), pathlib.Path(scratch.path("destination"))
    library = manifest.below(stage, PREFIX / "lib/one.so.1")
    library.parent.mkdir(parents=True)
    library.write_text("one")
    (library.parent / "one.so").symlink_to("one.so.1")
    (library.parent / "gone later").write_text("gone")
    # The user's own, in a folder that the installation did not make.
    own = manifest.below(destination, PREFIX / "lib/own")
    own.parent.mkdir(parents=True)
    own.write_text("own")
    before = tree(destination)
    manifest.install(stage, PREFIX, destination)
    (library.parent / "gone later").unlink()
    library.write_text("two")
    manifest.install(stage, PREFIX, destination)
    expect(not (own.parent / "gone later").exists(), "a file of the earlier installation is still there")
    expect((own.parent / "one.so").read_text() == "two", "the later file is not there")
    expect(manifest.uninstall(PREFIX, destination) == [], "an installed file counts as changed")
    expect(tree(destination) == before, f"left or lost: {tree(destination)}, not {before}")
    # The destination folder is the caller's, also where it did not exist.
    new = pathlib.Path(scratch.path("new/destination"))
    manifest.install(stage, PREFIX, new)
    expect(manifest.uninstall(PREFIX, new) == [] and new.is_dir() and tree(new) == [], "the destination folder")
    shutil.rmtree(new.parent)
    # A changed file belongs to its user.
    manifest.install(stage, PREFIX, destination)
    (own.parent / "one.so.1").write_text("changed")
    expect(len(manifest.uninstall(PREFIX, destination)) == 1, "a changed file is not named")
    expect((own.parent / "one.so.1").read_text() == "changed", "a changed file was removed")
    shutil.rmtree(stage)
    shutil.rmtree(destination)
    expect_nothing_left(scratch)


def install_refuses_what_it_cannot_do(scratch):
    install = SCRIPTS / "install"
    expect_end(scratch.run(install, "--prefix", "relative"), 2, "--prefix needs an absolute path")
    expect_end(scratch.run(install, "--prefix", "/x", "--bindir", "bin"), 2, "--bindir needs an absolute path")
    expect_end(scratch.run(install), 2, "--prefix")
    expect_end(scratch.run(install, "--prefix", scratch.path("none"), "--uninstall"), 1, "nothing to uninstall")
    broken = {"CARGO_ENCODED_RUSTFLAGS": "--no-such-flag"}
    expect_end(scratch.run(install, "--prefix", scratch.path("none"), environment=broken), 1, "failed")
    expect_nothing_left(scratch)


def copy_of_the_sources(scratch, name):
    folder = pathlib.Path(scratch.path(name))
    listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=SCRIPTS.parent,
                            stdout=subprocess.PIPE, text=True, check=True)
    for file in filter(None, listed.stdout.split("\0")):
        if (SCRIPTS.parent / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SCRIPTS.parent / file, folder / file)
    return folder


def differing(one, other):
    """Names of files that are not in both trees, or not of the same bytes."""
    files = set(tree(one)) ^ set(tree(other))
    for name in set(tree(one)) & set(tree(other)):
        if (one / name).is_file() and not filecmp.cmp(one / name, other / name, shallow=False):
            files.add(name)
    return sorted(files)


def two_builds_in_two_folders_are_the_same_bytes(scratch):
    """Both with cargo's own variables set, and one of them with a target folder elsewhere; then what was installed is moved,
    linked with, run and uninstalled."""
    host = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout.partition("host: ")[2].split()[0]
    # Both before the builds: this checkout may change meanwhile.
    builds = [(copy_of_the_sources(scratch, name), variables) for name, variables in (
        ("first", {}), ("the second one", {"CARGO_TARGET_DIR": scratch.path("target elsewhere")}))]
    roots = []
    for source, variables in builds:
        root = pathlib.Path(scratch.path(f"root of {source.name}"))
        variables |= {"CARGO_BUILD_TARGET": host, "DESTDIR": str(root), "LDFLAGS": "-Wl,-z,noexecstack"}
        expect_end(scratch.run(source / "scripts/install", "--prefix", PREFIX, environment=variables, seconds=BUILD_SECONDS),
                   0, "installed stanchion")
        shutil.rmtree(source)
        roots.append(root)
    expect(not differing(*roots), f"not the same bytes: {differing(*roots)}")

    moved = pathlib.Path(scratch.path("moved here"))
    shutil.copytree(manifest.below(roots[0], PREFIX), moved, symlinks=True)
    for file in ("bin/stanchion", "share/man/man1/stanchion.1", "share/man/man1/stanchion-save.1", "share/man/man7/stanchion.7",
                 "share/bash-completion/completions/stanchion", "share/doc/stanchion/LICENSE",
                 "share/doc/stanchion/examples/save_restore.c"):
        expect((moved / file).is_file(), f"{file} was not installed")
    program = scratch.path("program")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(moved / "lib/pkgconfig")}
    for static, library in (([], str(moved / "lib")), (["--static"], "/nowhere")):
        flags = subprocess.run(["pkg-config", *static, "--cflags", "--libs", "stanchion"], env=environment,
                               stdout=subprocess.PIPE, text=True, check=True)
        words = shlex.split(flags.stdout)
        words = ["-l:libstanchion.a" if static and word == "-lstanchion" else word for word in words]
        subprocess.run(["cc", "-o", program, moved / "share/doc/stanchion/examples/save_restore.c", *words], check=True)
        drives = [scratch.path("drive0"), scratch.path("drive1")]
        run = {**os.environ, "LD_LIBRARY_PATH": library, "STN_EXAMPLE_FORMAT": "1"}
        subprocess.run([program, *drives], env=run, stdout=subprocess.DEVNULL, check=True)
        for file in (program, *drives):
            os.unlink(file)
    for root in roots:
        uninstall = scratch.run(SCRIPTS / "install", "--prefix", PREFIX, "--uninstall", environment={"DESTDIR": str(root)})
        expect_end(uninstall, 0, "uninstalled")
        expect(tree(root) == [], f"left: {tree(root)}")
        root.rmdir()
    shutil.rmtree(moved)
    shutil.rmtree(scratch.path("target elsewhere"))
    expect_nothing_left(scratch)
