"""Words for values: titles, figures and times; what a node check says; hostile text made harmless."""
