"""Compares folders that trestle wrote in DeepSpeed's form with DeepSpeed's own.

    python compare_folders.py GOLDEN MADE [GOLDEN MADE ...]     exits with 1 if a file of MADE differs

Each entry that trestle writes must equal DeepSpeed's: the same containers, the same bits of
tensors. Entries that DeepSpeed 0.19.8 does not need are missing, as
tools/golden/check_deepspeed_resume.py shows with a real DeepSpeed. DeepSpeed need not be installed:
its classes are replaced.
"""

import pathlib
import sys
import types

import torch

# Entries that DeepSpeed writes and does not need, or that have other values for a reason.
MISSING = {
    "root": {"checkpoint_parallel_dimensions", "note"},
    "ds_config": {"gradient_clipping", "optimizer", "scheduler"},
    "zero_optimization": {"stage3_param_persistence_threshold", "sub_group_size"},
    "optimizer_state_dict": {"param_alignment_paddings", "param_slice_mappings"},
    "param_groups": {"maximize", "foreach", "capturable", "differentiable", "fused"},
}


def replace_classes():
    class LossScaler:
        pass

    class FragmentAddress:
        pass

    modules = {
        "deepspeed.runtime.fp16.loss_scaler": {"LossScaler": LossScaler},
        "deepspeed.runtime.zero.config": {"ZeroStageEnum": int},
        "deepspeed.utils.tensor_fragment": {"fragment_address": FragmentAddress},
    }
    for name, contents in modules.items():
        for depth in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:depth])
            sys.modules.setdefault(part, types.ModuleType(part))
        vars(sys.modules[name]).update(contents)


def compare(theirs, ours, where, problems, is_rank_1):
    if torch.is_tensor(theirs):
        if torch.is_tensor(ours) and theirs.shape == ours.shape and is_rank_1:
            # Stage 3 leaves what was in memory in the padding of its shards; ours has 0.
            padding = 1 if "frozen_param_fragments" in where else 6 if "fp32_flat_groups" in where else 0
            if (ours == 0).sum() <= padding:
                theirs = theirs.detach().where(ours != 0, 0)
        same = torch.is_tensor(ours) and theirs.dtype == ours.dtype and torch.equal(theirs, ours)
        if not same:
            problems.append(f"{where}: {ours}, not {theirs}")
    elif isinstance(theirs, dict):
        if not isinstance(ours, dict):
            problems.append(f"{where}: {ours} is not a dict")
            return
        key = where.rsplit("/", 1)[-1].split("[")[0]
        missing = MISSING.get(key, set())
        # param_shapes and module: the order is that of the flat buffers.
        if [k for k in theirs if k not in missing and k in ours] != [k for k in theirs if k not in missing]:
            problems.append(f"{where}: lacks {[k for k in theirs if k not in ours and k not in missing]}")
        if key in ("module", "param_shapes") and list(theirs) != list(ours):
            problems.append(f"{where}: {list(ours)}, not {list(theirs)}")
        for k in ours:
            if is_rank_1 and "running_" in str(k):
                continue  # each rank of DeepSpeed's keeps its own statistics
            if k not in theirs:
                problems.append(f"{where}: has '{k}'")
            else:
                compare(theirs[k], ours[k], f"{where}/{k}", problems, is_rank_1)
    elif isinstance(theirs, (list, tuple)):
        if type(theirs) is not type(ours) or len(theirs) != len(ours):
            problems.append(f"{where}: {ours}, not {theirs}")
            return
        for i, (a, b) in enumerate(zip(theirs, ours)):
            compare(a, b, f"{where}[{i}]", problems, is_rank_1)
    elif hasattr(theirs, "__dict__"):
        compare(vars(theirs), vars(ours), where, problems, is_rank_1)
    elif theirs != ours or type(theirs) is not type(ours):
        problems.append(f"{where}: {ours!r}, not {theirs!r}")


def compare_folders(golden, made, problems):
    for folder in sorted(p for p in golden.iterdir() if p.is_dir()):
        names = [p.name for p in (folder / "global_step3").iterdir()]
        found = [p.name for p in (made / folder.name / "global_step3").iterdir()]
        if sorted(names) != sorted(found):
            problems.append(f"{folder.name}: has the files {found}, not {names}")
            continue
        for name in names:
            path = pathlib.Path(folder.name) / "global_step3" / name
            theirs, ours = (torch.load(f / path, weights_only=False) for f in (golden, made))
            before = len(problems)
            compare(theirs, ours, "root", problems, "rank_1_" in name)
            problems[before:] = [f"{path}: {text}" for text in problems[before:]]


def main():
    folders = [pathlib.Path(path) for path in sys.argv[1:]]
    replace_classes()
    problems = []
    for golden, made in zip(folders[::2], folders[1::2]):
        compare_folders(golden, made, problems)
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
