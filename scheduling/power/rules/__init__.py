"""Rules of power: energy from samples, caps of clocks, predictions, and which nodes sleep. Pure."""
