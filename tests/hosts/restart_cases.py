"""Restarts over hosts, and failures before and in the rendezvous: what cases.py does not hold."""
import re
import time

from registry import case
from training import check

RESTARTS = ("--max-restarts", "3")
# A deadline that these cases must not wait out.
PATIENT = 60.0


def check_all_end_soon(training, programs, pattern, allowed=3):
    """Checks that all fail long before the deadline, within `allowed` s of each other, with this reason on each."""
    seconds = 12 if training.launcher == "launch" else 30  # torchrun alone takes seconds to start
    if training.launcher == "launch" and len(training.hosts) == 2:
        # Both hosts know the reason, so no launcher waits three seconds for ranks that come to read it.
        training.check_none_lingers(programs, seconds, 2.5)
    started = max(program.began for program in programs)
    for program in programs:
        code = program.wait(max(0.1, started + seconds * training.slowness - time.monotonic()))
        check(code != 0, f"{program.name} exited with 0")
    apart = max(program.ended for program in programs) - min(program.ended for program in programs)
    training.check_reason(programs, pattern)
    training.check_no_process_left()
    # A launcher gives its ranks a second to report, and torchrun polls them.
    check(apart < allowed * training.slowness, f"one host ended {apart:.1f} s after the other one")
    return f"all ended {max(program.ended for program in programs) - started:.1f} s after the last start"


def kill_rank(training, node):
    """Kills the last rank on a host in the middle of a step."""
    host = training.hosts[node]
    host.kill(max(host.rank_processes().items())[1])


def restart(training, nodes):
    """Kills a rank on each of these hosts, one after another; the launchers must restart all ranks each time."""
    expected = training.undisturbed()
    programs = training.start_all(options=RESTARTS)
    steps = 0
    began = time.monotonic()
    for node in nodes:
        steps += 30
        training.wait_for_steps(steps)
        kill_rank(training, node)
    training.check_succeeds(programs, 60)
    training.check_same(expected)
    return f"{len(nodes)} restart{'s' if len(nodes) > 1 else ''}, {time.monotonic() - began:.1f} s, same bits"


@case(deadline=10.0)
def restart_of_second_host(training):
    """A rank of the second host is killed under --max-restarts 3: all ranks restart and end with the same bits."""
    return restart(training, [1])


@case(deadline=10.0)
def restart_of_first_host(training):
    """The same with a rank of the first host, which has the ranks' store."""
    return restart(training, [0])


@case(deadline=10.0)
def restart_three_times(training):
    """Ranks are killed on the second, the first and the second host again."""
    return restart(training, [1, 0, 1])


@case(deadline=PATIENT, modes=("pipeline",))
def missing_interface(training):
    """GLOO_SOCKET_IFNAME of the second host names an interface that it lacks: both end at once with that reason."""
    training.hosts[1].set_variable("GLOO_SOCKET_IFNAME", "eth7")
    return check_all_end_soon(training, training.start_all(), "eth7")


@case(deadline=PATIENT, modes=("pipeline",))
def resume_of_missing_folder(training):
    """--resume of a folder that the second host lacks: both end at once with that reason."""
    training.undisturbed(keep=True)
    training.hosts[1].private_folder(training.folder / "runs")
    return check_all_end_soon(training, training.start_all(training.resume_words()), "runs/run")


@case(deadline=PATIENT, modes=("pipeline",))
def loopback_name(training):
    """The first host's own name is 127.0.1.1 there, as Debian writes /etc/hosts: it works, or both say so at once."""
    training.hosts[0].set_names("127.0.0.1 localhost\n127.0.1.1 node0\n")
    programs = training.start_all()
    code = programs[0].wait(20 * training.slowness)
    if code == 0:
        training.check_succeeds(programs)
        return "works"
    return check_all_end_soon(training, programs, r"127\.0\.1\.1")


@case(deadline=PATIENT, modes=("pipeline",))
def different_recipes(training):
    """The hosts have different recipes: each prints the difference at once."""
    (training.folder / "other.toml").write_text(training.recipe.replace("batch = 16", "batch = 32"))
    programs = [training.start(0), training.start(1, ["other.toml", "--name", "run"])]
    return check_all_end_soon(training, programs, "different recipes.*batch = 32")


@case(deadline=PATIENT, modes=("pipeline",), launchers=("launch",), hosts=3)
def same_node_rank(training):
    """Two of three hosts have the same --node-rank: all end at once, and each names the flag."""
    programs = [training.start(0), training.start(1), training.start(2, node_rank=1)]
    # No process has the number 2, and for three seconds rank 0 keeps its store to tell it; the other hosts end at once.
    # Its launcher does not wait again. Two seconds more are for the ends of processes.
    return check_all_end_soon(training, programs, "--node-rank", allowed=5)


