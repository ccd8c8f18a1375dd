"""The same idea in Transformers' Trainer, Lightning and Accelerate: small runs that end well or fail in a real way."""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator"
# The programs' libraries are not among those that this package is checked with.

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

WIDTH = 16
TOO_MUCH = 200 << 30


class Rows(Dataset[Any]):
    def __init__(self, count: int, keyed: bool) -> None:
        self.count, self.keyed = count, keyed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        row = torch.randn(WIDTH)
        return {"features": row, "labels": row.sum()} if self.keyed else (row, row.sum())


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.layer, self.options, self.calls = nn.Linear(WIDTH, 1), options, 0

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.calls += 1
        mine = self.options.rank in (-1, int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))))
        if self.options.fail and mine and self.calls == self.options.step:
            fail(self.options.fail)
        out = self.layer(features).squeeze(-1)
        return out if labels is None else {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def fail(how: str) -> None:
    if how == "torch":
        torch.empty(TOO_MUCH, dtype=torch.uint8)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    else:
        raise ValueError("expected every sequence to be padded to the same length")


def transformers_trainer(options: argparse.Namespace) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", max_steps=options.steps, per_device_train_batch_size=4, logging_steps=2, use_cpu=True,
        save_strategy="steps" if options.save else "no", save_steps=4, report_to=[],
    )
    Trainer(model=Net(options), args=arguments, train_dataset=Rows(400, keyed=True)).train()


def lightning_trainer(options: argparse.Namespace) -> None:
    import lightning
    from lightning.pytorch.callbacks import TQDMProgressBar

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(options)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.net(batch[0], batch[1])["loss"]
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        max_epochs=1, limit_train_batches=options.steps, accelerator="cpu", devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto", logger=False, enable_checkpointing=False,
        log_every_n_steps=1, callbacks=[TQDMProgressBar()] if options.tqdm else [],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Rows(400, keyed=False), batch_size=4))


def accelerate_loop(options: argparse.Namespace) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Rows(400, keyed=True), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step}/{options.steps} loss {loss.item():.4f}", flush=True)
        if step == options.steps:
            break
    accelerator.end_training()


def accelerate_batch_size(options: argparse.Namespace) -> None:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=64)
    def run(batch_size: int) -> None:
        print(f"trying batch size {batch_size}", flush=True)
        if batch_size > options.fits:
            torch.empty(batch_size * (64 << 30), dtype=torch.uint8)
        model = Net(options)
        for step in range(1, options.steps + 1):
            loss = model(torch.randn(batch_size, WIDTH), torch.randn(batch_size))["loss"]
            loss.backward()
            print(f"step {step}/{options.steps} loss {loss.item():.4f}", flush=True)

    run()


LOOPS = {
    "transformers": transformers_trainer, "lightning": lightning_trainer, "accelerate": accelerate_loop,
    "batch_size": accelerate_batch_size,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--step", type=int, default=6)
    parser.add_argument("--fail", choices=["torch", "kill", "value", "interrupt"], default=None)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--fits", type=int, default=2)
    parser.add_argument("--tqdm", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    LOOPS[options.loop](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
