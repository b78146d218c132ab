"""Parts of docs/reference that Sphinx inserts from the code: options, keys, scenarios, commands and objects."""