@case(deadline=PATIENT, modes=("pipeline",), launchers=("launch",))
def different_node_counts(training):
    """One host is started with --nodes 3, the other one with 2: both end at once with both numbers."""
    return check_all_end_soon(training, [training.start(0), training.start(1, nodes=3)], "world size")


@case(deadline=30.0, modes=("pipeline",), launchers=("launch",))
def missing_host_is_told(training):
    """While a host is late, the terminal of the first one says which, after five seconds at most."""
    first = training.start(0, terminal=True)
    first.wait_for(r"rank 1\b", 10 * training.slowness)
    second = training.start(1)
    training.check_succeeds([first, second])
    return "names the missing rank"


def fail_on_second_host(training):
    """Starts the second host so that its rank cannot start."""
    training.hosts[1].set_variable("GLOO_SOCKET_IFNAME", "eth7")
    program = training.start(1)
    training.hosts[1].set_variable("GLOO_SOCKET_IFNAME", None)
    return program


@case(deadline=PATIENT, modes=("pipeline",), launchers=("launch",))
def failed_just_before_first_host(training):
    """The second host fails, and then the first one starts: for three seconds the second launcher tells it the reason."""
    second = fail_on_second_host(training)
    second.wait_for("eth7", 10 * training.slowness)
    first = training.start(0)
    code = first.wait(12 * training.slowness)
    check(code != 0, f"{first.name} exited with 0")
    training.check_reason([first], r"process \d+ on node1\) exited with code 2")
    return f"told after {first.ended - first.began:.1f} s"


@case(deadline=30.0, modes=("pipeline",), launchers=("launch",))
def failed_before_first_host(training):
    """The second host fails long before the first one starts, which waits for it: corrected, it joins."""
    second = fail_on_second_host(training)
    check(second.wait(12 * training.slowness) != 0, f"{second.name} exited with 0")
    training.check_reason([second], "eth7")
    first = training.start(0)
    first.wait_for(r"waiting for rank 1 of 2 \(node 1\)", 10 * training.slowness)
    second = training.start(1)
    training.check_succeeds([first, second])
    return "the first host names the missing one, which joins"


@case(modes=("pipeline",), launchers=("launch",))
def nnodes_as_torchrun_spells_it(training):
    """--nnodes is taken for --nodes."""
    programs = []
    for node in range(2):
        command = ["--nnodes" if word == "--nodes" else word for word in training.command(node, training.train_words())]
        programs.append(training.hosts[node].start(command))
    training.check_succeeds(programs)
    return "works"


@case(modes=("pipeline",), launchers=("launch",))
def quiet(training):
    """With --quiet no host prints anything."""
    programs = training.start_all([*training.train_words(), "--quiet"])
    training.check_succeeds(programs)
    for program in programs:
        check(program.text() == "", f"{program.name} printed '{program.text().strip()}'")
    return "prints nothing"


@case(launchers=("launch",))
def launcher_ends_with_its_ranks(training):
    """After a cut link each launcher ends within a second of its last rank: no rank of the other host can come."""
    programs = training.start_all()
    training.wait_for_steps(30)
    training.hosts[1].link.down()
    training.check_none_lingers(programs, 20, 1)
    return "no launcher lingers"


def reasons_after(training, strike):
    """Checks that each terminal names the lost host with its address, its rank and process, the wait, and what to do."""
    programs = training.start_all()
    training.wait_for_steps(30)
    struck = time.monotonic()
    strike(training.hosts[1])
    left = [program for program, host in zip(programs, training.hosts) if host.processes()]
    training.check_ends_in_time(left, struck)
    for number, program in enumerate(left):
        training.check_names(program, training.hosts[1 - number])
        text = program.text()
        for pattern in (r"\d s\b", r"--resume|network"):
            check(re.search(pattern, text), f"{program.name} has not printed '{pattern}'")
        for word in ("-1 (", "[c10d]", "gloo/", "tcp/pair", "Connection closed by peer", "hostname of the client socket"):
            check(word not in text, f"{program.name} has printed '{word}'")
    return "each terminal names the other host and its address, its rank and process, the wait and what to do"


@case(launchers=("launch",))
def reasons_after_cut_link(training):
    """After a cut link each terminal names the other host and rank, what waited for it and how long, and what to do."""
    return reasons_after(training, lambda host: host.link.down())


@case(launchers=("launch",))
def reasons_after_power_loss(training):
    """After a host is gone the other terminal does the same."""
    return reasons_after(training, lambda host: host.power_off())


@case(modes=("pipeline", "shard"), launchers=("launch",))
def saves_are_told_on_both(training):
    """After a failure no host says that nothing was saved when the first one has saved."""
    programs = training.start_all()
    training.wait_for_steps(30)
    struck = time.monotonic()
    training.hosts[1].link.down()
    training.check_ends_in_time(programs, struck)
    check(training.saved_step() > 0, "nothing was saved")
    for program in programs:
        check("othing was saved" not in program.text(), f"{program.name} says that nothing was saved")
    return "no terminal says that nothing was saved"
