"""The compute graph as pure data: nodes, schedule, liveness and memory plan; no device."""
