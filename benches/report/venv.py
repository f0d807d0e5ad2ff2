# SPDX-License-Identifier: Apache-2.0
"""The Python environment that the peers run in: made once in the target directory, with the versions and hashes of
benches/peers/requirements.txt.

It takes 6 GB, nearly all of it what PyTorch's wheel for Linux brings for accelerators, and some minutes: DeepSpeed's
asynchronous I/O op is compiled.
"""
import os
import shutil
import sysconfig
import venv

from .compare import say
from .tools import ROOT, install, run, target_directory

# All packages from PyPI, with hashes; and the one that exists only as source, built with those.
REQUIREMENTS = (ROOT / "benches/peers/requirements.txt", ROOT / "benches/peers/deepspeed.txt")
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
    stamp, packages = root / "packages", "".join(file.read_text() for file in REQUIREMENTS)
    if stamp.exists() and stamp.read_text() == packages:
        return made
    say("making the peers' Python environment: 6 GB and some minutes, once")
    install_debian()
    shutil.rmtree(root, ignore_errors=True)
    venv.create(root, with_pip=True)
    pip = [made.python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--require-hashes"]
    wheels, source = REQUIREMENTS
    run([*pip, "--only-binary", ":all:", "--requirement", wheels])
    # Its dependencies are installed: without --no-deps pip would ask for their hashes in this file, too.
    run([*pip, "--no-deps", "--no-build-isolation", "--requirement", source], env=made.variables)
    run([made.python, "-c", BUILD_OP], env=made.variables)
    stamp.write_text(packages)
    return made


def install_debian():
    # Another Python than Debian's has headers of its own.
    own = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
    install(package for package in DEBIAN if not (own and package.startswith("python3")))
