"""Trains DigitsCNN on scikit-learn's handwritten digits; writes weights, calibration images, labelled test images.

python examples/digits/train.py
"""

from pathlib import Path

import numpy as np
import torch
from model import DigitsCNN
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent
EPOCHS = 25
BATCH = 64


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is too small to share: threads would mostly wait for each other
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]  # [1797, 1, 8, 8], 0..1
    labels = digits.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=0)
    model = DigitsCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * (len(x_train) // BATCH + 1))
    x, y = torch.from_numpy(x_train), torch.from_numpy(y_train)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(torch.from_numpy(x_test)).argmax(1).numpy() == y_test).mean()
    print(f"accuracy on {len(y_test)} held-out digits: {accuracy:.2%}")
    if accuracy < 0.98:
        message = f"training went wrong: {accuracy:.2%} is below 98 %"
        raise SystemExit(message)
    save_file(model.state_dict(), HERE / "weights.safetensors")
    np.savez(HERE / "calib.npz", image=x_train[:256])
    np.savez(HERE / "test.npz", image=x_test, y=y_test)


if __name__ == "__main__":
    main()
