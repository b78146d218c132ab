"""Wire format: messages, signed envelopes, payloads of models, and protection against replay.

docs/wire-protocol.md is the specification; docs/vectors contains golden vectors.
"""
