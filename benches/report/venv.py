# SPDX-License-Identifier: Apache-2.0
"""The Python environment that the peers run in: made once in the target directory, with the versions that are named here.

It takes 6 GB, nearly all of it what PyTorch's wheel for Linux brings for accelerators, and some minutes: DeepSpeed's
asynchronous I/O op is compiled.
"""
import os
import shutil
import subprocess
import sysconfig
import venv

from .compare import say
from .tools import run, target_directory

# From PyPI. ninja and setuptools are what DeepSpeed builds its op with.
PACKAGES = (
    "torch==2.15.0", "numpy==2.4.6", "safetensors==0.8.0", "ninja==1.13.2", "setuptools==84.2.1", "wheel==0.48.0",
    "packaging==26.4",
)
# After those, which its setup imports.
DEEPSPEED = "deepspeed==0.19.8"
# From Debian: what the op is compiled with and linked to, and Python's headers and venv.
DEBIAN = ("g++", "libaio-dev", "python3-dev", "python3-venv")
BUILD_OP = "from deepspeed.ops.op_builder import AsyncIOBuilder; " \
           "AsyncIOBuilder().load(verbose=False).aio_handle(1 << 20, 1, False, False, 1)"


class Environment:
    """The interpreter and the variables that every peer process has."""

    def __init__(self, root):
        self.root = root
        self.python = root / "bin" / "python"
        self.variables = {
            **os.environ,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            # The compiled op is found again only by the same folder and the same compiler.
            "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
            "CXX": "g++",
            "DS_ACCELERATOR": "cpu",
            "DS_BUILD_OPS": "0",
            "CUDA_VISIBLE_DEVICES": "",
            "MAX_JOBS": str(os.cpu_count()),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, module, arguments, directory):
        return run([self.python, "-m", module, *arguments], cwd=directory, env=self.variables)

    def versions(self):
        text = run([self.python, "-m", "pip", "list", "--format=freeze"])
        wanted = ("torch", "deepspeed", "safetensors")
        return dict(line.split("==") for line in text.split() if line.split("==")[0] in wanted)


def environment():
    """Makes it where it is not there yet."""
    root = target_directory() / "peers"
    made = Environment(root)
    stamp, packages = root / "packages", "\n".join((*PACKAGES, DEEPSPEED))
    if stamp.exists() and stamp.read_text() == packages:
        return made
    say("making the peers' Python environment: 6 GB and some minutes, once")
    install_debian()
    shutil.rmtree(root, ignore_errors=True)
    venv.create(root, with_pip=True)
    pip = [made.python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--only-binary", ":all:"]
    run([*pip, *PACKAGES])
    # It comes as source only.
    run([*pip, "--no-binary", "deepspeed", "--no-build-isolation", DEEPSPEED], env=made.variables)
    run([made.python, "-c", BUILD_OP], env=made.variables)
    stamp.write_text(packages)
    return made


def install_debian():
    installed = [package for package in DEBIAN if is_installed(package)]
    # Another Python than Debian's has headers of its own.
    if os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        installed += ["python3-dev", "python3-venv"]
    missing = [package for package in DEBIAN if package not in installed]
    if missing:
        say(f"installing {' '.join(missing)}")
        run(["apt-get", "update", "-qq"])
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing])


def is_installed(package):
    status = subprocess.run(["dpkg-query", "-W", "-f=${Status}", package], capture_output=True, text=True)
    return status.stdout.endswith(" installed")
