"""run(): a function on several ranks, called from a Python process or a notebook.

Its process starts smddprun, which starts ranks as for any script. The ranks connect to it by TCP:
hosts share no file system, and the launcher needs such connections too. multiprocessing.connection
authenticates both sides by a key of the job.
"""
