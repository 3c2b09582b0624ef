"""Writes tests/golden/schedules/torch.txt: the tables of torch.distributed.pipelining's schedules.

    python tools/golden/make_schedule_goldens.py tests/golden/schedules

The schedules get mock stages and no process group. A table begins with a line "# NAME p v m" and has a line for each rank. Idle cells and
REDUCE_GRAD are left out. torch 2.13's 1F1B table numbers the last rank's forwards from 1; this writes what its runtime executes, which
numbers them from 0.
"""

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


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
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
    (folder / "torch.txt").write_text("\n".join(lines) + "\n")
    print(f"torch {torch.__version__}: {sum(line[0] == '#' for line in lines)} tables, {refused} of them refused")


main()
