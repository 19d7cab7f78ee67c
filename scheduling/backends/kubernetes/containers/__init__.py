"""What happens in the containers of pods: commands, signals and logs."""
