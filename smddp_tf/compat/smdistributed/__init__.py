"""smdistributed's top level."""
