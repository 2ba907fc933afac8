"""The C libraries: headers, sources, and what builds them. Read docs/reference/capi.md."""
