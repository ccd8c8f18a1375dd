"""Vocabulary: the values that flow from box to box. Frozen, without behaviour that touches the world."""
