"""What one pass over the logs brings together: matches with their surroundings, ranks, nodes and clocks."""
