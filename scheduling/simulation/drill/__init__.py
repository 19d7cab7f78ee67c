"""Recovery drills: a simulated datacenter with faults, on which recovery strategies are compared. Pure."""
