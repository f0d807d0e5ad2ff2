"""Writers of checkpoints side by side in one process. Runs in the environment that scripts/bench makes (report/venv.py)."""
