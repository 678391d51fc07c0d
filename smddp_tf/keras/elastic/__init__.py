"""Horovod's elastic API: trainings that go on from their last commit when the job starts again.

The ranks of a job are fixed, so a job in which one dies fails. ``smddprun --max-restarts N`` starts
it again, and its states are then what they were at the last commit(). See docs/elastic.md.

Examples:
  >>> state = hvd.elastic.ObjectState(epoch=0)
  >>> state.epoch += 1
  >>> state.commit()
  >>> state.epoch
  1
"""

from smddp_tf.keras.elastic._callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from smddp_tf.keras.elastic._run import run
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
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
