"""The table of cases."""
from training import Training

CASES = {}


def case(launchers=("launch", "torchrun"), modes=("pipeline", "replicate", "shard", "hsdp"), **options):
    """Registers a function of a Training as a case. `options` are those of Training.

    It returns a few words with what it measured, or raises Failed. The registered function of a launcher and a mode
    returns these words and the terminals of all hosts. conformance.py runs it with these launchers and modes: a case
    that does not depend on one of them names one.
    """

    def register(function):
        def run(launcher, mode):
            with Training(launcher, mode, **options) as training:
                try:
                    words = function(training)
                    if training.slowness > 1:
                        words += f" (busy: limits times {training.slowness:g})"
                    return words, training.terminals()
                except Exception as error:
                    error.terminals = training.terminals()
                    raise

        run.__doc__ = function.__doc__
        run.launchers, run.modes = launchers, modes
        CASES[function.__name__] = run
        return function

    return register
