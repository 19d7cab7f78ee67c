"""Recovery, from verdict to effect: rules, reads, decisions, steps, the loop, API and pages, one module each."""
