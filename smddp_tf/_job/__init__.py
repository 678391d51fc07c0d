"""The job: its ranks, process sets, settings and native library. Imports no framework."""
