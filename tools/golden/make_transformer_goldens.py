#!/usr/bin/env python3
"""Writes tests/golden/transformers: tiny GPT-2 and Llama models of Hugging Face's transformers, and what Python computes with them.

    tools/golden/make_transformer_goldens.py [--search]

Works offline. A folder is the output of save_pretrained() and golden.safetensors, which has the ids [2, 24], the logits, the
loss of the next token, "grad.<name>" of every parameter, "step3.<name>" after three steps of AdamW on the same batch, and
the tokens that generate() appends greedily to the first 8 of each row. llama_sharded and llama_bin hold the weights of llama
in other forms, llama_gguf a quantised model as llama.cpp's converter writes it. --search finds seeds whose greedy tokens
are no near ties.
"""

import os
import pathlib
import shutil
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "transformers"
VOCABULARY = 48
IDS = (torch.arange(48) * 37 % 101 % VOCABULARY).view(2, 24)
PROMPT = 8
SEEDS = {"gpt2": 107, "gpt2_untied": 105, "llama": 108, "llama_tied": 168, "llama_bias": 147}
# With an epsilon of 1e-8, AdamW would turn the rounding of gradients that are 0 (the bias of GPT-2's keys) into whole steps.
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-5}
ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128}


def gpt2(tied=True):
    return GPT2LMHeadModel(GPT2Config(
        n_layer=2, n_embd=16, n_head=4, vocab_size=VOCABULARY, n_positions=32, bos_token_id=0, eos_token_id=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tied))


def llama(tied=False, bias=False):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=[1, 2],
        tie_word_embeddings=tied, attention_bias=bias, mlp_bias=bias, rope_parameters=dict(ROPE)))


MODELS = {"gpt2": gpt2, "gpt2_untied": lambda: gpt2(tied=False), "llama": llama, "llama_tied": lambda: llama(tied=True),
          "llama_bias": lambda: llama(bias=True)}


def scramble(model, seed):
    """Norms and biases too: with the initial 1 and 0, a program could ignore them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + drawn * 0.1 if parameter.dim() == 1 else drawn * 0.25)
    return model


def greedy(model):
    prompt = IDS[:, :PROMPT]
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0,
                         eos_token_id=None, return_dict_in_generate=True, output_logits=True)
    best = torch.stack(out.logits).topk(2).values
    return out.sequences, (best[..., 0] - best[..., 1]).min().item()


def find_seed(make):
    for seed in range(100, 3000):
        tokens, margin = greedy(scramble(make(), seed).eval())
        if margin > 0.02 and all(len(set(row[PROMPT:].tolist())) >= 5 for row in tokens):
            return seed
    raise SystemExit("no seed")


def loss_of(model):
    return model(input_ids=IDS, labels=IDS).loss


def train_three_steps(model):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], **ADAMW)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def write_golden(model, folder):
    golden = {"ids": IDS}
    model.eval()
    with torch.no_grad():
        golden["logits"] = model(IDS).logits
    golden["greedy"], margin = greedy(model)
    loss = loss_of(model)
    loss.backward()
    golden["loss"] = loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        golden[f"grad.{name}"] = parameter.grad.clone()
    train_three_steps(model)
    for name, parameter in model.named_parameters():
        golden[f"step3.{name}"] = parameter.detach().clone()
    save_file({name: tensor.contiguous() for name, tensor in golden.items()}, folder / "golden.safetensors")
    print(f"{folder.name}: loss {loss.item():.4f}, greedy {golden['greedy'][:, PROMPT:].tolist()}, margin {margin:.3f}")


def permuted(weight, heads):
    """The rows of each head in the order of llama.cpp: the halves of a rotary pair next to each other."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder):
    """Rows of 32 and 64 elements, because a block has 32; a file of Llama 3 with its rope_freqs.weight."""
    theta, heads, kv_heads, size = 500000.0, 4, 2, 8
    rope = {**ROPE, "rope_theta": theta, "original_max_position_embeddings": 8192}
    model = scramble(LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=size, max_position_embeddings=16384, rms_norm_eps=1e-5,
        tie_word_embeddings=True, rope_parameters=rope)), 5).eval()
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    writer = GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(16384)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)
    frequencies = theta ** (-torch.arange(0, size, 2) / size)
    writer.add_tensor("rope_freqs.weight", (frequencies / model.model.rotary_emb.inv_freq).numpy().astype(numpy.float32))
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    sources = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for block in range(2):
        for theirs, ours in names.items():
            sources[f"blk.{block}.{ours}.weight"] = f"model.layers.{block}.{theirs}.weight"
    rows = {name: heads if "attn_q" in name else kv_heads for name in sources if "attn_q." in name or "attn_k." in name}
    for name, source in sources.items():
        weight = permuted(weights[source], rows[name]) if name in rows else weights[source]
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
            continue
        kind = GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else GGMLQuantizationType.Q4_1
        writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    state = {}
    for tensor in GGUFReader(folder / "model.gguf").tensors:
        if tensor.name not in sources:
            continue
        values = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name in rows:
            values = values.reshape(rows[tensor.name], size // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
        state[sources[tensor.name]] = torch.from_numpy(values.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    with torch.no_grad():
        save_file({"ids": IDS, "logits": model(IDS).logits.contiguous()}, folder / "golden.safetensors")


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    for name, make in MODELS.items():
        seed = find_seed(make) if "--search" in sys.argv else SEEDS[name]
        model = scramble(make(), seed)
        print(f"{name}: seed {seed}")
        (OUT / name).mkdir(parents=True)
        model.save_pretrained(OUT / name)
        if name == "llama":
            model.save_pretrained(OUT / "llama_sharded", max_shard_size="12KB")
            (OUT / "llama_bin").mkdir()
            shutil.copy(OUT / name / "config.json", OUT / "llama_bin")
            torch.save(model.state_dict(), OUT / "llama_bin" / "pytorch_model.bin")
        write_golden(model, OUT / name)
    (OUT / "llama_gguf").mkdir()
    write_gguf(OUT / "llama_gguf")


if __name__ == "__main__":
    main()
