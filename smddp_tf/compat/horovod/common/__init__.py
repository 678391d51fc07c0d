"""horovod.common: the framework-independent modules that scripts import."""
