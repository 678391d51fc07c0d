"""horovod.common: what scripts import from below the frameworks."""
