#!/usr/bin/env python3
"""Trains four ranks on two hosts that lose packets, kills them repeatedly, and compares the losses.

    tests/hosts/long_run.py [--build build/dev] [--minutes 30] [--kills 5] [--loss 0.1] [--delay 0]

First it measures a step, and trains for about that time without a disturbance, on one host. Then it trains the same on
two hosts: every few minutes one host, or both, lose their power, and the run is resumed. The losses of all steps must
equal those of the first run to the bit. Prints what happens.
"""
import argparse
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import HostsError, enter_namespaces  # noqa: E402


def say(began, words):
    print(f"{time.monotonic() - began:6.0f} s  {words}", flush=True)


def steps_per_second(training):
    """The speed of an undisturbed run over both hosts, which it removes."""
    programs = training.start_all()
    training.wait_for_steps(20)
    began, first = time.monotonic(), training.steps_made()
    time.sleep(5)
    speed = (training.steps_made() - first) / (time.monotonic() - began)
    for host in training.hosts:
        host.kill_all()
    for program in programs:
        program.wait(5)
    shutil.rmtree(training.run_folder())
    return speed


def run(arguments, began):
    from training import Training
    with Training("launch", "hsdp", deadline=20.0, steps=10 ** 9, save_every=50) as training:
        for host in training.hosts:
            host.link.loss(arguments.loss)
            host.link.delay(arguments.delay)
        speed = steps_per_second(training)
        training.set_steps(max(100, int(speed * arguments.minutes * 60)))
        say(began, f"{speed:.1f} steps per second with {arguments.loss} % loss and {arguments.delay} ms delay: the run has "
            f"{training.steps} steps")
        expected = training.undisturbed(seconds=3600)
        say(began, "the undisturbed run has ended")
        for number in range(arguments.kills):
            resumes = training.saved_step() > 0
            programs = training.start_all(training.resume_words() if resumes else None)
            training.wait_for_steps(training.steps * (number + 1) // (arguments.kills + 1), 3600)
            gone = [training.hosts[0], training.hosts[1], *training.hosts][number % 3:number % 3 + 1 + number % 2]
            struck, steps = time.monotonic(), training.steps_made()
            for host in gone:
                host.power_off()
            training.check_ends_in_time(programs, struck)
            training.check_no_process_left()
            saved = training.check_nothing_lost(steps)
            say(began, f"{' and '.join(host.name for host in gone)} lost power in step {steps}: all ended "
                f"{time.monotonic() - struck:.1f} s after that, step {saved} is saved")
            for host in gone:
                host.link.up()
        training.check_succeeds(training.start_all(training.resume_words()), 3600)
        training.check_same(expected)
        lost = sum(host.link.lost_packets() for host in training.hosts)
        say(began, f"all {training.steps} losses equal those of the undisturbed run to the bit; {lost} packets were lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--minutes", type=float, default=30, help="the time of the disturbed run, about")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--loss", type=float, default=0.1, help="percent of the packets of each link")
    parser.add_argument("--delay", type=int, default=0, help="milliseconds in each direction: fewer steps, and cores left")
    arguments = parser.parse_args()
    if arguments.build:
        os.environ["TRESTLE_BUILD"] = str(arguments.build.resolve())
    enter_namespaces()
    from training import Failed
    try:
        run(arguments, time.monotonic())
    except (Failed, HostsError) as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
