"""One module per published system: reads the authors' artefact, runs our engine, and returns the figures of both."""
