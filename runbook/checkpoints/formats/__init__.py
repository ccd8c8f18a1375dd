"""One module a family of formats: what is written last, and what is missing from a save that did not finish."""
