"""Runs `ip`, `tc`, `nft` and the like."""
import subprocess

from .errors import HostsError


def run_tool(*words, check=True, input=None):
    """Runs a command and returns its output. Raises HostsError with its message if it fails and `check` is set."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, input=input)
    if check and done.returncode != 0:
        raise HostsError(f"'{' '.join(words)}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
