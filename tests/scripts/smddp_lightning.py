"""Lightning as SageMaker's guide has it: DDPStrategy on the backend "smddp".

Values are small multiples of powers of two and the loss is linear in the weights, so every sum is
exact: the weights are those of one process, bit for bit.
"""

import argparse
import os
import tempfile

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy

BATCH, SAMPLES, EPOCHS = 16, 64, 2


def get_strategy():
    """The guide's: ranks and their number from the launcher's variables."""
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    env = LightningEnvironment()
    env.world_size = lambda: int(os.environ.get("WORLD_SIZE", 1))
    env.global_rank = lambda: int(os.environ.get("RANK", 0))
    return DDPStrategy(cluster_environment=env, process_group_backend="smddp")


class Data(pl.LightningDataModule):
    def __init__(self, batch):
        super().__init__()
        self.prepare_data_per_node = True
        self.batch = batch

    def prepare_data(self):
        print(f"prepare_data in rank {os.environ['RANK']}", flush=True)

    def setup(self, stage):
        rows = torch.arange(SAMPLES * 6).remainder(5).view(SAMPLES, 6) - 2.0
        self.data = torch.utils.data.TensorDataset(rows, rows[:, :4].flip(0))

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.data, batch_size=self.batch)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.data, batch_size=self.batch)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 4)
        for weights in self.parameters():
            values = torch.arange(weights.numel()).remainder(4) / 4
            weights.data.copy_(values.view(weights.shape))

    def training_step(self, batch, number):
        loss = (self.layer(batch[0]) * batch[1]).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        self.log("rows", batch[0].sum(), sync_dist=True, reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=2.0**-4)


def train(ranks, precision, **options):
    """Returns (the trainer, the weights)."""
    model = Model()
    trainer = pl.Trainer(
        precision=precision,
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=True,
        default_root_dir=tempfile.mkdtemp(),
        **options,
    )
    trainer.fit(model, Data(BATCH // ranks))
    return trainer, torch.nn.utils.parameters_to_vector(model.parameters()).detach()


parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="32")
args = parser.parse_args()
ranks, per_node = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
# DataLoader's order is not shuffled, and a rank's samples are every ranks-th: a step of all ranks
# has the samples of a step of one process.
trainer, weights = train(
    ranks,
    args.precision,
    devices=per_node,
    num_nodes=ranks // per_node,
    strategy=get_strategy(),
)
others = [torch.empty_like(weights) for _ in range(ranks)]
dist.all_gather(others, weights)
equal = all(torch.equal(weights, one) for one in others)
print(
    f"rank {trainer.global_rank} of {dist.get_world_size()} local {trainer.local_rank} "
    f"backend {dist.get_backend()} equal {equal} rows {trainer.callback_metrics['rows'].item():g}",
    flush=True,
)
dist.destroy_process_group()
if trainer.global_rank == 0:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"):
        os.environ[name] = "0"
    os.environ["WORLD_SIZE"] = "1"
    _, alone = train(1, args.precision, devices=1)
    moved = not torch.equal(alone, torch.nn.utils.parameters_to_vector(Model().parameters()))
    print(f"one process equal {torch.equal(weights, alone)} moved {moved}", flush=True)
