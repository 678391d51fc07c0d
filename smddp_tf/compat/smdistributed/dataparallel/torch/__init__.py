"""smdistributed.dataparallel.torch: the backend smddp under SageMaker's names."""
