"""A training step of a GPT in plain Python torch, as people write it: pre-norm blocks, fused projections,
scaled_dot_product_attention, tied head, AdamW. Random bytes as tokens."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from measured_steps import job, report, run_steps


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        parts = self.qkv(self.attention_norm(x)).split(width, 2)
        q, k, v = (part.view(rows, tokens, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(self.draw)
        self.head.weight = self.tokens.weight

    @staticmethod
    def draw(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0, 0.02)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def add_flags(parser):
    parser.set_defaults(width=384, batch=16)
    for flag, value in (("layers", 10), ("heads", 6), ("context", 256), ("vocabulary", 256)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW")


if __name__ == "__main__":
    size = job(__doc__, add_flags)
    torch.manual_seed(1)
    model = Gpt(size.vocabulary, size.context, size.width, size.layers, size.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=size.fused)
    ids, target = (torch.randint(size.vocabulary, (size.batch, size.context)) for _ in range(2))
    run = torch.compile(model) if size.compile else model
    loss = 0.0

    def gradients():
        global loss
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=size.precision == "bf16"):
            scores = run(ids)
        value = F.cross_entropy(scores.float().flatten(0, 1), target.flatten())
        value.backward()
        loss = value.item()

    times = run_steps(size.warm_up, size.steps, gradients, optimizer.step)
    report(model, loss, times)
