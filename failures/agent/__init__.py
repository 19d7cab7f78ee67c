"""Client for the optional language model: masking, prompts, requests and checking of answers."""
