"""The job: ranks, process sets, configuration and the native library. Imports no framework."""
