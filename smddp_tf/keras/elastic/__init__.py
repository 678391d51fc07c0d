"""Horovod's elastic API: trainings that go on when ranks are lost, join or leave.

``smddprun -np 4 --min-np 2`` starts an elastic job, whose ranks go on in their own processes. In
other jobs a lost rank ends all, and ``smddprun --max-restarts N`` starts them again from the last
commit(). See docs/elastic.md.

Examples:
  >>> state = hvd.elastic.ObjectState(epoch=0)
  >>> state.epoch += 1
  >>> state.commit()
  >>> state.epoch
  1
"""

from smddp_tf._src.elastic.run import run
from smddp_tf._src.elastic.samples import Samples
from smddp_tf.keras.elastic._callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    UpdateSamplesStateCallback,
)
from smddp_tf.keras.elastic._state import (
    KerasState,
    ObjectState,
    State,
    TensorFlowKerasState,
    TensorFlowState,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "Samples",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "UpdateSamplesStateCallback",
    "run",
]
