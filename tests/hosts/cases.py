"""Failures of ranks on several hosts, and what must hold then.

Each case is a function of a launcher and a mode (registry.py, training.py). run_case.py runs one, conformance.py all.
"""
import signal
import time

from registry import case
from training import check, shifted_clock


# A message of a rank, which is not the launcher's line about its exit.
REASON = r"trestle: (?!rank \d+ \(process \d+\) (?:exited with|was killed)).*\brank \d"


def strike(training, steps=30):
    """Starts the ranks, and returns the programs in the middle of a step."""
    programs = training.start_all()
    training.wait_for_steps(steps)
    return programs


def resume(training, expected, hosts):
    """Resumes on these hosts, with the same number of ranks, to the bits of the undisturbed run."""
    ranks = training.mode.ranks * len(training.hosts) // len(hosts)
    began = time.monotonic()
    programs = [training.start(node, training.resume_words(), nodes=len(hosts), ranks=ranks) for node in hosts]
    training.check_succeeds(programs)
    training.check_same(expected)
    return time.monotonic() - began


@case()
def undisturbed(training):
    """Nothing goes wrong: the losses are those of the same ranks on one host."""
    expected = training.undisturbed()
    programs = training.start_all()
    training.check_succeeds(programs)
    training.check_same(expected)
    return f"{training.steps} steps, same bits as on one host"


@case(deadline=10.0, steps=40)
def late_host(training):
    """A host starts three seconds after the other one."""
    expected = training.undisturbed()
    first = training.start(0)
    time.sleep(3)
    second = training.start(1)
    training.check_succeeds([first, second])
    training.check_same(expected)
    return "waits, same bits"


@case(launchers=("launch",))
def absent_host(training):
    """A host never starts: the other one ends at the deadline, and names who is missing."""
    first = training.start(0)
    limit = training.deadline + training.allowed + 5 * training.slowness  # the start of a program takes seconds
    took = training.check_ends_in_time([first], first.began, limit)
    training.check_reason([first], r"ranks? [\d, and]+ of \d+ ha(s|ve) not arrived at node0")
    return f"{took:.1f} s"


def host_gone(training, gone):
    left = 1 - gone
    programs = strike(training)
    training.hosts[gone].power_off()
    struck, steps = time.monotonic(), training.steps_made()
    took = training.check_ends_in_time([programs[left]], struck)
    training.check_reason([programs[left]], REASON)
    training.check_names(programs[left], training.hosts[gone])
    check("Heartbeats come from all ranks" not in programs[left].text(), "a host without power is said to send heartbeats")
    training.check_no_process_left()
    saved = training.check_nothing_lost(steps)
    return f"ended {took:.1f} s after it, step {saved} saved of {steps}"


@case()
def second_host_gone(training):
    """The second host loses its power in mid-step."""
    return host_gone(training, 1)


@case()
def first_host_gone(training):
    """The first host, which has the ranks' store, loses its power in mid-step."""
    return host_gone(training, 0)


@case()
def rank_killed(training):
    """A rank of the second host is killed in mid-step, as by the kernel when memory is short."""
    programs = strike(training)
    host = training.hosts[1]
    rank, process = max(host.rank_processes().items())
    host.kill(process)
    struck, steps = time.monotonic(), training.steps_made()
    took = training.check_ends_in_time(programs, struck)
    training.check_reason([programs[1]], rf"trestle: rank {rank} |rank +: {rank} ")
    training.check_names(programs[0], host)
    training.check_no_process_left()
    saved = training.check_nothing_lost(steps)
    return f"ended after {took:.1f} s, step {saved} saved of {steps}"


def stopped_rank(training, node):
    programs = strike(training)
    host = training.hosts[node]
    host.kill(max(host.rank_processes().items())[1], signal.SIGSTOP)
    struck, steps = time.monotonic(), training.steps_made()
    took = training.check_ends_in_time(programs, struck)
    # A rank that is alone on its host says it itself; otherwise the other rank of its host does.
    training.check_reason([programs[node]], r"did not run for|has sent no heartbeat for")
    is_alone = training.mode.ranks == 1
    training.check_reason(programs, "process has stopped|did not run" if is_alone else "but other ranks of the same machine")
    training.check_no_process_left()
    saved = training.check_nothing_lost(steps)
    return f"ended after {took:.1f} s, step {saved} saved of {steps}"


@case(launchers=("launch",))
def rank_stopped(training):
    """A rank of the second host is stopped (SIGSTOP), and no rank there runs that could notice the deadline."""
    return stopped_rank(training, 1)


