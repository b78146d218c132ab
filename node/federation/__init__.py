"""Membership of a node in a federation: the agreement, changes of the members, invitations, the membership log on disk.

Files and messages are defined in `p2pfl.protocols.membership`.
"""
