"""Puts this script into namespaces of its own."""
import os
import subprocess
import sys

INSIDE = "TRESTLE_TESTS_INSIDE_HOSTS"
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc",
           "--kill-child"]
NEEDED = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2", "nft": "nftables"}

REFUSED = """\
trestle: this machine refuses the namespaces that the tests of hosts need: {reason}
  Allow them. Debian: sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000
  Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0
  Docker: run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"""


def enter_namespaces():
    """Runs this script again as root of new user, network, mount, UTS and PID namespaces, and exits with its code.

    Returns only in the namespaces. The script is the first process of its PID namespace: when it ends, in whatever
    way, the kernel kills all processes that it has started, and with them go their namespaces, links and mounts.
    Exits with 1 and a message if the machine refuses namespaces, or lacks a program.
    """
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    if os.environ.pop(INSIDE, None) == "1":
        return
    missing = sorted({package for program, package in NEEDED.items() if not _exists(program)})
    if missing:
        sys.exit(f"trestle: the tests of hosts need the package{'s' if len(missing) > 1 else ''} {' '.join(missing)}\n"
                 "  Install what the tests need: tools/setup.sh --tests")
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        sys.exit(REFUSED.format(reason=tried.stderr.strip() or f"unshare exited with {tried.returncode}"))
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*UNSHARE, sys.executable, *sys.argv])


def _exists(program):
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in os.environ["PATH"].split(":"))