@case(launchers=("launch",))
def rank_stopped_on_first_host(training):
    """The same with a rank of the first host, which has the ranks' store."""
    return stopped_rank(training, 0)


@case(deadline=8.0)
def link_down_briefly(training):
    """A link is cut for less than the deadline: the run waits, and continues."""
    expected = training.undisturbed()
    programs = strike(training)
    training.hosts[1].link.down()
    time.sleep(2)
    check(all(program.poll() is None for program in programs), "a program ended before its deadline")
    training.hosts[1].link.up()
    training.check_succeeds(programs)
    training.check_same(expected)
    return "rides out 2 s, same bits"


@case(steps=80)
def link_down_for_long(training):
    """A link is cut for longer than the deadline: all end and say why, and a resumed run has the same bits."""
    expected = training.undisturbed()
    programs = strike(training)
    training.hosts[1].link.down()
    struck, steps = time.monotonic(), training.steps_made()
    took = training.check_ends_in_time(programs, struck)
    for node, program in enumerate(programs):
        training.check_names(program, training.hosts[1 - node])
    training.check_no_process_left()
    saved = training.check_nothing_lost(steps)
    training.hosts[1].link.up()
    resume(training, expected, [0, 1])
    return f"both ended after {took:.1f} s, step {saved} saved of {steps}; resumed to the same bits"


@case(deadline=20.0, steps=15)
def loss_and_delay(training):
    """A link loses 1 % of its packets and delays the rest by 20 ms: slower, with the same bits."""
    expected = training.undisturbed()
    link = training.hosts[1].link
    link.delay(20)
    link.loss(1)
    began = time.monotonic()
    programs = training.start_all()
    training.check_succeeds(programs, 100)
    lost = link.lost_packets()
    check(lost > 0, "no packet was lost")
    training.check_same(expected)
    return f"{training.steps} steps in {time.monotonic() - began:.1f} s with {lost} packets lost, same bits"


@case(steps=100)
def restart_on_hosts_left(training):
    """A host is gone: its ranks resume on the host that is left."""
    expected = training.undisturbed()
    programs = strike(training)
    training.hosts[1].power_off()
    training.check_ends_in_time([programs[0]], time.monotonic())
    seconds = resume(training, expected, [0])
    return f"resumed on node0 alone in {seconds:.1f} s, same bits"


@case()
def restart_after_both(training):
    """Both hosts lose their power, and come back."""
    expected = training.undisturbed()
    strike(training)
    for host in training.hosts:
        host.power_off()
    steps = training.steps_made()
    saved = training.check_nothing_lost(steps)
    for host in training.hosts:
        host.link.up()
    seconds = resume(training, expected, [0, 1])
    return f"step {saved} saved of {steps}; resumed in {seconds:.1f} s, same bits"


@case(steps=40)
def clocks_differ(training):
    """The second host's clock is an hour ahead."""
    expected = training.undisturbed()
    # Not torchrun itself: it compares the clocks of its hosts, and takes those that are behind for dead.
    shifted = ["env", *(f"{name}={value}" for name, value in shifted_clock(3600).items())]
    programs = [training.start(0), training.start(1, before=shifted)]
    training.check_succeeds(programs)
    training.check_same(expected)
    return "same bits"


@case()
def stopped_on_one_host(training):
    """Ctrl-C on the second host: all finish the step and save, and a resumed run has the same bits."""
    expected = training.undisturbed()
    programs = strike(training)
    programs[1].send(signal.SIGINT)
    for program in programs:
        code = program.wait(training.deadline + training.allowed)
        check(code != 0, f"{program.name} exited with 0")
    training.check_no_process_left()
    resume(training, expected, [0, 1])
    return "stops all, same bits when resumed"


# In the pipeline the first rank saves 1.7 MB and the second one 5.9 MB. So the second save, which is written beside the
# first one, fails on the second host alone. The ranks of the other modes save equal shares.
@case(width=350, disk="10m")
def full_disk(training):
    """The shared disk is full when the second host saves: all end with that reason, and the whole save before stays."""
    programs = strike(training, steps=5)
    began = time.monotonic()
    took = training.check_ends_in_time(programs, began)
    check(any("No space left on device" in program.text() for program in programs), "no terminal says why")
    training.check_no_process_left()
    saved = training.saved_step()
    check(saved == training.save_every, f"step {saved} is saved")
    return f"ended after {took:.1f} s, step {saved} stays saved"
