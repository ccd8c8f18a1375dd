"""One module per box: gather through ports, call a pure function, act through ports, return an outcome."""
