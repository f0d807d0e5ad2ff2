"""What the rig boots: QEMU and a kernel from Debian, and an initramfs that holds the command, SPDK within it."""

import glob
import os
import re
import shutil
import subprocess

PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-utils", "busybox-static", "cpio")
# Drivers that the guest loads, beside those that they need.
MODULES = ("nvme", "vfio-pci", "vfio_iommu_type1", "uio_pci_generic", "virtio_pci", "9pnet_virtio", "9p", "ext4",
           "crc64_rocksoft_generic", "crct10dif_generic", "crc32c_generic")


def run(*arguments, **options):
    """Runs a command; its output is shown only when it fails."""
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if ended.returncode != 0:
        raise SystemExit(f"qemu-rig: {' '.join(arguments)}: exit code {ended.returncode}\n{ended.stdout}")
    return ended.stdout


class Place:
    """A folder with all of it. The kernel is kept there from run to run; the rest is made anew.

    `programs` are paths of more programs that the guest gets; `release` is for those who measure.
    """

    def __init__(self, repository, programs=(), release=False):
        self.repository, self.programs, self.release = repository, programs, release
        self.cache = f"{repository}/target/qemu-rig"
        self.folder = f"{self.cache}/run-{os.getpid()}"
        self.share = f"{self.folder}/share"
        os.makedirs(self.share)
        self.kernel = self.initrd = None

    def prepare(self, say):
        say("packages")
        self._install()
        say("build")
        build = ("cargo", "build", "--quiet", "--features", "spdk", *(["--release"] if self.release else []))
        run(*build, "-p", "stanchion-cli", cwd=self.repository)
        run(*build, "-p", "stanchion-engine", "--example", "save_loop", cwd=self.repository)
        say("kernel and initramfs")
        tree = self._unpack_kernel()
        self._make_initramfs(tree)

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _install():
        def is_installed(package):
            asked = subprocess.run(("dpkg-query", "-W", "-f", "${Status} ${Version}", package), capture_output=True, text=True)
            return " installed " in asked.stdout

        if all(is_installed(package) for package in PACKAGES):
            return
        run("apt-get", "update", "-qq")
        # One release for all of QEMU: a qemu-utils from elsewhere, as from backports, keeps this one out.
        policy = run("apt-cache", "policy", "qemu-system-x86")
        version = re.search(r"Candidate: (\S+)", policy)[1]
        wanted = [f"{name}={version}" if name.startswith("qemu-") else name for name in PACKAGES]
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "--allow-downgrades", *wanted,
            env=dict(os.environ, DEBIAN_FRONTEND="noninteractive"))

    def _unpack_kernel(self):
        """Unpacks, and does not install, the newest kernel; gives its folder."""
        package = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", "linux-image-amd64"))[1]
        tree = f"{self.cache}/{package}"
        if not os.path.exists(f"{tree}/complete"):
            shutil.rmtree(tree, ignore_errors=True)
            os.makedirs(tree)
            run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package, cwd=tree)
            archive, = glob.glob(f"{tree}/*.deb")
            run("dpkg-deb", "-x", archive, tree)
            os.unlink(archive)
            version, = os.listdir(f"{tree}/lib/modules")
            run("busybox", "depmod", "-b", tree, version)
            open(f"{tree}/complete", "w").close()
        self.kernel, = glob.glob(f"{tree}/boot/vmlinuz-*")
        return tree

    def _make_initramfs(self, tree):
        root = f"{self.folder}/root"
        for folder in ("bin", "sbin", "proc", "sys", "dev", "tmp", "run", "mnt", "etc", "var"):
            os.makedirs(f"{root}/{folder}")
        shutil.copy(shutil.which("busybox"), f"{root}/bin/busybox")
        shutil.copy(f"{self.repository}/scripts/rig/guest-init", f"{root}/init")
        os.chmod(f"{root}/init", 0o755)
        self._copy_modules(tree, root)
        built_here = f"{self.repository}/target/{'release' if self.release else 'debug'}"
        for built in (f"{built_here}/stanchion", f"{built_here}/examples/save_loop", *self.programs):
            copied = f"{root}/bin/{os.path.basename(built)}"
            run("strip", "-g", "-o", copied, built)
            for library in re.findall(r"(/\S+) \(0x", run("ldd", built)):
                os.makedirs(os.path.dirname(root + library), exist_ok=True)
                shutil.copy(library, root + library)
        self.initrd = f"{self.folder}/initrd"
        run("sh", "-c", f"find . | cpio -o -H newc --quiet > {self.initrd}", cwd=root)
        shutil.rmtree(root)

    @staticmethod
    def _copy_modules(tree, root):
        version, = os.listdir(f"{tree}/lib/modules")
        source, target = f"{tree}/lib/modules/{version}", f"{root}/lib/modules/{version}"
        needs = dict(line.split(":", 1) for line in open(f"{source}/modules.dep", encoding="utf-8"))
        built_in = open(f"{source}/modules.builtin", encoding="utf-8").read()
        for name in MODULES:
            found = [path for path in needs if path.endswith(f"/{name}.ko")]
            if not found and f"/{name}.ko" not in built_in:
                raise SystemExit(f"qemu-rig: this kernel has no module {name}")
            for path in found and [found[0], *needs[found[0]].split()]:
                os.makedirs(os.path.dirname(f"{target}/{path}"), exist_ok=True)
                shutil.copy(f"{source}/{path}", f"{target}/{path}")
        for name in ("modules.builtin", "modules.order"):
            shutil.copy(f"{source}/{name}", f"{target}/{name}")
        run("busybox", "depmod", "-b", root, version)
