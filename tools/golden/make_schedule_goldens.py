"""Writes two files. torch.txt has the tables of torch.distributed.pipelining's schedules. times.txt has the makespan and the span
bubble of the same tables, from the simulation below and with random costs.

    python tools/golden/make_schedule_goldens.py tests/golden/schedules

The schedules get mock stages and no process group. A table begins with a line "# NAME p v m" and has a line for each rank. Idle cells and
REDUCE_GRAD are left out. torch 2.13's 1F1B table numbers the last rank's forwards from 1; this writes what its runtime executes, which
numbers them from 0. A line of times.txt is "NAME p v m", the seconds of F, I, W and a message between two ranks, the makespan and the span bubble.
"""

import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.pipelining import schedules as pipelining

NAMES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "looped_bfs": pipelining.ScheduleLoopedBFS,
    "interleaved_1f1b": pipelining.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipev": pipelining.ScheduleDualPipeV,
}
ONE_STAGE = ("gpipe", "1f1b")
TWO_STAGES = ("zbv", "dualpipev")


def mock_stages(ranks, chunks):
    count = ranks * chunks
    return [
        SimpleNamespace(stage_index=chunk * ranks, num_stages=count, group_size=ranks, group_rank=0, is_first=chunk == 0,
                        is_last=chunk * ranks == count - 1, submod=torch.nn.Identity())
        for chunk in range(chunks)
    ]


def table(name, ranks, chunks, micro_batches):
    stages = mock_stages(ranks, chunks)
    made = NAMES[name](stages[0] if name in ONE_STAGE else stages, micro_batches)
    rows = []
    for rank in range(ranks):
        cells = []
        for action in made.pipeline_order[rank]:
            if action is None or "REDUCE_GRAD" in str(action):
                continue
            if name == "1f1b" and rank == ranks - 1 and action.computation_type == pipelining.FORWARD:
                action = action._replace(microbatch_index=action.microbatch_index - 1)
            cells.append(str(action))
        rows.append(",".join(cells))
    return rows


def rank_of_stage(name, ranks, stage):
    in_v = name in TWO_STAGES and stage >= ranks
    return 2 * ranks - 1 - stage if in_v else stage % ranks


def simulate(name, ranks, chunks, rows, seconds):
    """Every rank runs its actions in their order, each as soon as its input is there. A pair of an overlapped F and B is one action."""
    stages = ranks * chunks
    f, i, w, message = seconds
    takes = {"F": f, "I": i, "W": w, "B": i + w}
    actions = [[re.findall(r"(\d+)([FIWB])(\d+)", cell) for cell in re.findall(r"\([^)]*\)\w*|[^,]+", row)] for row in rows]
    done = {}  # (stage, F or I, micro-batch): when it ended

    def input_of(stage, kind, micro_batch):
        if kind == "W" or (kind == "F" and stage == 0):
            return None
        if kind == "F":
            return (stage - 1, "F", micro_batch)
        return (stage, "F", micro_batch) if stage == stages - 1 else (stage + 1, "I", micro_batch)

    now, busy, first = [0] * ranks, [0] * ranks, [None] * ranks
    at = [0] * ranks
    while any(at[rank] < len(actions[rank]) for rank in range(ranks)):
        before = list(at)
        for rank in range(ranks):
            while at[rank] < len(actions[rank]):
                parts = [(int(stage), kind, int(micro_batch)) for stage, kind, micro_batch in actions[rank][at[rank]]]
                inputs = [key for key in (input_of(*part) for part in parts) if key is not None]
                if any(key not in done for key in inputs):
                    break
                ready = [done[key] + (message if rank_of_stage(name, ranks, key[0]) != rank else 0) for key in inputs]
                begin = max([now[rank]] + ready)
                length = sum(takes[kind] for _, kind, _ in parts)
                if first[rank] is None:
                    first[rank] = begin
                now[rank] = begin + length
                busy[rank] += length
                for stage, kind, micro_batch in parts:
                    if kind != "W":
                        done[(stage, "F" if kind == "F" else "I", micro_batch)] = now[rank]
                at[rank] += 1
        if at == before:
            raise ValueError(f"{name} {ranks} {chunks}: no rank can go on")
    return max(now), max(now[rank] - first[rank] - busy[rank] for rank in range(ranks))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    times = []
    numbers = random.Random(17)
    refused = 0
    for name in NAMES:
        for chunks in (1,) if name in ONE_STAGE else (2,) if name in TWO_STAGES else (1, 2, 3):
            for ranks in (1, 2, 3, 4, 6):
                for micro_batches in sorted({1, 2, 3, ranks - 1, ranks, 2 * ranks - 1, 2 * ranks, 3 * ranks, 10} - {0}):
                    try:
                        rows = table(name, ranks, chunks, micro_batches)
                    except ValueError:
                        lines.append(f"# {name} {ranks} {chunks} {micro_batches} refused")
                        refused += 1
                        continue
                    lines += [f"# {name} {ranks} {chunks} {micro_batches}"] + rows
                    seconds = [numbers.randint(1, 40) for _ in range(3)] + [numbers.randint(0, 5)]
                    words = [name, ranks, chunks, micro_batches, *seconds, *simulate(name, ranks, chunks, rows, seconds)]
                    times.append(" ".join(str(word) for word in words))
    (folder / "torch.txt").write_text("\n".join(lines) + "\n")
    (folder / "times.txt").write_text("\n".join(times) + "\n")
    print(f"torch {torch.__version__}: {sum(line[0] == '#' for line in lines)} tables, {refused} of them refused")


main()
