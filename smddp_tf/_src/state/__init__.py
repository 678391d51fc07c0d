"""State of a model besides its variables: what follows from them, tables, and configuration."""
