"""Networks of one's own: small transformers that read digits, each trained in its own way."""

import json
from functools import cache
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, HIDDEN, BLOCKS, TOKENS, PIXELS = 16, 2, 32, 2, 16, 4


class Reader(nn.Module):
    """16 patches of 4 pixels, two blocks, ten classes; nothing here knows of weight spaces."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) / 4)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, patches: Tensor) -> Tensor:
        """Logits of images "s t p"."""
        tokens = self.embed(patches) + self.positions
        out: Tensor = self.head(self.encoder(tokens).mean(1))
        return out


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Patches "s t p" of all images, and their classes."""
    images, classes = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 4, 2, 4, 2) / 8 - 1
    return pixels.transpose(2, 3).reshape(-1, TOKENS, PIXELS), torch.tensor(classes)


def train(seed: int, steps: int) -> tuple[Reader, float]:
    """A reader and its accuracy on held-out images; rate, decay and data follow from the seed."""
    torch.manual_seed(seed)
    inputs, classes = digits()
    model = Reader()
    # From hopeless to good: what makes networks differ in the world.
    rate = 10 ** (-4 + 2 * torch.rand(()).item())
    decay = 10 ** (-4 + 4 * torch.rand(()).item())
    images = int(2 ** (5 + 5 * torch.rand(()).item()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(steps):
        some = torch.randint(images, (32,))
        loss = F.cross_entropy(model(inputs[some]), classes[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(inputs[1200:]).argmax(1) == classes[1200:]
    return model, right.float().mean().item()


def trained(folder: Path, count: int, steps: int) -> dict[str, float]:
    """A folder with the state dicts of many, and the accuracy of each; a second call goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "accuracy.json"
    found: dict[str, float] = json.loads(known.read_text()) if known.exists() else {}
    for seed in track(range(count), "training networks"):
        name = f"{seed:04}.safetensors"
        if name not in found:
            model, found[name] = train(seed, steps)
            save_file(model.state_dict(), folder / name)
            known.write_text(json.dumps(found))
    return {name: found[name] for name in sorted(found)[:count]}
