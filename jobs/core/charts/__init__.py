"""Series and layouts of charts, timelines and the GPU map. Pure modules only."""
