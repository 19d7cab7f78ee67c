"""What happens in the containers of pods."""
