# SPDX-License-Identifier: Apache-2.0
"""Writers of checkpoints side by side in one process. Runs in the environment that scripts/bench makes (report/venv.py)."""
import os


def take_output():
    """The standard output, for one JSON document. What libraries print from now on goes to the standard error."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return output
