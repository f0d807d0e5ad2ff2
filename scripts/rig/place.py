# SPDX-License-Identifier: Apache-2.0
"""What the rig boots: QEMU and a kernel from Debian, and an initramfs that holds the command, SPDK within it."""

import glob
import os
import re
import shutil
import subprocess
import tempfile

import built

PACKAGES = ("qemu-system-x86", "busybox-static", "cpio", "kmod", "binutils")
# Drivers that the guest loads, with those that they need.
MODULES = ("nvme", "vfio-pci", "vfio_iommu_type1", "uio_pci_generic", "virtio_pci", "9pnet_virtio", "9p", "ext4")
# Checksums that they ask the kernel for by name; a newer kernel has some of them elsewhere.
OPTIONAL_MODULES = ("crc64_rocksoft_generic", "crct10dif_generic", "crc32c_generic")


def run(*arguments, **options):
    """Runs a command; its output is shown only when it fails."""
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if ended.returncode != 0:
        raise SystemExit(f"qemu-rig: {' '.join(arguments)}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


class Place:
    """A folder with all of it, which is the caller's to remove. The kernel is kept in the target folder from run to run.

    `programs` are paths of more programs that the guest gets; `release` is for those who measure; `kernel_package` is the file of a
    kernel to boot in place of the newest.
    """

    def __init__(self, repository, folder, programs=(), release=False, kernel_package=None):
        self.repository, self.folder, self.programs, self.release = repository, folder, programs, release
        self.kernel_package = kernel_package
        self.cache = f"{built.target_directory(repository)}/qemu-rig"
        self.share = f"{self.folder}/share"
        os.makedirs(self.share)
        os.makedirs(self.cache, exist_ok=True)
        self.kernel = self.initrd = self.stanchion = self.save_loop = None

    def prepare(self, say):
        say("packages")
        run(f"{self.repository}/scripts/lib/packages", "qemu-rig", *PACKAGES)
        say("build")
        build = ["build", "--locked", "--quiet", "--features", "spdk", *(["--release"] if self.release else [])]
        made = built.artifacts([*build, "-p", "stanchion-cli"], cwd=self.repository)
        self.stanchion = built.executable(made, "stanchion")
        made = built.artifacts([*build, "-p", "stanchion-engine", "--example", "save_loop"], cwd=self.repository)
        self.save_loop = built.executable(made, "save_loop")
        say("kernel and initramfs")
        tree = self._unpack_kernel()
        self._make_initramfs(tree)

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep_logs(self):
        """The logs of a failed run, in place of those of the one before. Where they are."""
        kept = f"{self.cache}/last-failure"
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)
        for log in glob.glob(f"{glob.escape(self.folder)}/*.log"):
            shutil.copy(log, kept)
        return kept

    def _unpack_kernel(self):
        """Unpacks, and does not install, the kernel; returns its folder."""
        if self.kernel_package:
            tree = self._unpack(self.kernel_package)
        else:
            found = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", "linux-image-amd64"))
            if not found:
                raise SystemExit("qemu-rig: apt knows no linux-image-amd64: run apt-get update")
            tree = self._newest_kernel(found[1])
        self.kernel, = glob.glob(f"{glob.escape(tree)}/boot/vmlinuz-*")
        return tree

    def _newest_kernel(self, package):
        """Kept from run to run."""
        tree = f"{self.cache}/{package}"
        if not os.path.exists(f"{tree}/complete"):
            run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package, cwd=self.folder)
            archive, = glob.glob(f"{glob.escape(self.folder)}/*.deb")
            made = self._unpack(archive)
            open(f"{made}/complete", "w").close()
            # Missing, or incomplete. Two rigs at the same time each unpack one, and either is good.
            shutil.rmtree(tree, ignore_errors=True)
            try:
                shutil.move(made, tree)
            except OSError:
                if not os.path.exists(f"{tree}/complete"):
                    raise
        return tree

    def _unpack(self, archive):
        made = tempfile.mkdtemp(prefix="kernel-", dir=self.folder)
        run("dpkg-deb", "-x", archive, made)
        if not os.path.exists(f"{made}/lib/modules"):
            os.symlink("usr/lib", f"{made}/lib")  # since Debian 13
        version, = os.listdir(f"{made}/lib/modules")
        run("/sbin/depmod", "-b", made, version)
        return made

    def _make_initramfs(self, tree):
        root = f"{self.folder}/root"
        for folder in ("bin", "sbin", "proc", "sys", "dev", "tmp", "run", "mnt", "etc", "var"):
            os.makedirs(f"{root}/{folder}")
        shutil.copy(shutil.which("busybox"), f"{root}/bin/busybox")
        shutil.copy(f"{self.repository}/scripts/rig/guest-init", f"{root}/init")
        os.chmod(f"{root}/init", 0o755)
        self._copy_modules(tree, root)
        for program in (self.stanchion, self.save_loop, *self.programs):
            copied = f"{root}/bin/{os.path.basename(program)}"
            run("strip", "-g", "-o", copied, program)
            for library in re.findall(r"(/\S+) \(0x", run("ldd", program)):
                os.makedirs(os.path.dirname(root + library), exist_ok=True)
                shutil.copy(library, root + library)
        self.initrd = f"{self.folder}/initrd"
        run("sh", "-c", 'find . | cpio -o -H newc --quiet > "$1"', "sh", self.initrd, cwd=root)
        shutil.rmtree(root)

    @staticmethod
    def _copy_modules(tree, root):
        version, = os.listdir(f"{tree}/lib/modules")
        source, target = f"{tree}/lib/modules/{version}", f"{root}/lib/modules/{version}"
        needs = dict(line.split(":", 1) for line in open(f"{source}/modules.dep", encoding="utf-8"))
        built_in = open(f"{source}/modules.builtin", encoding="utf-8").read()
        for name in (*MODULES, *OPTIONAL_MODULES):
            found = [path for path in needs if re.search(rf"/{name}\.ko(\.xz)?$", path)]
            if not found and f"/{name}.ko" not in built_in and name in MODULES:
                raise SystemExit(f"qemu-rig: this kernel has no module {name}")
            for path in found and [found[0], *needs[found[0]].split()]:
                copied = f"{target}/{path}"
                os.makedirs(os.path.dirname(copied), exist_ok=True)
                shutil.copy(f"{source}/{path}", copied)
                if copied.endswith(".xz") and not os.path.exists(copied.removesuffix(".xz")):
                    run("busybox", "unxz", copied)
        for name in ("modules.builtin", "modules.order"):
            shutil.copy(f"{source}/{name}", f"{target}/{name}")
        run("/sbin/depmod", "-b", root, version)
