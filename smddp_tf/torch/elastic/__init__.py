"""Horovod's elastic API for PyTorch: trainings that go on when ranks are lost, join or leave.

``smddprun -np 4 --min-np 2`` starts an elastic job, whose ranks go on in their own processes. In
other jobs a lost rank ends all, and ``smddprun --max-restarts N`` starts them again from the last
commit(). See docs/elastic.md.

Examples:
  >>> model = torch.nn.Linear(2, 1)
  >>> state = hvd.elastic.TorchState(model, epoch=0)
  >>> state.epoch += 1
  >>> state.commit()
  >>> state.epoch
  1
"""

from smddp_tf._src.elastic.run import run
from smddp_tf._src.elastic.samples import Samples
from smddp_tf.torch.elastic._sampler import ElasticSampler
from smddp_tf.torch.elastic._state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "Samples", "State", "TorchState", "run"]
