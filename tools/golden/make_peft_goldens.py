#!/usr/bin/env python3
"""Writes tests/golden/peft: adapters of Python's PEFT for the tiny models in tests/golden/transformers.

    pip install peft accelerate
    tools/golden/make_peft_goldens.py

Works offline. A folder is the output of PeftModel.save_pretrained() and golden.safetensors, which has the ids [2, 24], the
logits with the adapters, and "grad.<name>" of every adapter for the loss of the next token.
"""

import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
IDS = (torch.arange(48) * 37 % 101 % 48).view(2, 24)
ADAPTERS = {
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 2, "lora_alpha": 8, "fan_in_fan_out": True},
    "llama": {"target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], "r": 3, "lora_alpha": 6,
              "use_rslora": True},
}


def write(name, options):
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / "transformers" / name)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options)).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    folder = GOLDEN / "peft" / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace(str(GOLDEN), "golden"))
    golden = {"ids": IDS}
    out = model(input_ids=IDS, labels=IDS)
    golden["logits"] = out.logits.detach()
    out.loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            golden["grad." + parameter_name.replace(".default", "")] = parameter.grad
    save_file({key: tensor.contiguous() for key, tensor in golden.items()}, folder / "golden.safetensors")
    print(f"{name}: loss {out.loss.item():.4f}, {len(golden) - 2} adapters")


for model_name, adapter_options in ADAPTERS.items():
    write(model_name, adapter_options)
