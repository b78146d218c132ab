"""Files and messages of membership: the federation file, the signed membership log, invitations.

Every entry is signed by the federation's admission key.
"""
