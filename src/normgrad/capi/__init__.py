"""The C libraries: headers, sources, and what builds them. How they work: docs/capi.md."""
