"""The doctor on ranks whose clocks differ: that of rank 1 is 5 s ahead of the others'.

smddprun -np 2 python tests/scripts/doctor_with_a_wrong_clock.py --json --quick
"""

import os
import runpy
import time

if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    right = time.time
    time.time = lambda: right() + 5
runpy.run_module("smddp_tf.doctor", run_name="__main__", alter_sys=True)
