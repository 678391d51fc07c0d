"""Trains on digits with Lightning: smddprun -np 2 python examples/lightning_digits.py.

The data ship with scikit-learn. Lines that distribution added are marked `# distributed`.
"""

import argparse
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment  # distributed
from lightning.pytorch.strategies import DDPStrategy  # distributed
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import load, ranks_are_equal

import smddp_tf.torch  # noqa: F401  # distributed: registers the backend "smddp"


class Digits(pl.LightningModule):
    """A perceptron for the digits, which logs its accuracy on those that it has not seen."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch, number):
        """The loss of a batch."""
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch, number):
        """Each rank tests its part; sync_dist averages."""
        x, y = batch
        correct = (self.layers(x).argmax(1) == y).float().mean()
        self.log("accuracy", correct, sync_dist=True)  # distributed

    def configure_optimizers(self):
        """Momentum."""
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


def make_strategy():
    """DistributedDataParallel on the ranks that smddprun has started."""
    environment = LightningEnvironment()
    environment.world_size = lambda: int(os.environ["WORLD_SIZE"])
    environment.global_rank = lambda: int(os.environ["RANK"])
    return DDPStrategy(cluster_environment=environment, process_group_backend="smddp")


def main():
    """Trains, and checks that all ranks end with the same weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="of all ranks together")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    ranks, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    x, y, x_test, y_test = load()
    model, batch = Digits(args.rate), args.batch // ranks
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=here,  # distributed
        num_nodes=ranks // here,  # distributed
        strategy=make_strategy(),  # distributed
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Lightning gives each rank its part of both.
    train = DataLoader(TensorDataset(x, y), batch, shuffle=True)
    trainer.fit(model, train, DataLoader(TensorDataset(x_test, y_test), batch))
    if not ranks_are_equal(model):
        raise SystemExit(f"rank {trainer.global_rank}: the ranks' weights differ")
    if trainer.is_global_zero:
        accuracy = trainer.callback_metrics["accuracy"].item()
        print(f"all {ranks} ranks hold the same weights; accuracy={accuracy:.4f};", flush=True)


if __name__ == "__main__":
    main()
