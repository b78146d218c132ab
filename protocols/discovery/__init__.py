"""Discovery of nodes on the local network.

Announcements are unauthenticated hints; the transport's handshake decides.
"""
