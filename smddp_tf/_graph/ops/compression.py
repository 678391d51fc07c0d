"""The ops of the compressors in smddp_tf/_compression/."""

from smddp_tf._graph.ops.int8 import int8_quantize, int8_sum
from smddp_tf._graph.ops.topk import topk_select, topk_sum

__all__ = ["int8_quantize", "int8_sum", "topk_select", "topk_sum"]
