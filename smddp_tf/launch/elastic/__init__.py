"""Elastic jobs: ranks may be lost, come and go, and the others go on in their own processes.

driver     what happens next; a state machine without I/O and clock
server     the ranks' connections
slots      their processes, an mpirun for each
discovery  --host-discovery-script
job        brings them together
"""
